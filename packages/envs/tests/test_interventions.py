"""Somebody who acts in place of a policy: what is executed, what is said of it, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from kept_episodes import Kept

from rlinf.core.envs.robots import HasCounts, LetsHumansAct
from rlinf.core.errors import ConfigError
from rlinf.core.registry import ENV_WRAPPERS
from rlinf.envs.recording import RecordEpisodes
from rlinf.envs.tabletop import Tabletop
from rlinf.envs.wrappers.interventions import Intervening, Interventions


class EverySecond:
    """Acts in every second step of the first environment alone."""

    def begin(self, seeds, fresh):
        self.step = 0

    def decide(self, actions, active):
        self.step += 1
        wanted, acts = np.full_like(actions, np.nan), np.zeros(len(actions), bool)
        if self.step % 2 == 0:
            wanted[0], acts[0] = 0.5, active[0]
        return wanted, acts


def tables(num_envs=2):
    return Tabletop(task="reach").make(num_envs, max_episode_steps=6, ignore_terminations=True, render=False)


def test_what_somebody_does_is_executed_said_and_kept():
    plain, kept = tables(), Kept()
    env = RecordEpisodes(Interventions(tables(), EverySecond()), kept)
    plain.reset(seed=3)
    env.reset(seed=3)
    given = np.full((2, 2), -0.25, np.float32)
    for step in range(6):
        executed = given.copy()
        if step % 2:
            executed[0] = 0.5
        wanted, found = plain.step(executed), env.step(given)
        np.testing.assert_array_equal(wanted[0]["states"], found[0]["states"])
        assert found[4]["intervene_flag"].tolist() == [bool(step % 2), False]
    first, second = kept.episodes
    assert first.intervened.tolist() == [False, True] * 3
    np.testing.assert_array_equal(first.actions[1::2], np.full((3, 2), 0.5))
    np.testing.assert_array_equal(first.actions[::2], np.full((3, 2), -0.25))
    np.testing.assert_array_equal(first.policy_actions, np.full((6, 2), -0.25))
    assert not second.intervened.any()
    counting = env.env
    assert isinstance(counting, HasCounts)
    assert counting.take_counts() == {"interventions/steps": 3.0, "interventions/of_steps": 12.0}
    assert not any(counting.take_counts().values())


def test_a_scripted_human_acts_for_some_steps_as_the_expert_would_and_the_same_for_the_same_seed():
    def played(num_envs):
        env = Intervening(source="scripted", probability=0.3, steps=2).wrap(tables(num_envs), "train_0")
        env.reset(seed=[11 + row for row in range(num_envs)])
        flags, actions = [], []
        for _ in range(6):
            expert = env.unwrapped.expert_actions()
            infos = env.step(np.zeros((num_envs, 2), np.float32))[4]
            acts = infos["intervene_flag"]
            np.testing.assert_array_equal(infos["intervene_action"][acts], expert[acts])
            assert np.isnan(infos["intervene_action"][~acts]).all()
            flags.append(acts)
            actions.append(infos["intervene_action"])
        return np.stack(flags, 1)

    flags = played(40)
    assert 0.2 < flags.mean() < 0.7
    # What begins before the last step goes on for two.
    starts = flags[:, :-1] & ~np.pad(flags, ((0, 0), (1, 0)))[:, : flags.shape[1] - 1]
    assert flags[:, 1:][starts].all()
    np.testing.assert_array_equal(flags[:3], played(3))


def test_it_is_chosen_by_name_and_refused_where_nobody_can_act():
    config = ENV_WRAPPERS.build("interventions", {"source": "scripted"}, place="wrappers")
    assert isinstance(config, LetsHumansAct)
    assert config.training_only
    with pytest.raises(ConfigError, match="no console beside TabletopEnv"):
        Intervening().wrap(tables(), "train_0")
    with pytest.raises(ConfigError, match="steps"):
        Intervening(steps=0)
