"""Iterations that only learn from recorded episodes: what they draw, how often they update, and what can't be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import off_policy_toy
import pytest
import torch

from rlinf.core.data import ArraySpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.registry import DATASETS, MODELS, OBJECTIVES
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.off_policy.demo_buffer import DemoBuffer
from rlinf.runners.off_policy.exploration import Exploration
from rlinf.runners.off_policy.rules import check_actions, read_off_policy

BOUND = np.ones(1, np.float32)
SPEC = replace(off_policy_toy.SPEC, action=ArraySpec(shape=(1,), dtype="float32", low=-BOUND, high=BOUND))
RECORDED = 100.0
"""From which on an observation is a recorded one."""


@dataclass(frozen=True)
class ThirtySteps:
    """Three episodes of ten steps; a reward of 2 in each."""

    gaps: bool = False

    name = "thirty"
    features = ("observation.state", "action")
    spec = SPEC

    @property
    def lacks(self) -> tuple[str, ...]:
        return ("next.reward", "next.done") if self.gaps else ()

    def check(self, place: str) -> None: ...

    def open(self) -> Any:
        return self

    def __len__(self) -> int:
        return 3

    def episodes(self) -> Any:
        for number in range(3):
            yield OfflineEpisode(
                number=number,
                observation={"states": np.full((11, 1), RECORDED, np.float32)},
                action=np.zeros((10, 1), np.float32),
                reward=np.full(10, 2.0, np.float32),
                terminated=np.zeros(10, bool),
                truncated=np.arange(10) == 9,
            )


@dataclass(frozen=True)
class ValuesStates(off_policy_toy.ToyObjective):
    needs: ClassVar[dict[str, str]] = {"value": ""}


@dataclass(frozen=True)
class WithoutValue(off_policy_toy.WithQ):
    @property
    def traits(self) -> PolicyTraits:
        return replace(super().traits, critic=False)


DATASETS.register("toy_thirty")(ThirtySteps)
OBJECTIVES.register("toy_values_states")(ValuesStates)
MODELS.register("toy_q_alone")(WithoutValue)


@pytest.fixture
def data(off_policy_data: dict[str, Any]) -> dict[str, Any]:
    off_policy_data["runner"]["max_steps"] = 5
    off_policy_data["algorithm"] |= {
        "replay_buffer": {"capacity": 60, "min_buffer_size": 24},
        "demo_buffer": {"type": "toy_thirty", "fraction": None},
        "offline_steps": 3,
        "offline_updates": 7,
    }
    return off_policy_data


def of(data: dict[str, Any]) -> DemoBuffer:
    made = DemoBuffer.of(read_off_policy(data), SPEC, rank=0, world_size=1)
    assert made is not None
    return made


def recorded(batch: Any) -> int:
    return int((batch.observation["states"] == RECORDED).sum())


def test_before_anything_is_played_all_is_recorded(data: dict[str, Any]) -> None:
    for fraction in (None, 0.5):
        data["algorithm"]["demo_buffer"] |= {"fraction": fraction}
        batch = of(data).batch(ReplayBuffer(capacity=9), 12, 0)
        assert (len(batch), recorded(batch)) == (12, 12)


def test_without_a_fraction_all_transitions_are_equally_likely(data: dict[str, Any]) -> None:
    """30 recorded ones and 10 that were played."""
    made, played = of(data), off_policy_toy.played_buffer()
    shares = [recorded(made.batch(played, 100, update)) for update in range(100)]
    assert len(set(shares)) > 5, "the share of one batch is a matter of chance"
    assert np.mean(shares) == pytest.approx(75, abs=2)


def test_what_was_recorded_is_told(data: dict[str, Any]) -> None:
    told = of(data).described()
    assert (told["demo_buffer/size"].mean, told["demo_buffer/return"].mean) == (30, 20)


def test_updates_are_those_that_were_asked_for_and_then_those_of_what_is_played(data: dict[str, Any]) -> None:
    """24 decisions an iteration, one update for each."""
    cfg = read_off_policy(data)
    assert [cfg.plays(step) for step in range(5)] == [False, False, False, True, True]
    assert [cfg.updates(step) for step in range(5)] == [7, 7, 7, 24, 24]
    assert cfg.optimizer_steps == 69
    # What is played counts from the first iteration that plays.
    data["algorithm"]["replay_buffer"]["min_buffer_size"] = 48
    assert [read_off_policy(data).updates(step) for step in range(5)] == [7, 7, 7, 0, 24]
    data["algorithm"]["replay_buffer"]["min_buffer_size"] = 24
    data["algorithm"]["offline_steps"] = 0
    assert read_off_policy(data).updates(0) == 24


def test_a_run_without_a_single_step_is_one(data: dict[str, Any]) -> None:
    data["algorithm"] |= {"offline_steps": 5, "replay_buffer": {"capacity": 1000, "min_buffer_size": 900}}
    assert read_off_policy(data).optimizer_steps == 35


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        (
            "algorithm",
            {"demo_buffer": None},
            "algorithm.offline_steps: 3 iterations are to learn from a dataset, and there is none",
        ),
        ("algorithm", {"offline_steps": 6}, "algorithm.offline_steps: 6 iterations at the start are more than the 5 of the run"),
        ("algorithm", {"offline_steps": -1}, "algorithm.offline_steps"),
        ("algorithm", {"offline_updates": 0}, "algorithm.offline_updates"),
        (
            "algorithm",
            {"replay_buffer": {"capacity": 60, "min_buffer_size": 49}},
            "runner.max_steps: the run collects 48 transitions, and the first update needs 49",
        ),
    ],
)
def test_a_configuration_that_learns_nothing_is_refused(
    data: dict[str, Any], section: str, changes: dict[str, Any], said: str
) -> None:
    off_policy_toy.expect_refusal(data, section, changes, said)


def test_an_algorithm_that_values_states_needs_a_value_function(data: dict[str, Any]) -> None:
    data["algorithm"]["loss_type"] = "toy_values_states"
    read_off_policy(data)
    data["actor"]["model"] = {"model_type": "toy_q_alone"}
    with pytest.raises(ConfigError, match=r"actor\.model\.add_value_head: 'toy_values_states' learns what a state is worth"):
        read_off_policy(data)


def test_a_dataset_without_rewards_or_ends_is_refused(data: dict[str, Any]) -> None:
    check_actions(read_off_policy(data), SPEC)
    data["algorithm"]["demo_buffer"] |= {"gaps": True}
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer: 'thirty' records no next\.reward and no next\.done"):
        check_actions(read_off_policy(data), SPEC)


def test_decisions_are_counted_from_the_first_iteration_that_plays() -> None:
    exploration = Exploration(objective=off_policy_toy.Adds(), start_steps=0, decisions_per_iteration=10, first_step=3)
    policy = exploration(off_policy_toy.Constant(), SPEC)
    for step, decisions in ((0, 0), (3, 0), (5, 20)):
        policy.set_global_step(step)
        action = policy.predict_action_batch({"states": torch.zeros(1, 1)}, generator=torch.Generator().manual_seed(0)).action
        assert int(action) == decisions
