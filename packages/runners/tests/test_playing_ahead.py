"""What overlaps with training: when iterations begin, which weights they have, what waits for whom, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import Trajectory
from rlinf.core.errors import CheckpointError, ConfigError, RLinfError
from rlinf.runners.embodied.collection import Collection, read_played, write_played
from rlinf.runners.embodied.playing.arrivals import Arrivals
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Channels, Interaction, NewWeights, request_queue
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.training.versions import Versions, lag_scalars


def test_lags_are_counted_by_decision() -> None:
    versions = Versions()
    versions.publish(0, 4, 8, 12)
    assert versions.lags({12: 3, 4: 5, 5: 1, 0: 1}) == {0: 3, 2: 6, 3: 1}, "version 5 was never given out: it is older than 8"
    assert lag_scalars({0: 3, 2: 6, 3: 1}) == {
        "rollout/lag": pytest.approx(1.5),
        "rollout/lag_p50": 2.0,
        "rollout/lag_max": 3.0,
        "rollout/lag_0": 0.3,
        "rollout/lag_2": 0.6,
        "rollout/lag_3": 0.1,
    }
    assert lag_scalars({0: 1, 1: 1})["rollout/lag_p50"] == 0.0, "the lower one of two"
    assert lag_scalars({}) == {}


class Handle:
    """A call that ends when it is told to."""

    label = "workers.call()"

    def __init__(self, result: Any = None, *, ended: bool = True) -> None:
        self.result, self.ended = result, ended

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout: float | None = None) -> Any:
        assert self.ended, "waited for what goes on"
        return self.result

    def consume_durations(self) -> dict[str, float]:
        return {"call": 3.0, "simulate": 2.0}


class Groups:
    """Workers that write down what they are asked, and a channel for requests."""

    name = "workers"
    world_size = 2
    restarts = (0, 0)

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.playing: dict[int, Handle] = {}
        self.version = 0

    def execute_on(self, rank: int) -> Groups:
        self.rank = rank
        return self

    def interact(self, step: int, *channels: Any) -> Handle:
        if self.rank:
            return Handle([])
        self.asked.append(("play", step))
        return Handle([Interaction(episodes=[], env_steps=4, decisions={self.version: 4})])

    def generate(self, step: int, *channels: Any) -> Handle:
        self.playing[step] = Handle([4], ended=False)
        return self.playing[step]

    def sync_model_from_actor(self, number: int) -> Handle:
        self.asked.append(("take", number))
        return Handle([self.version], ended=not any(not handle.ended for handle in self.playing.values()))

    def sync_model_to_rollout(self) -> Handle:
        self.asked.append("send")
        return Handle([self.version])

    def put(self, item: NewWeights, *, key: Any) -> None:
        self.asked.append((item.number, key))


def collection(data: dict[str, Any], max_lag: int, max_steps: int = 4) -> tuple[Collection, Groups]:
    data["rollout"], data["runner"] = {"max_lag": max_lag}, {**data["runner"], "max_steps": max_steps}
    groups: Any = Groups()
    channels = Channels(requests=groups, answers=groups, trajectories=groups)
    return Collection(read_embodied(data), groups, groups, channels, Phases(5.0)), groups


def test_an_iteration_begins_when_the_weights_that_it_may_lag_behind_are_out(toy_data: dict[str, Any]) -> None:
    playing, workers = collection(toy_data, max_lag=2)
    actor: Any = workers
    for step, (begun, told) in enumerate([([0, 1, 2], []), ([3], [1, 2]), ([], [2, 3]), ([], [3])]):
        workers.asked.clear()
        playing.give_weights(actor)
        workers.version += 8
        announced = [(step + 1, request_queue(rank, later)) for later in told for rank in (0, 1)]
        # The call in case that nobody serves any more comes first: what is begun later is behind it.
        assert workers.asked == [("take", step + 1), "send", *announced]
        playing.run_ahead(step)
        assert workers.asked[len(announced) + 2 :] == [("play", later) for later in begun], "each iteration is begun once"
        workers.playing[step].ended = True
        played = playing.finish(step, Handle([4]))  # pyright: ignore[reportArgumentType]
        assert playing.times == {"time/workers/simulate": 2.0}, "not the call itself"
        playing.lag(played)


def test_without_a_lag_nothing_is_ahead(toy_data: dict[str, Any]) -> None:
    playing, workers = collection(toy_data, max_lag=0)
    actor: Any = workers
    for step in range(2):
        workers.asked.clear()
        playing.give_weights(actor)
        playing.run_ahead(step)
        assert workers.asked == [("take", step + 1), "send", ("play", step)]
        assert request_queue(0, None) == 0, "requests have one queue for each worker"
        workers.playing[step].ended = True
        assert playing.lag(playing.finish(step, Handle([4]))) == {}  # pyright: ignore[reportArgumentType]
        assert playing.ahead == []


def test_decisions_that_are_lost_or_too_old_end_the_run(toy_data: dict[str, Any]) -> None:
    playing, workers = collection(toy_data, max_lag=1)
    playing.versions.publish(0)
    playing.run_ahead(0)
    workers.playing[0].ended = True
    with pytest.raises(RLinfError, match="sent 4 decisions of iteration 0, and the actor received 3"):
        playing.finish(0, Handle([3]))  # pyright: ignore[reportArgumentType]
    played = [Interaction(episodes=[], env_steps=4, decisions={0: 3, 1: 1})]
    playing.versions.publish(1)
    assert playing.lag(played)["rollout/lag_max"] == 1.0
    playing.versions.publish(2)
    with pytest.raises(RLinfError, match=r"at most 1 weight updates old \(rollout\.max_lag\), found 2"):
        playing.lag(played)


def test_weights_are_taken_once_and_between_two_decisions(toy_data: dict[str, Any], queues: Any) -> None:
    toy_data["rollout"] = {"max_lag": 1}
    worker: Any = MultiStepRolloutWorker(read_embodied(toy_data))
    taken: list[str] = []

    def recv(*given: Any) -> Any:
        taken.append("weights")
        return SimpleNamespace(version=5)

    worker.cfg = SimpleNamespace(actor=SimpleNamespace(weight_syncer=SimpleNamespace(sync=SimpleNamespace(recv=recv))))
    worker._policy = SimpleNamespace(weights=dict, load=lambda weights: taken.append("loaded"), version=5)
    worker._topology = SimpleNamespace(actor="actor")
    assert worker.sync_model_from_actor(1) == 5
    assert worker.sync_model_from_actor(1) == 5
    assert taken == ["weights", "loaded"], "announced twice, taken once"
    worker.sync_model_from_actor(2)
    worker.sync_model_from_actor()
    assert taken == ["weights", "loaded"] * 3


def part(env: int, epoch: int) -> Any:
    rows = Trajectory.of(
        context={"seen": {"states": np.full((1, 2, 3), 10 * env + epoch, np.float32)}},
        action=np.zeros((1, 2, 1, 1), np.float32),
        logprob=np.zeros((1, 2), np.float32),
        reward=np.full((1, 2), 10 * env + epoch, np.float32),
        version=np.array([[3, 4]]),
    )
    return replace(rows, group=np.array([env]))


def queued(queues: Any, parts: Sequence[Any]) -> Any:
    """A fourth rollout epoch of each env worker."""
    channel = queues()
    for env, rows in enumerate(parts):
        channel.put((env, rows, 3), key=0)
    return channel


def test_what_came_early_is_kept_for_its_iteration_and_for_a_checkpoint(queues: Any, tmp_path: Path) -> None:
    channel = queues()
    for env, epoch in [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]:
        channel.put((env, part(env, epoch), epoch), key=0)
    arrivals = Arrivals(0)
    assert [float(p.reward[0, 0]) for p in arrivals.next(channel, 2)] == [0.0, 10.0]
    assert channel.qsize(key=0) == 2, "no more is waited for than that"
    arrivals.wait_for(2, channel, 2)
    arrivals.save(tmp_path)
    resumed = Arrivals(0)
    assert resumed.load(tmp_path)
    for epoch in (1, 2):
        kept, found = arrivals.next(channel, 2), resumed.next(channel, 2)
        assert [float(p.reward[0, 0]) for p in found] == [epoch, 10.0 + epoch]
        for one, two in zip(kept, found, strict=True):
            assert one.version.tolist() == two.version.tolist() == [[3, 4]]
            assert float(two.context["seen"]["states"].sum()) == float(one.context["seen"]["states"].sum())
            assert two.value is None
    assert not Arrivals(1).load(tmp_path), "of another actor there is nothing"
    arrivals.wait_for(1, queued(queues, (part(0, 3), part(1, 3))), 2)
    with pytest.raises(CheckpointError, match=r"played_ahead_0\.safetensors: can't be written"):
        arrivals.save(tmp_path / "missing")


def test_what_comes_once_more_is_dropped_and_what_is_lost_is_noticed(queues: Any) -> None:
    """An env worker that was started again plays its iteration from the start."""
    channel, arrivals = queues(), Arrivals(0)
    for epoch in (0, 1, 0, 1, 2, 4):
        channel.put((0, part(0, epoch), epoch), key=0)
    assert [float(arrivals.next(channel, 1)[0].reward[0, 0]) for _ in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(RLinfError, match=r"expected rollout epoch 3 of env\[0\], found 4"):
        arrivals.next(channel, 1)


def test_the_order_in_a_checkpoint_is_that_of_numbers(queues: Any, tmp_path: Path) -> None:
    """So that the tenth env worker, or rollout epoch, does not come before the second."""
    channel, arrivals, resumed = queues(), Arrivals(0), Arrivals(0)
    for env, epoch in product(range(12), range(11)):
        channel.put((env, part(env, epoch), epoch), key=0)
    arrivals.wait_for(11, channel, 12)
    arrivals.save(tmp_path)
    assert resumed.load(tmp_path)
    for epoch in range(11):
        assert [float(p.reward[0, 0]) for p in resumed.next(channel, 12)] == [10.0 * env + epoch for env in range(12)]


def test_what_env_workers_said_is_kept_for_a_checkpoint(tmp_path: Path) -> None:
    played = [
        [Interaction(episodes=[], env_steps=7, decisions={3: 4, 11: 2})],
        [Interaction(episodes=[], env_steps=1, decisions={})],
    ]
    assert read_played(tmp_path) == []
    write_played(tmp_path, played)
    assert read_played(tmp_path) == played


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("rollout", "offload", True), ("actor", "offload", True), ("env", "offload", True), ("runner", "use_training_pipeline", True)],
)
def test_what_can_not_overlap_is_refused_with_its_key(toy_data: dict[str, Any], section: str, key: str, value: Any) -> None:
    toy_data["rollout"] = {"max_lag": 2}
    toy_data["env"]["train"] |= {"rollout_epoch": 2, "auto_reset": False}
    read_embodied(toy_data)
    toy_data[section] = {**toy_data.get(section, {}), key: value}
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: .*rollout\.max_lag 2.*rollout\.max_lag: 0"):
        read_embodied(toy_data)
    toy_data["rollout"]["max_lag"] = 0
    read_embodied(toy_data)


def test_a_lag_is_a_count(toy_data: dict[str, Any]) -> None:
    toy_data["rollout"] = {"max_lag": -1}
    with pytest.raises(ConfigError, match=r"rollout\.max_lag: expected at least 0, found -1"):
        read_embodied(toy_data)
