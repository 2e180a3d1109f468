from __future__ import annotations

import json

import numpy as np
import pytest
from kept_episodes import Kept

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.evaluation import EpisodeProtocol
from rlinf.core.testing.env import EnvContract
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.evaluation import evaluate
from rlinf.envs.recording import Episode, NumpyWriter, ParquetWriter, RecordEpisodes, Recording, read_numpy
from rlinf.envs.tabletop.config import Tabletop
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics


def actions(*first):
    return np.array([[a, 0.0] for a in first], np.float32)


def an_episode(length=3, seed=5):
    rng = np.random.default_rng(seed)
    flags = np.zeros(length, np.bool_)
    last = flags.copy()
    last[-1] = True
    images = rng.integers(0, 256, (length + 1, 8, 6, 3), np.uint8)
    return Episode(
        observations={"states": rng.normal(size=(length + 1, 2)).astype(np.float32), "main_images": images},
        actions=rng.normal(size=(length, 4)).astype(np.float32),
        rewards=np.arange(length, dtype=np.float32),
        terminated=last,
        truncated=flags,
        success=last.copy(),
        task="stack them",
        seed=seed,
    )


def assert_same(one, other):
    assert (one.task, one.seed) == (other.task, other.seed)
    assert set(one.observations) == set(other.observations)
    pairs = [(one.observations[key], other.observations[key]) for key in one.observations]
    pairs += [(getattr(one, key), getattr(other, key)) for key in ("actions", "rewards", "terminated", "truncated", "success")]
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


def test_episodes_by_hand(counters):
    writer = Kept()
    env = RecordEpisodes(counters(2, 9, limit=3), writer, task="count")
    env.reset(seed=[40, 50])
    env.step(actions(0.5, 0.1))
    env.step(actions(0.25, 0.2))
    (first,) = writer.episodes
    assert first.observations["states"].tolist() == [[40, 0], [40, 1], [40, 2]]
    assert first.actions.tolist() == [[0.5, 0], [0.25, 0]]
    assert (first.rewards.tolist(), first.rewards.dtype) == ([0.5, 0.25], np.float32)
    assert (first.terminated.tolist(), first.truncated.tolist()) == ([False, True], [False, False])
    assert first.success.tolist() == [True, False]
    assert (first.task, first.seed, len(first)) == ("count", 40, 2)
    env.reset(seed=60, options={"reset_mask": np.array([True, False])})
    env.step(actions(0.5, 0.3))
    assert [(episode.seed, len(episode)) for episode in writer.episodes] == [(40, 2), (50, 3)]
    assert writer.episodes[1].truncated.tolist() == [False, False, True]
    env.close()
    assert (len(writer.episodes), writer.closed) == (2, 1), "the episode that had not ended is left out"


@pytest.mark.parametrize("steps", [2, 3])
def test_it_is_told_when_no_episode_was_recorded(counters, caplog, steps):
    """Of some the last ones are always lost, which is no news."""
    env = RecordEpisodes(counters(9, 9, limit=3), Kept())
    env.reset(seed=[40, 50])
    for _ in range(steps):
        env.step(actions(0.5, 0.1))
    env.reset(seed=60)
    env.step(actions(0.5, 0.1))
    env.close()
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == ([] if steps == 3 else ["no episode is recorded: 2 had not ended, 0 were not solved (only_success)"])


def test_it_is_told_when_none_was_solved(caplog):
    tables = Tabletop(task="reach").make(1, max_episode_steps=2, ignore_terminations=True, render=False)
    env = RecordEpisodes(tables, Kept(), only_success=True)
    env.reset(seed=[1])
    for _ in range(2):
        env.step(np.zeros((1, 2), np.float32))
    env.close()
    assert "no episode is recorded: 0 had not ended, 1 were not solved (only_success)" in caplog.text


@pytest.mark.parametrize("then", ["lerobot", "parquet"])
def test_a_folder_has_one_format(counters, tmp_path, then):
    env = RecordEpisodes(counters(9, limit=3), NumpyWriter(tmp_path / "run"))
    env.reset(seed=[40])
    for _ in range(3):
        env.step(actions(0.5))
    env.close()
    with pytest.raises(
        ConfigError, match=r"^recording\.export_format: '.*run' holds episodes as numpy, .* as (lerobot|parquet)\. Set numpy"
    ):
        Recording(save_dir=str(tmp_path), export_format=then).wrap(counters(9, limit=3), "run")
    Recording(save_dir=str(tmp_path), export_format="numpy").wrap(counters(9, limit=3), "run").close()


@pytest.mark.parametrize(("only", "wanted"), [(True, [True]), (False, [True, False])])
def test_only_successes(only, wanted):
    writer = Kept()
    tables = Tabletop(task="reach").make(2, max_episode_steps=25, ignore_terminations=True, render=False)
    env = RecordEpisodes(tables, writer, only_success=only)
    env.reset(seed=[1, 2])
    for _ in range(25):
        env.step(env.unwrapped.expert_actions() * np.array([[1], [0]], np.float32))
    assert [bool(episode.success.any()) for episode in writer.episodes] == wanted


def test_the_task_in_words_and_no_seed():
    writer = Kept()
    env = RecordEpisodes(tables(2, obs_mode="rgb"), writer)
    texts = [str(text) for text in env.reset()[0]["task_descriptions"]]
    env.step(np.zeros((2, 2), np.float32))
    env.step(np.zeros((2, 2), np.float32))
    assert [episode.task for episode in writer.episodes] == texts
    assert [episode.seed for episode in writer.episodes] == [None, None]
    assert set(writer.episodes[0].observations) == {"states", "main_images"}


def tables(num_envs, obs_mode="state"):
    config = Tabletop(task="slots", obs_mode=obs_mode)
    return config.make(num_envs, max_episode_steps=2, ignore_terminations=True, render=False)


def test_what_is_recorded_is_what_was_seen():
    """The same episodes, recorded and collected by hand."""
    writer = Kept()
    env, plain = RecordEpisodes(tables(3), writer), tables(3)
    seen = [plain.reset(seed=4)[0]["states"]]
    env.reset(seed=4)
    for action in (plain.action_space.sample(), plain.action_space.sample()):
        env.step(action)
        seen.append(plain.step(action)[0]["states"])
    for i, episode in enumerate(writer.episodes):
        assert np.array_equal(episode.observations["states"], np.stack(seen)[:, i])


def test_a_chunk_is_recorded_up_to_the_end(counter):
    writer = Kept()
    tasks = [lambda: counter(1), lambda: counter(9)]
    inner = EpisodeStatistics(SequentialVectorEnv(tasks), 3)
    env = RecordEpisodes(inner, writer)
    env.reset(seed=[1, 2])
    chunk_step(env, np.zeros((2, 5, 2), np.float32))
    assert [len(episode) for episode in writer.episodes] == [1, 3]


def test_a_recorded_environment_keeps_the_contract(counters):
    EnvContract(factory=lambda: RecordEpisodes(counters(9, 9, 9), Kept())).run()


def test_numpy_files(tmp_path):
    episodes = [an_episode(seed=seed) for seed in (5, 6, 7)]
    writer = NumpyWriter(tmp_path / "deep")
    writer.write(episodes[0])
    writer.close()
    writer = NumpyWriter(tmp_path / "deep")
    for episode in episodes[1:]:
        writer.write(episode)
    writer.close()
    files = sorted(path.name for path in (tmp_path / "deep").glob("*"))
    assert files == [".lock", "episode_000000.npz", "episode_000001.npz", "episode_000002.npz"]
    for number, episode in enumerate(episodes):
        assert_same(read_numpy(tmp_path / "deep" / f"episode_{number:06d}.npz"), episode)


def test_a_file_that_is_no_episode(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "b.npz", rewards=np.zeros(3))
    np.savez(tmp_path / "c.npz", about=np.array([{"not": "text"}], object))
    for name in "abc":
        with pytest.raises(RLinfError, match="is not an episode"):
            read_numpy(tmp_path / f"{name}.npz")


def test_parquet_files(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra rlinf-envs[recording] is not installed")
    episode = an_episode()
    writer = ParquetWriter(tmp_path)
    writer.write(episode)
    writer.close()
    table = parquet.read_table(tmp_path / "episode_000000.parquet")
    about = json.loads(table.schema.metadata[b"rlinf"])
    assert (about["task"], about["seed"], table.num_rows) == ("stack them", 5, 3)
    columns = table.to_pydict()
    assert columns["reward"] == [0, 1, 2]
    assert columns["terminated"] == columns["success"] == [False, False, True]
    assert columns["truncated"] == [False] * 3
    np.testing.assert_array_equal(np.array(columns["action"], np.float32), episode.actions)
    np.testing.assert_array_equal(np.array(columns["observation.states"], np.float32), episode.observations["states"][:-1])
    said = about["arrays"]["observation.main_images"]
    assert said == {"shape": [8, 6, 3], "dtype": "uint8"}
    images = [np.frombuffer(image, said["dtype"]).reshape(said["shape"]) for image in columns["observation.main_images"]]
    assert np.array_equal(np.stack(images), episode.observations["main_images"][:-1])


def test_one_writer_for_a_folder(tmp_path):
    first = NumpyWriter(tmp_path)
    with pytest.raises(RLinfError, match="another writer is at work"):
        NumpyWriter(tmp_path)
    first.close()
    NumpyWriter(tmp_path).close()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RLinfError, match="can't be written"):
        NumpyWriter(tmp_path / "file" / "folder")


@pytest.mark.parametrize("export_format", ["lerobot", "numpy", "parquet"])
def test_from_a_configuration(tmp_path, export_format):
    pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
    recording = Recording(save_dir=str(tmp_path), export_format=export_format)
    recording.check("env.train.data_collection")
    env = recording.wrap(tables(1), name="train_3")
    env.reset(seed=1)
    for _ in range(2):
        env.step(np.zeros((1, 2), np.float32))
    env.close()
    suffix = {"lerobot": "data/chunk-000/file-000.parquet", "numpy": "episode_000000.npz", "parquet": "episode_000000.parquet"}
    assert (tmp_path / "train_3" / suffix[export_format]).exists()


@pytest.mark.parametrize("wrong", [{"save_dir": ""}, {"fps": 0}, {"finalize_interval": 0}, {"max_episodes": 0}])
def test_a_configuration_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match=rf"here\.{next(iter(wrong))}"):
        Recording(**({"save_dir": "x"} | wrong)).check("here")


def test_no_more_episodes_than_asked_for_are_kept_over_runs(tmp_path):
    recording = Recording(save_dir=str(tmp_path), export_format="numpy", max_episodes=3)
    for run in range(2):
        env = recording.wrap(tables(2), name="train_0")
        for seed in range(1 + run):
            env.reset(seed=seed)
            for _ in range(2):
                env.step(np.zeros((2, 2), np.float32))
        env.close()
        assert len(list(tmp_path.glob("train_0/*.npz"))) == 2 + run


def test_episodes_that_only_fill_up_a_batch_are_not_kept():
    kept = Kept()
    env = RecordEpisodes(tables(3), kept)
    env.reset(seed=1, options={"playing": np.array([True, False, True])})
    for _ in range(2):
        env.step(np.zeros((3, 2), np.float32))
    assert [episode.seed for episode in kept.episodes] == [1, 3]


def test_an_evaluation_keeps_each_episode_once():
    """Five episodes in four environments: three of them have nothing to do after the first."""
    kept = Kept()
    env = EnforceContract(RecordEpisodes(tables(4), kept))
    protocol = EpisodeProtocol(env="tables", init_ids=tuple(range(5)), initial_states="seed", max_episode_steps=2)
    evaluate(env, lambda seen, turns: np.zeros((len(turns), 2), np.float32), protocol)
    assert sorted(episode.seed for episode in kept.episodes) == sorted(key.env_seed for key in protocol.work_list())
