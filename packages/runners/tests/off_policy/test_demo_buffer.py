"""Demonstrations beside the replay buffer: which share of a batch they are, who reads which, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from off_policy_toy import FIRST, SPEC, Recorded, played_buffer

from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.registry import DATASETS
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.off_policy import demo_buffer
from rlinf.runners.off_policy.demo_buffer import DemoBuffer
from rlinf.runners.off_policy.interventions import intervention_buffer, intervention_capacity
from rlinf.runners.off_policy.rules import check_actions, read_off_policy


@pytest.fixture
def data(off_policy_data: dict[str, Any]) -> dict[str, Any]:
    off_policy_data["algorithm"] |= {
        "gamma": 0.5,
        "replay_buffer": {"capacity": 60, "n_step": 2},
        "demo_buffer": {"type": "toy_recorded"},
    }
    return off_policy_data


def online() -> ReplayBuffer:
    return played_buffer(reward=3.0, n_step=2, gamma=0.5)


def of(data: dict[str, Any], rank: int = 0, world_size: int = 1) -> DemoBuffer:
    made = DemoBuffer.of(read_off_policy(data), SPEC, rank=rank, world_size=world_size)
    assert made is not None
    return made


def states(batch: Any) -> Any:
    return batch.observation["states"][:, 0]


@pytest.mark.parametrize(("fraction", "size", "share"), [(0.5, 12, 6), (0.5, 7, 3), (0.29, 100, 29), (0.25, 12, 3), (0.05, 12, 0)])
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


def test_demonstrations_go_over_as_many_decisions_as_the_replay_buffer(data: dict[str, Any]) -> None:
    batch = of(data).batch(online(), 200, 0)
    assert set(zip(batch.reward[100:].tolist(), batch.discount[100:].tolist(), strict=True)) == {(1.5, 0.25), (1.0, 0.5)}


def test_ranks_draw_numbers_of_their_own(data: dict[str, Any]) -> None:
    """Each of two has two episodes of the same length."""
    drawn = [(states(of(data, rank, 2).batch(online(), 80, 0))[40:] - FIRST - 100 * rank).tolist() for rank in (0, 1)]
    assert set(drawn[0]) == set(drawn[1])
    assert drawn[0] != drawn[1]


def test_what_people_did_is_part_of_the_demonstrated_share(data: dict[str, Any]) -> None:
    """20 recorded transitions and 10 of people: a third of the share."""
    acted = online()
    made = replace(of(data), interventions=acted)
    played = online()
    found = [made.batch(played, 60, update) for update in range(40)]
    assert {len(batch) for batch in found} == {60}
    recorded = [int((states(batch) >= FIRST).sum()) for batch in found]
    assert np.mean(recorded) == pytest.approx(20, abs=2)
    assert len(set(recorded)) > 3, "the share is a matter of chance"


def test_a_run_without_has_none(data: dict[str, Any]) -> None:
    del data["algorithm"]["demo_buffer"]
    assert DemoBuffer.of(read_off_policy(data), SPEC, rank=0, world_size=1) is None


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


@dataclass(frozen=True)
class Counted(Recorded):
    """It tells how long its episodes are."""

    def episode_lengths(self) -> list[int]:
        return [5, 5, 5, 5]


@pytest.fixture
def counted() -> Iterator[str]:
    DATASETS.register("toy_counted")(Counted)
    yield "toy_counted"
    DATASETS._claims.pop("toy_counted", None)


def test_each_recorded_episode_takes_whole_decisions(data: dict[str, Any], counted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps are three decisions of two, and a slot for what was seen last."""
    data["algorithm"]["demo_buffer"] |= {"type": counted}
    cfg = read_off_policy(data)
    monkeypatch.setattr(demo_buffer, "traits_of", lambda _: SimpleNamespace(chunk=2))
    assert demo_buffer.recorded_slots(cfg) == 4 * (3 + 1)


def test_what_is_kept_beside_the_replay_buffer_counts_before_the_run(
    data: dict[str, Any], counted: str, intervening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 slots of 15 bytes, a tenth of that for people, and 20 steps of 4 episodes; then as many as the message says."""
    data["algorithm"]["demo_buffer"] |= {"type": counted}
    data["env"]["train"]["wrappers"] = intervening

    def checked(free: int) -> None:
        monkeypatch.setattr("rlinf.runners.off_policy.rules.available_memory", lambda: free)
        check_actions(read_off_policy(data), SPEC)

    needed = 15 * (60 + 6 + 24)
    checked(needed)
    said = r"capacity: 60 transitions of 15 .*, 6 that people make .*, 24 demonstrated ones .*at most 51"
    with pytest.raises(ConfigError, match=said):
        checked(needed - 1)
    data["algorithm"]["replay_buffer"] |= {"capacity": 51}
    checked(needed - 1)
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer: 51 transitions .*Use fewer episodes"):
        checked(15 * 24)


def test_actors_part_the_room_for_what_people_do(data: dict[str, Any], intervening: Any) -> None:
    data["env"]["train"]["wrappers"] = intervening
    data["algorithm"]["replay_buffer"] |= {"capacity": 600}
    cfg = read_off_policy(data)
    assert intervention_capacity(cfg, SPEC) == 60
    for actors, slots in ((1, 60), (3, 20), (60, 2)):
        buffer = intervention_buffer(cfg, SPEC, rank=0, world_size=actors)
        assert buffer is not None
        assert buffer._slots == slots


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
