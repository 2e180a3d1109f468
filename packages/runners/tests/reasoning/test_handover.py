"""Groups that go from a rollout worker to another while they are written: which, when, and that nothing changes but who writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from reasoning_toy import Call, fresh, job_of
from reasoning_toy import channels as new_channels

from rlinf.core.cluster.handover import Handover, Load
from rlinf.core.errors import ConfigError, WorkerError
from rlinf.runners.reasoning.generation.prompt_groups import JobSpec, PromptGroup
from rlinf.runners.reasoning.generation.running import GenerationJob, even_out
from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker
from rlinf.runners.reasoning.rules import read_reasoning
from rlinf.runners.reasoning.topology import ReasoningTopology, WrittenGroup

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, reward_ranks=1)


def job(count: int, needed: int | None = None) -> JobSpec:
    return job_of("k", fresh(count), count if needed is None else needed, longest=40)


def worker(data: dict[str, Any]) -> ReasoningRolloutWorker:
    found = ReasoningRolloutWorker(read_reasoning(data))
    found.init_worker(TOPOLOGY)
    return found


def by_group(channels: Any) -> dict[int, list[list[int]]]:
    items: list[WrittenGroup] = channels.completions.items.get("k/0", [])
    found = {item.prompt_group.group: [part.tokens.tolist() for part in item.completions] for item in items}
    assert len(found) == len(items), "each group once"
    return found


def test_a_group_that_moves_says_what_it_would_have_said(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    whole, moved = new_channels(new_queue), new_channels(new_queue)
    asyncio.run(worker(reasoning_data).generate(job(6), whole))

    async def moving() -> int:
        giver, taker = worker(reasoning_data), worker(reasoning_data)
        writing = asyncio.ensure_future(giver.generate(job(6), moved))
        for _ in range(6):
            await asyncio.sleep(0)
        under_way, seconds = await giver.under_way("k")
        assert 0 < under_way <= 6
        assert seconds > 0
        groups = await giver.hand_over("k", 3)
        own = await writing
        assert (await giver.under_way("k"))[0] == 0
        taken = await taker.generate(job(6).handed_over(groups, 0), moved)
        assert taken.resumed == sum(group.written for group in groups) > 0
        assert own.tokens + taken.tokens == sum(len(part) for parts in by_group(moved).values() for part in parts)
        return len(groups)

    assert asyncio.run(moving()) == 3
    assert by_group(moved) == by_group(whole)


def test_everything_can_go(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    between = new_channels(new_queue)

    async def moving() -> None:
        giver = worker(reasoning_data)
        writing = asyncio.ensure_future(giver.generate(job(2), between))
        await asyncio.sleep(0)
        assert len(await giver.hand_over("k", 9)) == 2
        assert (await writing).tokens == 0
        assert await giver.hand_over("k", 9) == ()

    asyncio.run(moving())


def test_where_some_are_surplus_none_goes(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    between = new_channels(new_queue)

    async def moving() -> None:
        giver = worker(reasoning_data)
        writing = asyncio.ensure_future(giver.generate(job(6, needed=3), between))
        await asyncio.sleep(0)
        assert await giver.hand_over("k", 3) == ()
        assert len((await writing).aborted) == 3

    asyncio.run(moving())


# Who asks whom.


@dataclass
class Rollout:
    """Two workers, of which the first has drained; the second is done when its groups were taken."""

    left: list[int] = field(default_factory=lambda: [0, 6])
    said: list[str] = field(default_factory=list[str])
    world_size: int = 2
    dies: bool = False

    def execute_on(self, rank: int) -> Any:
        rollout = self

        class Rank:
            def under_way(self, key: str) -> Call:
                return Call("under_way", [(rollout.left[rank], 1.0)])

            def hand_over(self, key: str, count: int) -> Call:
                rollout.said.append(f"{rank} gives {count}")
                if rollout.dies:
                    return Call("hand_over", WorkerError("rollout", 1, "hand_over", "died"))
                rollout.left[rank] -= count
                return Call("hand_over", [tuple(PromptGroup(group=g, problem=0) for g in range(count))])

            def generate(self, job: JobSpec, channels: Any) -> Call:
                rollout.said.append(f"{rank} takes {len(job.prompt_groups)} of {job.origin}")
                return Call("generate", ["written"])

        return Rank()


class HalfOfIt:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def next_handover(self, loads: Sequence[Load]) -> Handover | None:
        return Handover(giver=1, taker=0, items=loads[1].items // 2) if loads[1].items > 1 else None

    def took(self, seconds: float) -> None:
        self.seconds.append(seconds)


def evened_out(rollout: Rollout) -> GenerationJob:
    """A job whose second worker is done when all but one of its groups were taken."""
    running = GenerationJob(job(8), [Call("0", ["a"]), Call("1", ["b"], lambda: rollout.left[1] <= 1)])
    stage: Any = rollout
    even_out(running, HalfOfIt(), stage, None, Call("score", [], lambda: False), 5.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return running


def test_who_has_drained_gets_half_again_and_again() -> None:
    rollout = Rollout()
    running = evened_out(rollout)
    assert rollout.said == ["1 gives 3", "0 takes 3 of 1", *["1 gives 1", "0 takes 1 of 1"] * 2]
    assert [len(moved.job.prompt_groups) for moved in running.moved] == [3, 1, 1]
    assert running.tail(0) is running.moved[-1].handle


def test_a_worker_that_dies_meanwhile_is_left_to_who_waits_for_the_job() -> None:
    rollout = Rollout(dies=True)
    running = evened_out(rollout)
    assert rollout.said == ["1 gives 3"]
    assert not running.moved


def test_what_can_not_move_is_refused(reasoning_data: dict[str, Any]) -> None:
    on = {"auto_scheduler": {"policy": "forecast"}}
    data = {**reasoning_data, "cluster": {**reasoning_data.get("cluster", {}), **on}}
    assert read_reasoning(data).can_move_work
    data["rollout"] = {**data["rollout"], "oversample": 1.5}
    with pytest.raises(ConfigError, match=r"cluster\.auto_scheduler\.policy: groups move while they are written where all of"):
        read_reasoning(data)
