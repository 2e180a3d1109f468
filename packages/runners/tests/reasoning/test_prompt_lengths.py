"""Prompts that are too long are found before anything is drawn, and left out or named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.core.registry import TASKS
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.reasoning.evaluation import problem_protocol
from rlinf.runners.reasoning.generation.prompt_groups import ProblemSource
from rlinf.runners.reasoning.generation.prompt_lengths import fitting_prompts
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import ReasoningTopology

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=2, reward_ranks=1)


@dataclass(frozen=True)
class Lengths:
    """Problems with prompts of the given lengths, the same in both splits."""

    lengths: tuple[int, ...] = (1, 40, 2, 50, 3)

    def check(self, place: str) -> None: ...

    def problems(self, split: str) -> Sequence[Problem]:
        return [Problem(prompt="a" * n, answer="a", id=i, place=f"data.jsonl:{i + 1}") for i, n in enumerate(self.lengths)]


TASKS.register("toy_lengths")(Lengths)


def found(data: dict[str, Any], context: int | None = None, **keys: Any) -> Any:
    """What two rollout workers find, as the runner gets it."""
    data["data"] = {"type": "toy_lengths", "rollout_batch_size": 4, "val_problems": 2, **keys}
    cfg = read_reasoning(data)
    answers: list[Any] = []
    for rank in (0, 1):
        with injected(WorkerContext(group="rollout", rank=rank, world_size=2)):
            worker = ReasoningRolloutWorker(cfg)
        worker.init_worker(TOPOLOGY)
        worker._engine.generator.context_length = context  # type: ignore[union-attr]
        answers.append(worker.measure_prompts(("train", "validation")))
    return cfg, answers


def test_long_prompts_are_left_out_and_counted(reasoning_data: dict[str, Any]) -> None:
    """By the key, or by what leaves room for 8 tokens of a response in the generator's context; the smaller of both counts."""
    short, long = {"max_prompt_length": 39}, {"max_prompt_length": 45}
    for context, keys in ((None, short), (47, {}), (48, short), (47, long)):
        cfg, answers = found(reasoning_data, context, **keys)
        prompts = fitting_prompts(cfg, answers)
        assert [list(prompts[split].numbers) for split in ("train", "validation")] == [[0, 2, 4]] * 2
        assert prompts["train"].left_out == 2
        limit = answers[0][0].limit
        message = f"2 of 5 prompts of 'train' have more than {limit} tokens, the first is data.jsonl:2 (40); they are left out"
        assert prompts["train"].told == f"data: {message}"
    for context, keys in ((None, {}), (58, {}), (1000, {"max_prompt_length": 50})):
        cfg, answers = found(reasoning_data, context, **keys)
        assert fitting_prompts(cfg, answers)["train"].told == ""
        assert list(fitting_prompts(cfg, answers)["train"].numbers) == [0, 1, 2, 3, 4]


def test_or_refused_by_file_and_line(reasoning_data: dict[str, Any]) -> None:
    cfg, answers = found(reasoning_data, max_prompt_length=45, filter_overlong_prompts=False)
    with pytest.raises(ConfigError, match=r"data\.filter_overlong_prompts: 1 of 5 prompts .* the first is data\.jsonl:4 \(50\)"):
        fitting_prompts(cfg, answers)
    cfg, answers = found(reasoning_data, max_prompt_length=1)
    with pytest.raises(ConfigError, match=r"data\.val_problems: 1 problems of 'validation' are left, 2 are needed: 4 of 5"):
        fitting_prompts(cfg, answers)
    cfg, answers = found(reasoning_data, lengths=[40, 50], max_prompt_length=30)
    with pytest.raises(ConfigError, match=r"data\.max_prompt_length: 0 problems of 'train' are left, 1 are needed"):
        fitting_prompts(cfg, answers)


def test_an_empty_prompt_is_named(reasoning_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"data\.jsonl:2: expected a prompt, found an empty one"):
        found(reasoning_data, lengths=[1, 0, 3])


def test_the_rest_is_drawn_as_if_there_were_no_other() -> None:
    kept, small = ProblemSource(9, seed=3, shuffle=True), ProblemSource(3, seed=3, shuffle=True)
    kept.keep([2, 5, 7])
    drawn = [prompt_group.problem for prompt_group in kept.draw(6)]
    assert drawn == [[2, 5, 7][prompt_group.problem] for prompt_group in small.draw(6)]
    assert sorted(drawn[:3]) == sorted(drawn[3:]) == [2, 5, 7]


def test_the_protocol_says_how_many_problems_were_left_out(reasoning_data: dict[str, Any]) -> None:
    """Whether anything could have been left out changes nothing; what was left out does."""
    cfg = read_reasoning(reasoning_data)
    cfg = replace(cfg, data=replace(cfg.data, val_problems=3))
    whole, fewer = problem_protocol(cfg, range(4), final=False), problem_protocol(cfg, [0, 2, 3], final=False)
    assert (whole.problems, fewer.problems) == ((0, 1, 2), (0, 2, 3))
    assert whole.hash != fewer.hash
    other = replace(cfg, data=replace(cfg.data, max_prompt_length=500, filter_overlong_prompts=False))
    assert problem_protocol(other, range(4), final=False).hash == whole.hash
