from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest

from rlinf.core.errors import ConfigError, MissingExtra, ShapeError
from rlinf.envs.offline.episodes import OfflineEpisode, transitions
from rlinf.envs.offline.minari import D4RL, Minari, minari_name

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")
EpisodeBuffer = minari.data_collector.EpisodeBuffer


class Walk(gymnasium.Env):
    """Counts steps; ends by itself at 4 if the seed is even."""

    observation_space = gymnasium.spaces.Dict(
        {
            "z": gymnasium.spaces.Box(-100, 100, (2,), np.float32),
            "inner": gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(0, 100, (1,), np.int64)}),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def _see(self):
        return {"z": np.array([self.seed_, self.count], np.float32), "inner": {"a": np.array([self.count])}}

    def reset(self, *, seed=None, options=None):
        self.seed_, self.count = seed, 0
        return self._see(), {}

    def step(self, action):
        self.count += 1
        return self._see(), self.count / 10, self.count == 4 and self.seed_ % 2 == 0, False, {}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A dataset of three episodes (ended, cut by the limit, and abandoned) under Minari's folder."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        record(gymnasium.wrappers.TimeLimit(Walk(), 6), "test/walk-v0", ((2, 9), (3, 9), (5, 2)))
        record(gymnasium.make("Pendulum-v1", max_episode_steps=5), "test/pendulum-v0", ((0, 9), (1, 9)))
        yield folder


def record(env, name, episodes):
    """Writes what is played, as Minari's own collector would (which needs jax)."""
    buffers = []
    for number, (seed, steps) in enumerate(episodes):
        seen, taken = [env.reset(seed=seed)[0]], []
        for step in range(steps):
            action = np.full(env.action_space.shape, step / 10, np.float32)
            taken.append((action, *env.step(action)))
            seen.append(taken[-1][1])
            if taken[-1][3] or taken[-1][4]:
                break
        action, _, reward, terminated, truncated, _ = (list(column) for column in zip(*taken, strict=True))
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=stacked(seen),
                actions=np.stack(action),
                rewards=reward,
                terminations=terminated,
                truncations=truncated,
            )
        )
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(name, buffers, env=env.spec, **spaces)


def stacked(rows):
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def test_episodes(recorded):
    source = Minari(dataset="test/walk-v0").open()
    assert (source.name, len(source), sum(source.episode_lengths()), source.env_id) == ("test/walk-v0", 3, 12, None)
    ended, limited, left = source.episodes()
    assert [len(e) for e in (ended, limited, left)] == [4, 6, 2]
    assert [e.number for e in (ended, limited, left)] == [0, 1, 2]
    assert ended.observation["states"].tolist() == [[i, 2, i] for i in range(5)]
    assert ended.observation["states"].dtype == ended.reward.dtype == np.float32
    assert ended.action.shape == (4, 3)
    assert ended.reward == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert (ended.terminated.tolist(), ended.truncated.tolist()) == ([False] * 3 + [True], [False] * 4)
    assert (limited.terminated.any(), limited.truncated.tolist()) == (False, [False] * 5 + [True])
    assert (left.terminated.any(), left.truncated.tolist()) == (False, [False, True])


def test_a_recording_of_a_gymnasium_environment_is_what_that_environment_says(recorded):
    source = Minari(dataset="test/pendulum-v0").open()
    assert source.env_id == "Pendulum-v1"
    env = gymnasium.make(source.env_id, max_episode_steps=5)
    for seed, episode in enumerate(source.episodes()):
        seen = [env.reset(seed=seed)[0]] + [env.step(action)[0] for action in episode.action]
        assert np.array_equal(episode.observation["states"], np.stack(seen))
        assert episode.truncated.tolist() == [False] * 4 + [True]


def test_transitions_keep_the_final_observation(recorded):
    steps = transitions(Minari(dataset="test/walk-v0").open().episodes())
    assert len(steps) == 12
    assert steps.observation["states"][:, 2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]
    assert steps.next_observation["states"][:, 2].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 1, 2]
    assert (steps.next_observation["states"][:, 1] == steps.observation["states"][:, 1]).all()
    assert steps.episode.tolist() == [0] * 4 + [1] * 6 + [2] * 2
    assert np.flatnonzero(steps.terminated).tolist() == [3]
    assert np.flatnonzero(steps.truncated).tolist() == [9, 11]


def test_keys_may_be_kept_and_a_folder_may_be_named(recorded):
    source = Minari(dataset=str(recorded / "test" / "walk-v0"), per_key=True).open()
    episode = next(source.episodes())
    assert {key: (v.shape, v.dtype.kind) for key, v in episode.observation.items()} == {
        "inner.a": ((5, 1), "i"),
        "z": ((5, 2), "f"),
    }


def test_nothing_is_fetched_unasked(recorded, monkeypatch):
    monkeypatch.setattr(minari, "load_dataset", lambda *a, **k: pytest.fail("reads"))
    with pytest.raises(
        ConfigError, match=r"'test/wakl-v0' is not on this machine\. Set download: true.*Did you mean 'test/walk-v0'"
    ):
        Minari(dataset="test/wakl-v0").open()
    calls = []
    monkeypatch.setattr(minari, "load_dataset", lambda name, download: calls.append((name, download)))
    Minari(dataset="pen-human-v1", download=True).open()
    assert calls == [("D4RL/pen/human-v2", True)]


def test_a_damaged_dataset(recorded, monkeypatch):
    def refuse(name, download):
        raise KeyError("no metadata")

    monkeypatch.setattr(minari, "load_dataset", refuse)
    with pytest.raises(ConfigError, match="can't be read: 'no metadata'"):
        Minari(dataset="test/walk-v0").open()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("halfcheetah-medium-v2", "mujoco/halfcheetah/medium-v0"),
        ("antmaze-large-diverse-v1", "D4RL/antmaze/large-diverse-v1"),
        ("maze2d-umaze-dense-v1", "D4RL/pointmaze/umaze-dense-v2"),
        ("kitchen-mixed-v0", "D4RL/kitchen/mixed-v2"),
        ("door-cloned-v1", "D4RL/door/cloned-v2"),
        ("my-own-v3", "my-own-v3"),
        ("mine/pen-v0", "mine/pen-v0"),
    ],
)
def test_d4rl_names(old, new):
    assert minari_name(old) == new
    assert len(set(D4RL.values())) == len(D4RL)


def test_a_d4rl_name_without_data():
    with pytest.raises(ConfigError, match=r"data\.dataset: Minari has no data for D4RL's 'hopper-medium-replay-v2'.*hopper-medium"):
        Minari(dataset="hopper-medium-replay-v2").check("data")


def test_without_minari(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rlinf-envs\[minari\]"):
        Minari(dataset="x").check("data")


def test_no_episode_and_a_ragged_one():
    with pytest.raises(ShapeError, match="no episode"):
        transitions([])
    from rlinf.envs.offline._minari import MinariSource

    source = object.__new__(MinariSource)
    source._per_key = False
    source._data = type("Data", (), {"spec": type("Spec", (), {"dataset_id": "d"})})
    bad = type("Episode", (), {"id": 4, "observations": np.zeros((3, 2)), "actions": np.zeros((3, 1)), "rewards": np.zeros(3)})
    bad.terminations = bad.truncations = np.zeros(3, bool)
    with pytest.raises(ShapeError, match=r"d\[4\]: expected one observation more"):
        source._episode(bad)
    assert OfflineEpisode.__doc__
