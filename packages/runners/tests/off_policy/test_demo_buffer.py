"""Demonstrations beside the replay buffer: which share of a batch they are, who reads which, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import off_policy_toy as _toys
import pytest

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.offline import OfflineEpisode
from rlinf.core.registry import DATASETS
from rlinf.core.replay import ReplayBuffer
from rlinf.core.trajectory import Trajectory
from rlinf.runners.off_policy.demo_buffer import Demonstrations
from rlinf.runners.off_policy.rules import check_actions, read_off_policy

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(1,), dtype="float32")},
    action=ArraySpec(shape=(1,), dtype="float32"),
    max_episode_steps=9,
)
FIRST = 1000.0
"""From which on an observation is one of a demonstration."""


@dataclass(frozen=True)
class Recorded:
    """Four episodes of five steps: observation t of episode n is 1000 + 100 n + t."""

    width: int = 1
    key: str = "states"

    name = "somewhere"
    features = ("observation.state", "action")
    lacks = ()

    def check(self, place: str) -> None: ...

    def open(self) -> Any:
        return self

    def __len__(self) -> int:
        return 4

    @property
    def spec(self) -> EnvSpec:
        return replace(SPEC, observation={self.key: ArraySpec(shape=(self.width,), dtype="float32")})

    def episodes(self) -> Iterator[OfflineEpisode]:
        for number in range(4):
            yield OfflineEpisode(
                number=number,
                observation={self.key: (FIRST + 100 * number + np.arange(6.0))[:, None]},
                action=np.zeros((5, 1), np.float32),
                reward=np.ones(5, np.float32),
                terminated=np.zeros(5, bool),
                truncated=np.arange(5) == 4,
            )


DATASETS.register("toy_recorded")(Recorded)
assert _toys


@pytest.fixture
def data(off_policy_data: dict[str, Any]) -> dict[str, Any]:
    off_policy_data["algorithm"] |= {
        "gamma": 0.5,
        "replay_buffer": {"capacity": 60, "n_step": 2},
        "demo_buffer": {"type": "toy_recorded"},
    }
    return off_policy_data


def online() -> ReplayBuffer:
    buffer = ReplayBuffer(capacity=40, n_step=2, gamma=0.5)
    steps = np.arange(11, dtype=np.float32)
    rows = Trajectory.of(
        context={},
        action=np.zeros((1, 10, 1, 1), np.float32),
        logprob=np.zeros((1, 10), np.float32),
        reward=np.full((1, 10), 3.0, np.float32),
        episode=np.array([0]),
        observation={"states": steps[None, :, None]},
    )
    buffer.add(rows, np.array([0]))
    return buffer


def of(data: dict[str, Any], rank: int = 0, world_size: int = 1) -> Demonstrations:
    made = Demonstrations.of(read_off_policy(data), SPEC, rank=rank, world_size=world_size)
    assert made is not None
    return made


def states(batch: Any) -> Any:
    return batch.observation["states"][:, 0]


@pytest.mark.parametrize(("fraction", "size", "share"), [(0.5, 12, 6), (0.5, 7, 3), (0.3, 10, 3), (0.25, 12, 3), (0.05, 12, 0)])
def test_a_share_of_a_batch_is_demonstrated(data: dict[str, Any], fraction: float, size: int, share: int) -> None:
    data["algorithm"]["demo_buffer"] |= {"fraction": fraction}
    batch = of(data).batch(online(), size, 0)
    assert (states(batch) >= FIRST).tolist() == [False] * (size - share) + [True] * share
    # Over two decisions, as those of the replay buffer: 1 + 0.5 · 1, or the last one alone.
    for reward, discount in zip(batch.reward[size - share :], batch.discount[size - share :], strict=True):
        assert (reward, discount) in {(1.5, 0.25), (1.0, 0.5)}
    assert not batch.terminated.any()


def test_what_is_drawn_follows_from_the_update(data: dict[str, Any]) -> None:
    one, other = of(data), of(data)
    drawn = [states(one.batch(online(), 40, update))[20:] for update in (0, 1, 2)]
    np.testing.assert_array_equal(states(other.batch(online(), 40, 2))[20:], drawn[2])
    assert len({tuple(each) for each in drawn}) == 3
    data["runner"]["seed"] += 1
    assert tuple(states(of(data).batch(online(), 40, 0))[20:]) != tuple(drawn[0])


def test_each_rank_reads_episodes_of_its_own(data: dict[str, Any]) -> None:
    found = [{int(seen - FIRST) // 100 for seen in states(of(data, rank, 3).batch(online(), 400, 0))[200:]} for rank in range(3)]
    assert found == [{0, 3}, {1}, {2}]


def test_a_run_without_has_none(data: dict[str, Any]) -> None:
    del data["algorithm"]["demo_buffer"]
    assert Demonstrations.of(read_off_policy(data), SPEC, rank=0, world_size=1) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"width": 2},
            r"algorithm\.demo_buffer\.keys\.states: 'states' of 'somewhere' has the shape \[2\], that of env\.train\.env_type "
            r"'countdown' \[1\]",
        ),
        (
            {"key": "joints"},
            r"algorithm\.demo_buffer\.keys: env\.train\.env_type 'countdown' shows 'states', and 'somewhere' has joints",
        ),
    ],
)
def test_demonstrations_of_another_environment_are_refused(data: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    data["algorithm"]["demo_buffer"] |= changes
    with pytest.raises(ConfigError, match=said):
        check_actions(read_off_policy(data), SPEC)


def test_other_actions_are_refused(data: dict[str, Any]) -> None:
    cfg = read_off_policy(data)
    check_actions(cfg, SPEC)
    other = replace(SPEC, action=ArraySpec(shape=(3,), dtype="float32"))
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer\.action: .*'somewhere' have the shape \[1\].*'countdown' \[3\]"):
        check_actions(cfg, other)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_batch_without_one_of_both_is_refused(data: dict[str, Any], fraction: float) -> None:
    data["algorithm"]["demo_buffer"] |= {"fraction": fraction}
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer\.fraction"):
        read_off_policy(data)
