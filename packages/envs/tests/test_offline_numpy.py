"""Episodes of NumPy files: what is read is what was seen and done, final observations too."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.registry import DATASETS
from rlinf.core.replay import RecordedTransitions
from rlinf.envs.gymnasium import Gymnasium
from rlinf.envs.offline import NumpyEpisodes
from rlinf.envs.recording import Recording


@pytest.fixture
def recorded(tmp_path):
    """Three episodes of four steps of Pendulum, two side by side."""
    config = Gymnasium(env_id="Pendulum-v1")
    env = config.make(2, max_episode_steps=4, ignore_terminations=False, render=False)
    recording = Recording(save_dir=str(tmp_path / "data"), export_format="numpy", max_episodes=3)
    env = recording.wrap(env, "train_0")
    for seed in (0, 2):
        env.reset(seed=[seed, seed + 1])
        for step in range(4):
            env.step(np.full((2, 1), step / 4, np.float32))
    env.close()
    return tmp_path / "data"


def test_what_is_read_is_what_was_played(recorded):
    source = DATASETS.build("numpy", {"path": str(recorded)}, place="data").open()
    assert (len(source), source.features, source.lacks) == (3, ("states",), ())
    episodes = list(source.episodes())
    env = gymnasium.make("Pendulum-v1", max_episode_steps=4)
    for seed, episode in enumerate(episodes):
        seen, rewards = [env.reset(seed=seed)[0]], []
        for action in episode.action:
            state, reward, *_ = env.step(action)
            seen.append(state)
            rewards.append(reward)
        np.testing.assert_array_equal(episode.observation["states"], np.stack(seen))
        np.testing.assert_allclose(episode.reward, rewards, rtol=1e-6)
        assert episode.truncated.tolist() == [False] * 3 + [True]
        assert not episode.terminated.any()
    assert source.spec.observation["states"].shape == (3,)
    assert (source.spec.action.shape, source.spec.max_episode_steps) == ((1,), 4)
    some = NumpyEpisodes(path=str(recorded / "train_0"), episodes=2).open()
    assert [(len(each), sum(each.episode_lengths())) for each in (source, some)] == [(3, 12), (2, 8)]


def test_it_becomes_transitions(recorded):
    source = NumpyEpisodes(path=str(recorded)).open()
    spec = EnvSpec(observation=source.spec.observation, action=source.spec.action, max_episode_steps=4)
    assert len(RecordedTransitions(source.episodes(), spec)) == 12


def test_a_folder_without_episodes_and_a_damaged_file_are_refused(recorded, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.path: expected recorded episodes at .*found no such folder"):
        NumpyEpisodes(path=str(tmp_path / "nowhere")).check("data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no episode_\*\.npz"):
        NumpyEpisodes(path=str(tmp_path / "empty")).open()
    first = recorded / "train_0" / "episode_000000.npz"
    arrays = dict(np.load(first))
    np.savez(first, **{**arrays, "rewards": arrays["rewards"][:-1]})
    with pytest.raises(ConfigError, match=r"episode_000000\.npz', found \{'actions': 4, 'rewards': 3"):
        list(NumpyEpisodes(path=str(recorded)).open().episodes())
    first.write_bytes(b"not a file")
    with pytest.raises(ConfigError, match="is not an episode"):
        list(NumpyEpisodes(path=str(recorded)).open().episodes())
    with pytest.raises(ConfigError, match="is not an episode"):
        NumpyEpisodes(path=str(recorded)).open().episode_lengths()
    with pytest.raises(ConfigError, match="episodes: expected at least 1"):
        NumpyEpisodes(path="x", episodes=0)
