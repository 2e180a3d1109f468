"""Recorded conversations: which tokens of their earlier replies are learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem, Tokenizer
from rlinf.runners.reasoning.language import rendered

_LAST_ALONE = "set data.mask_history: true to learn the last reply of each conversation alone"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a conversation's text."""

    text: str
    learned: bool
    """Whether it is a reply, up to and with what ends it; all else is read only."""


def replies(problem: Problem) -> list[int]:
    """Which messages of a prompt are replies to learn, by number; one that no message comes before answers nothing."""
    if isinstance(problem.prompt, str) or not problem.worked_replies:
        return []
    return [at for at, message in enumerate(problem.prompt) if at > 0 and message["role"] == "assistant"]


def pieces(problem: Problem, tokenizer: Tokenizer, ends: Sequence[int]) -> list[Piece]:
    """A prompt with replies as the chat template writes it, cut where each of them begins and ends.

    A reply begins where the template asks for one, given the messages before it. So it is learned behind the text that it is
    asked for with when the model writes.

    Args:
        problem: with `replies`.
        tokenizer: that of the model.
        ends: the tokens that end a reply.

    Raises:
        ConfigError: the template changes turns once others follow, or ends replies with none of `ends`.
    """
    messages = [message for message in problem.prompt if not isinstance(message, str)]
    whole, marks = rendered(tokenizer, messages, problem.place), [tokenizer.decode([end]) for end in ends]
    found: list[Piece] = []
    done = 0
    for at in replies(problem):
        begin, behind = _reply(whole, rendered(tokenizer, messages[:at], problem.place), messages[at]["content"], problem.place)
        rest = whole[behind:].lstrip()
        mark = next((mark for mark in marks if rest.startswith(mark)), None)
        if mark is None:
            written, _, _ = rest.partition("\n")
            said = f"ends replies with {written[:20]!r}, and the model ends them with {' or '.join(map(repr, marks))}"
            raise _refusal(problem.place, said, f"Make that the tokenizer's eos_token, or {_LAST_ALONE}.")
        end = len(whole) - len(rest) + len(mark)
        found += [Piece(whole[done:begin], learned=False), Piece(whole[begin:end], learned=True)]
        done = end
    return [*found, Piece(whole[done:], learned=False)]


def _reply(whole: str, asked: str, content: str, place: str) -> tuple[int, int]:
    """Where a reply begins in a whole conversation, and where its content is over.

    Args:
        whole: the conversation.
        asked: the messages before the reply, and the beginning of one.
        content: the reply.
        place: where a person finds the conversation.
    """
    text = content.strip()
    begin = whole.find(text, len(asked))
    if not whole.startswith(asked) or begin < 0 or whole[len(asked) : begin].strip():
        same = next((at for at, (a, b) in enumerate(zip(whole, asked, strict=False)) if a != b), min(len(whole), len(asked)))
        said = f"changes turns once others follow: it writes {whole[same : same + 40]!r} where it asked for {content[:40]!r}"
        raise _refusal(place, said, f"Use one that leaves earlier turns as they are, or {_LAST_ALONE}.")
    return len(asked), begin + len(text)


def _refusal(place: str, said: str, remedy: str) -> ConfigError:
    return ConfigError("data.mask_history", f"the chat template {said}" + (f" ({place})" if place else ""), remedy)
