"""Recorded episodes as transitions: what is drawn, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.errors import ConfigError
from rlinf.core.replay import RecordedTransitions

SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(2,), dtype="float32")},
    action=ArraySpec(shape=(1,), dtype="float32", low=-np.ones(1, np.float32), high=np.ones(1, np.float32)),
    max_episode_steps=9,
)


def episode(number: int, steps: int, *, terminated: bool = False, final: bool = True, **changes: Any) -> OfflineEpisode:
    """States are (number, step), step t does t/10 and earns t + 1."""
    flags = np.arange(steps) == steps - 1
    seen = np.stack([np.full(steps + 1, number), np.arange(steps + 1)], 1).astype(np.float32)
    made = OfflineEpisode(
        number=number,
        observation={"states": seen if final else seen[:-1]},
        action=np.arange(steps, dtype=np.float32)[:, None] / 10,
        reward=np.arange(1, steps + 1, dtype=np.float32),
        terminated=flags & terminated,
        truncated=flags & (not terminated),
    )
    return replace(made, **changes)


def drawn(episodes: list[OfflineEpisode], **options: Any) -> dict[tuple[float, ...], tuple[float, ...]]:
    """By state: action, reward, next step, terminated, discount."""
    found: Any = RecordedTransitions(episodes, SPEC, gamma=0.5, **options).sample(400, np.random.default_rng(0))
    rows = zip(
        found.observation["states"].tolist(),
        found.action.reshape(400, -1).tolist(),
        found.reward.tolist(),
        found.observation_next["states"][:, 1].tolist(),
        found.terminated.tolist(),
        found.discount.tolist(),
        strict=True,
    )
    return {
        tuple(state): (*np.round(action, 3), reward, after, end, discount) for state, action, reward, after, end, discount in rows
    }


def test_every_step_is_drawn_with_what_followed_it() -> None:
    found = drawn([episode(0, 2, terminated=True), episode(1, 3)])
    assert found == {
        (0, 0): (0.0, 1, 1, False, 0.5),
        (0, 1): (0.1, 2, 2, True, 0.5),
        (1, 0): (0.0, 1, 1, False, 0.5),
        (1, 1): (0.1, 2, 2, False, 0.5),
        (1, 2): (0.2, 3, 3, False, 0.5),
    }


def test_over_several_steps_a_transition_ends_with_its_episode() -> None:
    found = drawn([episode(0, 2), episode(1, 3, terminated=True)], n_step=2)
    assert found[0, 0] == (0.0, 2, 2, False, 0.25)
    assert found[0, 1] == (0.1, 2, 2, False, 0.5), "a cut: what follows has its value"
    assert found[1, 1] == (0.1, 2 + 0.5 * 3, 3, True, 0.25)


def test_without_bootstrapping_a_cut_is_an_end() -> None:
    assert drawn([episode(0, 2)], bootstrap_truncated=False)[0, 1] == (0.1, 2, 2, True, 0.5)


def test_a_recording_that_stops_was_cut() -> None:
    stopped = episode(0, 2, truncated=np.zeros(2, bool))
    assert drawn([stopped])[0, 1] == (0.1, 2, 2, False, 0.5)
    assert drawn([stopped], bootstrap_truncated=False)[0, 1] == (0.1, 2, 2, True, 0.5)


def test_a_chunk_is_one_decision() -> None:
    found = drawn([episode(0, 3)], chunk=2)
    assert found == {(0, 0): (0.0, 0.1, 3, 2, False, 0.5), (0, 2): (0.2, 0.2, 3, 3, False, 0.5)}
    ended = drawn([episode(0, 4, terminated=True), episode(1, 3, terminated=True)], chunk=2)
    assert {state: found[4] for state, found in ended.items()} == {(0, 0): False, (0, 2): True, (1, 0): False, (1, 2): True}


def test_without_final_observations_the_step_before_a_cut_is_left_out() -> None:
    found = drawn([episode(0, 3, final=False), episode(1, 2, terminated=True, final=False), episode(2, 1, final=False)])
    assert sorted(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found[0, 1][3:] == (False, 0.5)
    assert found[1, 1][3:] == (True, 0.5)


def test_what_was_executed_is_learned() -> None:
    acted = episode(0, 2, intervened=np.array([True, False]), policy_action=np.full((2, 1), 0.7, np.float32))
    assert {state: found[0] for state, found in drawn([acted]).items()} == {(0, 0): 0.0, (0, 1): 0.7}


def test_the_same_generator_draws_the_same_and_all_are_equally_likely() -> None:
    recorded = RecordedTransitions([episode(0, 4), episode(1, 1)], SPEC)
    samples: Any = [recorded.sample(5000, np.random.default_rng(3)) for _ in range(2)]
    first, second = (sample.observation["states"] for sample in samples)
    np.testing.assert_array_equal(first, second)
    counts = np.unique(first, axis=0, return_counts=True)[1]
    assert len(recorded) == 5
    assert (np.abs(counts - 1000) < 150).all()
    assert (recorded.episodes, recorded.mean_return) == (2, 5.5)
    assert recorded.nbytes == 7 * (8 + 4 + 7)


def test_actions_are_clipped_to_the_bounds() -> None:
    wide = episode(0, 4, action=np.array([[0.5], [0.5], [3.0], [0.1]], np.float32))
    assert {found[0] for found in drawn([wide]).values()} == {0.5, 1.0, 0.1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": np.zeros(3)}, "all rewards of 'set' are 0"),
        ({"reward": np.array([0, np.nan, 1])}, "'reward' of step 1 in episode 5 of 'set' is not a finite number"),
        ({"action": np.array([[0], [0], [np.inf]])}, "'action' of step 2 in episode 5 of 'set' is not a finite number"),
        ({"observation": {"states": np.full((4, 2), np.nan)}}, "'states' of step 0 in episode 5 of 'set' is not a finite number"),
        ({"observation": {"images": np.zeros((4, 2))}}, "'set', episode 5: expected the observation 'states', found images"),
        ({"observation": {"states": np.zeros((4, 3))}}, "'set', episode 5.states: expected the shape [2], found [3]"),
        ({"action": np.zeros((3, 2))}, "'set', episode 5.action: expected the shape [1], found [2]"),
        ({"action": np.full((3, 1), 50.0)}, "100% of the actions of 'set' are beyond the bounds of the environment"),
    ],
)
def test_what_can_not_be_learned_from_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RecordedTransitions([replace(episode(5, 3), **changes)], SPEC, place="algorithm.demo_buffer", name="set")
    assert str(refused.value).startswith("algorithm.demo_buffer: ")
    assert said in str(refused.value)


def test_a_dataset_without_transitions_and_one_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has no transition"):
        RecordedTransitions([episode(0, 1, final=False)], SPEC)
    monkeypatch.setattr("rlinf.core.replay.recorded.available_memory", lambda: 4 * 19 - 1)
    with pytest.raises(ConfigError, match=r"4 steps of 19 bytes"):
        RecordedTransitions([episode(0, 3)], SPEC)
