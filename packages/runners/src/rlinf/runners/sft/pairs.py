"""Pairs of responses, of which one was preferred: from rows to tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from rlinf.core.errors import ConfigError
from rlinf.core.language.answered import answered_tokens, read_messages, split_reply
from rlinf.core.language.problems import Problem, Split, Tokenizer
from rlinf.runners.reasoning.language import ChecksCorpus, problems_of
from rlinf.runners.sft.schema import PairsDataConfig, RewardModelConfig


@dataclass(frozen=True, slots=True)
class Pair:
    """Two whole texts as tokens, prompt and response, which begin alike."""

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


def read_pairs(data: PairsDataConfig, split: Split, tokenizer: Tokenizer, *, limit: int | None = None) -> list[Pair]:
    """The pairs of a split that are short enough.

    Args:
        data: where they come from.
        split: which of them.
        tokenizer: that of the reward model.
        limit: only the first so many problems.

    Raises:
        ConfigError: a row has no such pair, or none is short enough.
    """
    pairs: list[Pair] = []
    for problem in problems_of(data.task, split)[:limit]:
        chosen, rejected = _texts(data, problem)
        first, second = (answered_tokens(tokenizer, problem.prompt, text) for text in (chosen, rejected))
        pairs.append(Pair(tuple(first), tuple(second)))
    longest = [max(len(pair.chosen), len(pair.rejected)) for pair in pairs]
    short = [pair for pair, length in zip(pairs, longest, strict=True) if length <= data.max_length]
    if not short:
        problem = f"expected texts of at most {data.max_length} tokens in '{split}', the shortest of {len(pairs)} pairs has "
        raise ConfigError("data.max_length", f"{problem}{min(longest, default=0)}", "Raise it.")
    return short


def check_pairs(cfg: RewardModelConfig) -> None:
    """Refuses rows without a pair, and a model whose tokens can't write them, before a worker starts.

    Raises:
        ConfigError: with the place of the row, or the characters that are missing.
    """
    texts = [*texts_of(cfg.data, "train"), *texts_of(cfg.data, "validation")]
    model = cfg.actor.model.config
    if isinstance(model, ChecksCorpus):
        model.check_corpus(lambda: texts)


def texts_of(data: PairsDataConfig, split: Split) -> Iterator[str]:
    """The prompts and responses of a split.

    Raises:
        ConfigError: a row has no such pair.
    """
    for problem in problems_of(data.task, split):
        yield from [problem.prompt] if isinstance(problem.prompt, str) else [each["content"] for each in problem.prompt]
        yield from _texts(data, problem)


def _texts(data: PairsDataConfig, problem: Problem) -> tuple[str, str]:
    """What was chosen and what was rejected."""
    chosen, rejected = (_text(problem, key) for key in (data.chosen_key, data.rejected_key))
    return chosen, rejected


def _text(problem: Problem, key: str) -> str:
    """A response: a text, or messages that end with it, before which there is nothing or the prompt."""
    found, place = problem.row.get(key), problem.place or f"problem {problem.id}"
    if isinstance(found, str):
        return found
    if not isinstance(found, list | tuple):
        remedy = (
            "Choose a task with pairs, such as data.type dataset, and name its fields in data.chosen_key and data.rejected_key."
        )
        raise ConfigError(place, f"expected a text or messages in '{key}', found {found!r:.80}", remedy)
    messages = read_messages(cast("object", found), f"{place} {key}")
    before, reply = split_reply(messages)
    if reply is None:
        unlike = f"expected messages of which the last is the assistant's, found one of '{messages[-1]['role']}'"
        raise ConfigError(f"{place} {key}", unlike, "Remove the row.")
    asked = problem.prompt if not isinstance(problem.prompt, str) else ({"role": "user", "content": problem.prompt},)
    # A system message that the task puts first is in none of the two.
    if before and tuple(asked[-len(before) :]) != before:
        unlike = f"expected the prompt before the last message, found {before!r:.80}"
        raise ConfigError(f"{place} {key}", unlike, "A pair is two replies to one prompt; remove the row.")
    return reply


def batches_of(pairs: Sequence[Pair], size: int | None) -> Iterator[Sequence[Pair]]:
    """Micro-batches of at most `size` pairs, those of like length together."""
    ordered = sorted(pairs, key=lambda pair: max(len(pair.chosen), len(pair.rejected)))
    step = size or len(ordered)
    return (ordered[begin : begin + step] for begin in range(0, len(ordered), step))
