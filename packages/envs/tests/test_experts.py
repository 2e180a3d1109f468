"""Demonstrations of a scripted expert."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from kept_episodes import Kept

from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeProtocol
from rlinf.envs.parallel import Parallel
from rlinf.envs.recording import LeRobotWriter, expect_new, record_expert
from rlinf.envs.remote import Remote
from rlinf.envs.tabletop.config import Tabletop


def tables(num_envs, task="slots"):
    return Tabletop(task=task).make(num_envs, max_episode_steps=None, ignore_terminations=False, render=False)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_as_many_as_asked_for_each_from_a_state_of_its_own(num_envs):
    writer = Kept()
    played = record_expert(tables(num_envs), writer, episodes=7, seed=3)
    assert [each.success_once for each in played] == [True] * 7
    seeds = {episode.seed for episode in writer.episodes}
    assert (len(writer.episodes), len(seeds), writer.closed) == (7, 7, 1)
    assert all(episode.success[-1] and not episode.success[:-1].any() for episode in writer.episodes)
    evaluated = EpisodeProtocol(env="any", init_ids=tuple(range(7)), seeds=(3,), initial_states="seed").work_list()
    assert not seeds & {key.env_seed for key in evaluated}


def test_the_same_whatever_plays_side_by_side():
    one, other = Kept(), Kept()
    record_expert(tables(2), one, episodes=5, noise=0.3)
    record_expert(tables(5), other, episodes=5, noise=0.3)
    for a, b in zip(*(sorted(kept.episodes, key=lambda e: e.seed) for kept in (one, other)), strict=True):
        np.testing.assert_array_equal(a.actions, b.actions)


def test_an_expert_in_other_processes_plays_the_same():
    here, there = Kept(), Kept()
    record_expert(tables(3), here, episodes=4, noise=0.3)
    shared = Parallel(env="tabletop", params={"task": "slots"}, processes=2)
    record_expert(shared.make(3, max_episode_steps=None, ignore_terminations=False, render=False), there, episodes=4, noise=0.3)
    assert len(there.episodes) == 4
    for a, b in zip(*(sorted(kept.episodes, key=lambda e: e.seed) for kept in (here, there)), strict=True):
        np.testing.assert_array_equal(a.actions, b.actions)


def test_no_expert_in_another_process_is_known_before_a_dataset_is_begun(tmp_path):
    numbers = Remote(python=sys.executable, env="remote_envs:Numbers", paths=(str(Path(__file__).parent),))
    env = numbers.make(2, max_episode_steps=6, ignore_terminations=False, render=False)
    with pytest.raises(ConfigError, match="has no scripted expert"):
        record_expert(env, LeRobotWriter(tmp_path / "new", fps=10), episodes=1)
    assert not (tmp_path / "new").exists()


def test_a_slow_expert_needs_longer_and_may_fail():
    quick, slow, solved = Kept(), Kept(), Kept()
    record_expert(tables(4), quick, episodes=12)
    record_expert(tables(4), slow, episodes=12, speed=0.5, noise=0.3)
    record_expert(tables(4), solved, episodes=12, speed=0.5, noise=0.3, only_success=True)
    steps = [sum(map(len, kept.episodes)) for kept in (quick, slow)]
    assert steps[1] > 1.3 * steps[0]
    assert 0 < len(solved.episodes) < len(slow.episodes) == 12


def test_the_expert_labels_what_noise_leads_to():
    noisy, labelled = Kept(), Kept()
    record_expert(tables(3), noisy, episodes=4, noise=0.3)
    record_expert(tables(3), labelled, episodes=4, noise=0.3, labels="expert")
    for executed, told in zip(*(sorted(kept.episodes, key=lambda e: e.seed) for kept in (noisy, labelled)), strict=True):
        # The same states, as the same was done.
        np.testing.assert_array_equal(told.observations["states"], executed.observations["states"])
        # Of a chunk all actions are learned, as no policy acted.
        assert told.policy_actions is None
        apart = np.abs(told.actions - executed.actions)
        assert 0.0 < apart.max() <= 0.3 + 1e-6
    with pytest.raises(ConfigError, match=r"^labels: a person who plays is not the scripted expert"):
        record_expert(tables(1), Kept(), episodes=1, human=True, labels="expert")


def test_who_has_no_expert_and_senseless_numbers_are_refused(counters, tmp_path):
    with pytest.raises(ConfigError, match="has no scripted expert"):
        record_expert(counters(2), LeRobotWriter(tmp_path / "new", fps=10), episodes=1)
    assert not (tmp_path / "new").exists()
    for numbers, said in (
        ({"speed": 0.0}, r"^speed: expected a value in \(0, 1\], found 0"),
        ({"noise": float("nan")}, "^noise: expected at least 0, found nan"),
        ({"noise": [0.1, -0.2]}, "^noise: expected at least 0, found -0.2"),
        (
            {"noise": [0.1, 0.2, 0.0]},
            r"^noise: expected one number, or one for each of an action's, which has shape \(2,\); found 3",
        ),
        ({"episodes": -3}, "^episodes: expected at least 1, found -3"),
    ):
        with pytest.raises(ConfigError, match=said):
            record_expert(tables(1), Kept(), **{"episodes": 1, **numbers})


def test_a_new_dataset_is_added_to_nothing(tmp_path):
    expect_new(tmp_path / "new", "--out")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    expect_new(tmp_path / "run", "--out")
    for name in ("summary.json", "a", "b", "c"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(ConfigError, match=r"^--out: expected a new folder, found '.*run' with a, b, c in it\. Remove it, or name"):
        expect_new(tmp_path / "run", "--out")
    with pytest.raises(ConfigError, match=r"^--out: expected a new folder, found a file at '.*summary\.json'"):
        expect_new(tmp_path / "run/summary.json", "--out")
