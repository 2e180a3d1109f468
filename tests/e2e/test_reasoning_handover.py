"""`cluster.auto_scheduler`: groups go from a rollout worker to another while they are written, and the run learns the same."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import HERE, ReasoningApp

from rlinf.core.language.generation import SamplingConfig
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import Channels, ReasoningTopology, WrittenGroup

MOVES = "cluster.auto_scheduler={policy: forecast, move_s: 0}"
TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, reward_ranks=1)


class Queue:
    def __init__(self) -> None:
        self.items: dict[int, list[Any]] = {}

    def put(self, item: WrittenGroup, *, key: str, async_op: bool) -> Any:
        self.items[item.prompt_group.group] = [(part.tokens.tolist(), part.logprob) for part in item.completions]
        return asyncio.sleep(0)


def _worker() -> ReasoningRolloutWorker:
    recipe = compose_recipe(HERE / "config", "toy_reasoning", ["rollout.sampling_params.max_new_tokens=24"])
    found = ReasoningRolloutWorker(read_reasoning(recipe.data))
    found.init_worker(TOPOLOGY)
    return found


def test_the_tokens_of_a_real_generator_do_not_depend_on_where_they_are_written() -> None:
    """A sequence that has moved is read again, and goes on with the same random numbers."""
    groups = tuple(PromptGroup(group=g, problem=g) for g in range(6))
    sampling = SamplingConfig(max_new_tokens=24)
    job = JobSpec(key="k", split="train", prompt_groups=groups, needed=6, samples=4, sampling=sampling, shown=0)
    whole, moved = Queue(), Queue()

    def channels(queue: Any) -> Channels:
        return Channels(**{field.name: queue for field in fields(Channels)})

    async def moving() -> int:
        await _worker().generate(job, channels(whole))
        giver, taker = _worker(), _worker()
        writing = asyncio.ensure_future(giver.generate(job, channels(moved)))
        while giver.engine.generator.in_flight < 4 or not giver.engine.generator.cached_tokens:
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        given = await giver.hand_over("k", 3)
        taken = await taker.generate(job.handed_over(given, 0), channels(moved))
        await writing
        assert len(given) == 3
        return taken.resumed

    assert asyncio.run(moving()) > 0, "something was begun when it moved"
    assert sorted(moved.items) == sorted(whole.items) == list(range(6))
    for group, members in whole.items.items():
        assert [tokens for tokens, _ in moved.items[group]] == [tokens for tokens, _ in members]
        for (_, found), (_, expected) in zip(moved.items[group], members, strict=True):
            assert found == pytest.approx(expected, abs=1e-5)


def told(app: ReasoningApp) -> list[str]:
    """Every response of a run, in an order that does not depend on who wrote it."""
    return sorted((app.folder / "transcripts.jsonl").read_text().splitlines())


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_groups_move_is_the_one_whose_groups_stay(tmp_path: Path) -> None:
    stays, moves = ReasoningApp(tmp_path / "stays"), ReasoningApp(tmp_path / "moves")
    # One request at a time on each worker, of which the first has a group more. If both end at once none moves, hence five times.
    one = ("data.rollout_batch_size=9", "rollout.max_running_requests=1")
    short = ("runner.val_check_interval=0", "runner.max_steps=5", "data.val_problems=4", *one)
    stays.train(*short)
    moves.train(*short, MOVES, backend="ray")
    assert max(row["rollout/groups_moved"] for row in moves.rows().values()) > 0, "nothing was tested"
    assert all(row["rollout/groups_moved"] == 0 for row in stays.rows().values())
    assert told(moves) == told(stays)
    for step, row in moves.rows().items():
        assert row["train/loss"] == pytest.approx(stays.rows()[step]["train/loss"], abs=1e-5)
        assert row["rollout/tokens"] == stays.rows()[step]["rollout/tokens"]
