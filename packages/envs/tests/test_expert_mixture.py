"""An expert that acts in place of a policy now and then, and what is kept of it."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.core.data.offline import MixesExpert
from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeProtocol
from rlinf.envs.evaluation import play
from rlinf.envs.offline import LeRobot
from rlinf.envs.recording import ExpertMixture, LeRobotWriter, record_expert
from rlinf.envs.tabletop import Tabletop

PROTOCOL = EpisodeProtocol(env="tables", init_ids=tuple(range(6)), seeds=(5,), initial_states="seed")


def tables(num_envs, **params):
    return Tabletop(task="push", **params).make(num_envs, max_episode_steps=9, ignore_terminations=False, render=False)


def played(num_envs, beta, wanted=True, **params):
    """The episodes of a policy that always goes to the right, by the seed of their reset."""
    env = ExpertMixture(tables(num_envs, **params))
    if wanted:
        env.mix_expert(beta)
    play(env, lambda seen, turns: np.tile(np.float32([1, 0]), (len(turns), 1)), PROTOCOL, PROTOCOL.work_list())
    return {episode.number: episode for episode in env.take_episodes()}, env


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_who_acts_and_what_the_expert_would_have_done(beta):
    episodes, env = played(3, beta)
    assert isinstance(env, MixesExpert)
    assert set(episodes) == {key.env_seed for key in PROTOCOL.work_list()}
    assert env.take_episodes() == []
    rehearsal = tables(1)
    for seed, episode in episodes.items():
        assert (episode.intervened == beta).all()
        assert (episode.policy_action == [1, 0]).all()
        rehearsal.reset(seed=[seed])
        for t in range(len(episode)):
            expert = rehearsal.unwrapped.expert_actions()
            np.testing.assert_array_equal(episode.action[t], expert[0])
            seen, *_ = rehearsal.step(expert if beta else np.float32([[1, 0]]))
            np.testing.assert_array_equal(episode.observation["states"][t + 1], seen["states"][0])


def test_the_share_is_drawn_for_each_step_and_the_same_whatever_plays_side_by_side():
    one, several = played(1, 0.5)[0], played(4, 0.5)[0]
    acted = np.concatenate([one[seed].intervened for seed in sorted(one)])
    assert 0.25 < acted.mean() < 0.75
    assert (acted[1:] != acted[:-1]).mean() > 0.25
    for seed, episode in one.items():
        np.testing.assert_array_equal(episode.intervened, several[seed].intervened)
        np.testing.assert_array_equal(episode.action, several[seed].action)


def test_an_episode_that_no_seed_began_has_no_number():
    env = ExpertMixture(tables(1))
    env.mix_expert(1.0)
    env.reset()
    over = False
    while not over:
        _, _, (terminated,), (truncated,), _ = env.step(np.float32([[0, 0]]))
        over = terminated or truncated
    assert [episode.number for episode in env.take_episodes()] == [-1]


def test_nothing_is_kept_that_nobody_wants_and_nobody_is_asked_who_knows_nothing(counters):
    assert played(2, 0.0, wanted=False)[0] == {}
    with pytest.raises(ConfigError, match="has no scripted expert"):
        ExpertMixture(counters(2))
    with pytest.raises(ConfigError, match="beta"):
        ExpertMixture(tables(1)).mix_expert(1.5)


def test_episodes_are_added_to_a_dataset_and_removed_with_what_came_after(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
    rgb = {"obs_mode": "rgb", "image_size": 8}
    record_expert(tables(2, **rgb), LeRobotWriter(tmp_path / "given", fps=10, use_videos=False, finalize_interval=9), episodes=2)
    given, folder = LeRobot(path=str(tmp_path / "given")), str(tmp_path / "grown")
    rounds = [list(played(2, beta, **rgb)[0].values()) for beta in (0.5, 0.0)]

    assert given.append(folder, given.open().episodes(), keep=0) == 2
    assert given.append(folder, rounds[0], keep=2) == 8
    assert given.append(folder, rounds[1], keep=8) == 14
    found = list(given.grown(folder).open().episodes())
    assert [episode.intervened.all() for episode in found[:2]] == [True, True]
    for episode, written in zip(found[2:], [*rounds[0], *rounds[1]], strict=True):
        assert episode.observation["main_images"].tolist() == written.observation["main_images"][:-1].tolist()
        for name in ("action", "policy_action", "intervened", "success"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(written, name))
        assert episode.task == written.task != ""

    assert given.append(folder, (), keep=8) == 8
    assert len(list((tmp_path / "grown/data").glob("*/*"))) == 2
    assert given.append(folder, rounds[1][:1], keep=8) == 9
    again = list(given.grown(folder).open().episodes())
    np.testing.assert_array_equal(again[-1].action, rounds[1][0].action)
    with pytest.raises(ConfigError, match="expected 5 episodes"):
        given.append(folder, (), keep=5)
    with pytest.raises(ConfigError, match="expected 20 episodes"):
        given.append(folder, (), keep=20)


def test_a_round_that_fails_adds_nothing(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
    record_expert(tables(2), LeRobotWriter(tmp_path / "given", fps=10), episodes=2)
    given, folder = LeRobot(path=str(tmp_path / "given")), str(tmp_path / "grown")
    given.append(folder, given.open().episodes(), keep=0)

    def broken():
        yield next(given.open().episodes())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        given.append(folder, broken(), keep=2)
    assert len(given.grown(folder).open()) == 2
    assert given.append(folder, (), keep=2) == 2
