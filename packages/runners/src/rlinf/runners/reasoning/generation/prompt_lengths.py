"""Which problems have prompts that fit: measured once when a run begins, so that none ends it in mid-training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlinf.core.capabilities import HasContext
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import Generator
from rlinf.core.language.problems import Split
from rlinf.runners.reasoning.language import Problems
from rlinf.runners.reasoning.schema import ReasoningConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompt:
    """A prompt that is too long."""

    problem: int
    """The place of the problem in its split."""
    tokens: int
    """How many it has."""
    name: str
    """What a person finds it by, such as `file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLengths:
    """What a rollout worker found in its share of a split."""

    split: Split
    problems: int
    """How many the whole split has."""
    limit: int | None
    """Tokens of the longest prompt that is taken; None for any."""
    too_long: tuple[LongPrompt, ...]


def longest_prompt(cfg: ReasoningConfig, generator: Generator) -> int | None:
    """Tokens of the longest prompt that leaves room for a response, and that `data.max_prompt_length` allows; None for any."""
    whole = generator.context_length if isinstance(generator, HasContext) else None
    room = None if whole is None else whole - cfg.rollout.sampling_params.max_new_tokens
    asked = cfg.data.max_prompt_length
    return min(room, asked) if room is not None and asked is not None else asked if room is None else room


def measure(problems: Problems, split: Split, limit: int | None, *, rank: int, ranks: int) -> PromptLengths:
    """The prompts of one rank's share of a split that are longer than `limit`.

    Raises:
        ConfigError: a prompt is empty; the message says where it stands.
    """
    count = problems.count(split)
    found: list[LongPrompt] = []
    for number in range(rank, count, ranks):
        tokens = problems.length(split, number, enough=limit)
        if not tokens:
            raise ConfigError(f"{problems.name(split, number)}", "expected a prompt, found an empty one", "Remove it.")
        if limit is not None and tokens > limit:
            found.append(LongPrompt(problem=number, tokens=tokens, name=problems.name(split, number)))
    return PromptLengths(split=split, problems=count, limit=limit, too_long=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The problems of a split whose prompts fit."""

    numbers: Sequence[int]
    """Their places in the split."""
    left_out: int
    """How many do not fit."""
    told: str
    """What a person should know of it; "" for nothing."""


def fitting_prompts(cfg: ReasoningConfig, found: Sequence[Sequence[PromptLengths]]) -> dict[Split, Fitting]:
    """What is left of each split.

    Args:
        cfg: the configuration of the run.
        found: by rollout worker, then by split.

    Raises:
        ConfigError: a prompt is too long and `data.filter_overlong_prompts` is off, or too few are left.
    """
    return {each[0].split: _fitting(cfg, each) for each in zip(*found, strict=True)}


def _fitting(cfg: ReasoningConfig, lengths: Sequence[PromptLengths]) -> Fitting:
    split, limit, whole = lengths[0].split, lengths[0].limit, lengths[0].problems
    too_long = sorted((each for found in lengths for each in found.too_long), key=lambda each: each.problem)
    if not too_long:
        return Fitting(numbers=range(whole), left_out=0, told="")
    first = too_long[0]
    found = (
        f"{len(too_long)} of {whole} prompts of '{split}' have more than {limit} tokens, the first is {first.name} ({first.tokens})"
    )
    room = "rollout.max_model_len must hold prompt and sampling_params.max_new_tokens"
    if not cfg.data.filter_overlong_prompts:
        raise ConfigError("data.filter_overlong_prompts", found, f"Set it to true to leave them out; {room}.")
    dropped = {each.problem for each in too_long}
    numbers = [number for number in range(whole) if number not in dropped]
    _expect_enough(cfg, split, len(numbers), f"{found}; {room}")
    return Fitting(numbers=numbers, left_out=len(too_long), told=f"data: {found}; they are left out")


def _expect_enough(cfg: ReasoningConfig, split: Split, left: int, why: str) -> None:
    asked: dict[str, Any] = {"val_problems": cfg.data.val_problems, "final_problems": cfg.data.final_problems}
    wanted = {"max_prompt_length": 1} if split == "train" else asked
    for name, count in wanted.items():
        if count is not None and count > left:
            raise ConfigError(
                f"data.{name}", f"{left} problems of '{split}' are left, {count} are needed: {why}", "Allow longer ones."
            )
