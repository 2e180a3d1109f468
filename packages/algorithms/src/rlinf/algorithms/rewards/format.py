"""Whether a completion has the shape that was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf.algorithms.checks import expect_finite
from rlinf.algorithms.rewards.reward import PairReward
from rlinf.core.errors import ConfigError


def has_think_format(completion: str, *, tag: str = "think") -> bool:
    """Whether a completion begins with its only `<tag>`, which is closed somewhere after; the rest is free.

    Args:
        completion: what the policy wrote.
        tag: the tag of the thoughts.
    """
    opening = f"<{tag}>"
    return completion.startswith(opening) and completion.count(opening) == 1 and f"</{tag}>" in completion


def has_answer_format(completion: str, *, tag: str = "answer") -> bool:
    """Whether a completion holds exactly one `<tag>…</tag>`, with something in it.

    Args:
        completion: what the policy wrote.
        tag: the tag of the answer.
    """
    inner = _once(completion, tag)
    return inner is not None and bool(completion[inner[0] : inner[1]].strip())


def has_tags_in_order(completion: str, *, tags: tuple[str, ...] = ("think", "answer"), newlines: bool = False) -> bool:
    """Whether a completion is `<a>…</a><b>…</b>…`: each tag exactly once, in order, and only white space outside.

    Args:
        completion: what the policy wrote.
        tags: the tags, in order.
        newlines: whether each tag stands on a line of its own.
    """
    position = 0
    for tag in tags:
        inner = _once(completion, tag)
        # 2 and 3 are the characters that `<…>` and `</…>` add to the name of a tag.
        if inner is None or completion[position : inner[0] - len(tag) - 2].strip() or inner[0] - len(tag) - 2 < position:
            return False
        if newlines and not _on_own_lines(completion, position, inner, len(tag) + 2):
            return False
        position = inner[1] + len(tag) + 3
    return not completion[position:].strip()


def _once(text: str, tag: str) -> tuple[int, int] | None:
    """Where the inside of the only `<tag>…</tag>` begins and ends."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start, end = text.find(opening) + len(opening), text.find(closing)
    once = text.count(opening) == 1 and text.count(closing) == 1 and end >= start
    return (start, end) if once else None


def _on_own_lines(text: str, position: int, inner: tuple[int, int], opening: int) -> bool:
    between, inside = text[position : inner[0] - opening], text[inner[0] : inner[1]]
    return inside.startswith("\n") and inside.endswith("\n") and len(inside) > 1 and (position == 0 or between == "\n")


@dataclass(frozen=True, slots=True)
class ThinkFormat(PairReward):
    """Whether a completion begins with its thoughts, by name: `think_format`. The answer is not looked at."""

    tag: str = "think"
    """The name of the tag that encloses the thoughts: `<think>…</think>`."""
    correct: float = 1.0
    """The score of a completion that has this form."""
    incorrect: float = 0.0
    """The score of a completion that has not."""

    def __post_init__(self) -> None:
        expect_finite(correct=self.correct, incorrect=self.incorrect)

    def verify(self, completion: str, answer: str) -> float:
        return self.correct if has_think_format(completion, tag=self.tag) else self.incorrect


@dataclass(frozen=True, slots=True)
class AnswerFormat(PairReward):
    """Whether a completion has exactly one answer in tags, by name: `answer_format`. The answer itself is not looked at."""

    tag: str = "answer"
    """The name of the tag that encloses the answer: `<answer>…</answer>`."""
    correct: float = 1.0
    """The score of a completion that has this form."""
    incorrect: float = 0.0
    """The score of a completion that has not."""

    def __post_init__(self) -> None:
        expect_finite(correct=self.correct, incorrect=self.incorrect)

    def verify(self, completion: str, answer: str) -> float:
        return self.correct if has_answer_format(completion, tag=self.tag) else self.incorrect


@dataclass(frozen=True, slots=True)
class TagFormat(PairReward):
    """Whether a completion is its tags, each once and in order, by name: `tag_format`. The answer is not looked at.

    The format of DeepSeek-AI, "DeepSeek-R1" (2025), §2.2.2, arXiv:2501.12948.
    """

    tags: tuple[str, ...] = ("think", "answer")
    """The names of the tags, in the order in which a completion must have them, with only white space between and around them."""
    newlines: bool = False
    """Whether each tag stands on a line of its own."""
    correct: float = 1.0
    """The score of a completion that has this form."""
    incorrect: float = 0.0
    """The score of a completion that has not."""

    def __post_init__(self) -> None:
        if not self.tags or len(set(self.tags)) < len(self.tags):
            raise ConfigError("tags", f"expected at least one tag and none twice, found {list(self.tags)}")
        expect_finite(correct=self.correct, incorrect=self.incorrect)

    def verify(self, completion: str, answer: str) -> float:
        right = has_tags_in_order(completion, tags=self.tags, newlines=self.newlines)
        return self.correct if right else self.incorrect
