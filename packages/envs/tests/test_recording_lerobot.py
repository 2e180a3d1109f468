from __future__ import annotations

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, RLinfError, ShapeError
from rlinf.envs.recording import Episode, LeRobotWriter

pa = pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the extra rlinf-envs[recording] is not installed")
iio = pytest.importorskip("imageio.v3", reason="the extra rlinf-envs[video] is not installed")
pytest.importorskip("imageio_ffmpeg", reason="the extra rlinf-envs[video] is not installed")


def an_episode(length=3, seed=5, task="stack them", size=(16, 24)):
    """Each frame has a grey of its own, which a video keeps."""
    rng = np.random.default_rng(seed)
    none = np.zeros(length, np.bool_)
    last = none.copy()
    last[-1] = True
    level = (20 + 10 * ((seed + np.arange(length + 1)) % 20)).astype(np.uint8)
    images = np.broadcast_to(level[:, None, None, None], (length + 1, *size, 3)).copy()
    observations = {
        "states": rng.normal(size=(length + 1, 2)).astype(np.float32),
        "main_images": images,
        "wrist_images": np.stack([255 - images, images // 2], axis=1),
        "force": rng.normal(size=(length + 1, 1)).astype(np.float32),
    }
    return Episode(
        observations=observations,
        actions=rng.normal(size=(length, 4)).astype(np.float32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminated=none,
        truncated=last,
        success=last,
        task=task,
        seed=seed,
    )


EPISODES = [an_episode(3, 5), an_episode(5, 6, "open it"), an_episode(4, 7), an_episode(2, 8, "open it"), an_episode(3, 9)]
VIDEOS = ("observation.images.main", "observation.images.wrist_0", "observation.images.wrist_1")


def record(folder, episodes=EPISODES, **settings):
    writer = LeRobotWriter(folder, **{"fps": 10, "robot_type": "panda"} | settings)
    for episode in episodes:
        writer.write(episode)
    writer.close()
    return folder


def table(folder, part):
    """All rows below `part`, in the order of the files."""
    return pa.concat_tables([parquet.read_table(path) for path in sorted((folder / part).glob("*/*.parquet"))]).to_pydict()


def info(folder):
    return json.loads((folder / "meta" / "info.json").read_text())


def assert_holds(folder, episodes=EPISODES, fps=10):
    """Every field of the dataset is that of the episodes."""
    about, rows, frames = info(folder), table(folder, "meta/episodes"), table(folder, "data")
    lengths = [len(episode) for episode in episodes]
    ends = np.cumsum(lengths).tolist()
    assert (about["total_episodes"], about["total_frames"]) == (len(episodes), ends[-1])
    assert about["splits"] == {"train": f"0:{len(episodes)}"}
    assert rows["episode_index"] == list(range(len(episodes)))
    assert rows["length"] == lengths
    assert rows["tasks"] == [[episode.task] for episode in episodes]
    assert rows["dataset_from_index"] == [0, *ends[:-1]]
    assert rows["dataset_to_index"] == ends
    assert frames["index"] == list(range(ends[-1]))
    assert frames["episode_index"] == np.repeat(np.arange(len(episodes)), lengths).tolist()
    assert frames["frame_index"] == [t for length in lengths for t in range(length)]
    np.testing.assert_allclose(frames["timestamp"], np.array(frames["frame_index"]) / fps, atol=1e-6)
    tasks = parquet.read_table(folder / "meta" / "tasks.parquet").to_pydict()
    assert tasks["task_index"] == list(range(about["total_tasks"]))
    assert [tasks["task"][i] for i in frames["task_index"]] == [e.task for e in episodes for _ in range(len(e))]
    for key, wanted in columns(episodes).items():
        np.testing.assert_array_equal(np.array(frames[key], wanted.dtype), wanted)
    # A film is read once, and not for each of its episodes: every reading starts two processes.
    read = functools.cache(iio.imread)
    for number, episode in enumerate(episodes):
        at = {name: rows[f"data/{name}"][number] for name in ("chunk_index", "file_index")}
        one = parquet.read_table(folder / about["data_path"].format(**at)).to_pydict()
        assert set(range(rows["dataset_from_index"][number], rows["dataset_to_index"][number])) <= set(one["index"])
        if about["video_path"]:
            assert_filmed(read, folder, about, rows, number, episode)


def columns(episodes):
    return {
        "observation.state": np.concatenate([e.observations["states"][:-1] for e in episodes]),
        "observation.force": np.concatenate([e.observations["force"][:-1, 0] for e in episodes]),
        "action": np.concatenate([e.actions for e in episodes]),
        "next.reward": np.concatenate([e.rewards for e in episodes]),
        "next.done": np.concatenate([e.terminated | e.truncated for e in episodes]),
        "next.truncated": np.concatenate([e.truncated for e in episodes]),
        "next.success": np.concatenate([e.success for e in episodes]),
    }


def views(episode):
    wrist = episode.observations["wrist_images"][:-1]
    return dict(zip(VIDEOS, (episode.observations["main_images"][:-1], wrist[:, 0], wrist[:, 1]), strict=True))


def assert_filmed(read, folder, about, rows, number, episode):
    for key, images in views(episode).items():
        at = {name: rows[f"videos/{key}/{name}"][number] for name in ("chunk_index", "file_index")}
        film = read(folder / about["video_path"].format(video_key=key, **at))
        first, end = (round(rows[f"videos/{key}/{name}"][number] * about["fps"]) for name in ("from_timestamp", "to_timestamp"))
        assert end - first == len(episode)
        shown = film[first:end].astype(int)
        assert shown.shape == images.shape
        assert np.abs(shown - images).max() <= 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A dataset of one file, for tests that only read or copy it: every file starts an encoder for each camera."""
    return record(tmp_path_factory.mktemp("recorded") / "set", finalize_interval=100)


@pytest.mark.parametrize("interval", [pytest.param(1, marks=pytest.mark.slow), 2, 100])
def test_every_field(tmp_path, interval, request):
    folder = request.getfixturevalue("recorded") if interval == 100 else record(tmp_path / "set", finalize_interval=interval)
    assert_holds(folder)
    files = {1: 5, 2: 3, 100: 1}[interval]
    for part in ("data", "meta/episodes", *(f"videos/{key}" for key in VIDEOS)):
        assert [p.name.split(".")[0] for p in sorted((folder / part).rglob("file-*"))] == [f"file-{n:03d}" for n in range(files)]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "data", "meta", "videos"]


def test_what_the_metadata_say(recorded):
    about = info(recorded)
    assert (about["codebase_version"], about["robot_type"], about["fps"]) == ("v3.0", "panda", 10)
    assert (about["total_tasks"], about["chunks_size"]) == (2, 1000)
    features = about["features"]
    vectors = {key: (feature["dtype"], feature["shape"]) for key, feature in features.items() if feature["dtype"] != "video"}
    index = ("int64", [1])
    assert vectors == {
        "observation.state": ("float32", [2]),
        "observation.force": ("float32", [1]),
        "action": ("float32", [4]),
        "next.reward": ("float32", [1]),
        "next.done": ("bool", [1]),
        "next.truncated": ("bool", [1]),
        "next.success": ("bool", [1]),
        "timestamp": ("float32", [1]),
        "frame_index": index,
        "episode_index": index,
        "index": index,
        "task_index": index,
    }
    assert [key for key in features if key not in vectors] == list(VIDEOS)
    film = features[VIDEOS[0]]
    assert (film["shape"], film["names"]) == ([16, 24, 3], ["height", "width", "channels"])
    assert (film["info"]["video.codec"], film["info"]["video.pix_fmt"], film["info"]["video.fps"]) == ("h264", "yuv420p", 10)
    pandas = json.loads(parquet.read_schema(recorded / "meta" / "tasks.parquet").metadata[b"pandas"])
    assert pandas["index_columns"] == ["task"]


def test_statistics_are_those_of_all_frames_together(recorded):
    stats = json.loads((recorded / "meta" / "stats.json").read_text())
    for key, values in columns(EPISODES).items():
        values = values.reshape(len(values), -1).astype(np.float64)
        assert stats[key]["count"] == [17]
        for name, function in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
            np.testing.assert_allclose(stats[key][name], function(values, axis=0), atol=1e-9)
    images = np.concatenate([views(episode)[VIDEOS[0]] for episode in EPISODES]) / 255
    np.testing.assert_allclose(np.array(stats[VIDEOS[0]]["mean"])[:, 0, 0], images.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(np.array(stats[VIDEOS[0]]["std"])[:, 0, 0], images.std(axis=(0, 1, 2)))
    rows = table(recorded, "meta/episodes")
    np.testing.assert_allclose(rows["stats/action/mean"][1], EPISODES[1].actions.mean(axis=0), atol=1e-6)


def test_images_instead_of_videos(tmp_path):
    folder = record(tmp_path, use_videos=False)
    assert_holds(folder)
    assert not (folder / "videos").exists()
    assert info(folder)["video_path"] is None
    stored = table(folder, "data")[VIDEOS[1]]
    wanted = np.concatenate([views(episode)[VIDEOS[1]] for episode in EPISODES])
    assert np.array_equal(np.stack([iio.imread(io.BytesIO(image["bytes"])) for image in stored]), wanted)


def test_a_dataset_is_continued(tmp_path, recorded):
    record(tmp_path, EPISODES[:3], finalize_interval=3)
    record(tmp_path, EPISODES[3:], finalize_interval=2)
    assert_holds(tmp_path)
    one, two = (json.loads((folder / "meta" / "stats.json").read_text()) for folder in (recorded, tmp_path))
    assert one.keys() == two.keys()
    for key in one:
        for name in one[key]:
            np.testing.assert_allclose(one[key][name], two[key][name], atol=1e-9)


def test_another_kind_of_dataset_is_not_continued(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ConfigError, match=r"has fps 10, and this run 20"):
        LeRobotWriter(tmp_path, fps=20, robot_type="panda")
    with pytest.raises(ConfigError, match=r"other features; observation\.images\.main, .* differ"):
        record(tmp_path, [an_episode(size=(8, 8))])
    assert_holds(tmp_path)


def test_a_dataset_of_someone_else_is_left_alone(tmp_path):
    (tmp_path / "meta").mkdir()
    for text in ("no json", '{"codebase_version": "v3.0", "fps": 10, "robot_type": "panda", "features": {}}'):
        (tmp_path / "meta" / "info.json").write_text(text)
        with pytest.raises(RLinfError, match="can't be continued"):
            LeRobotWriter(tmp_path, fps=10, robot_type="panda")
    assert [path.name for path in (tmp_path / "meta").iterdir()] == ["info.json"]


def test_an_interrupted_episode_is_not_committed(tmp_path, monkeypatch):
    writer = LeRobotWriter(tmp_path, fps=10, robot_type="panda", finalize_interval=2)
    for episode in EPISODES[:3]:
        writer.write(episode)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlinf.envs.recording._lerobot._Shard._add_frame", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.write(EPISODES[3])
    writer.close()
    assert_holds(tmp_path, EPISODES[:2])


def test_what_a_dataset_cannot_hold(tmp_path):
    with pytest.raises(ConfigError, match=r"15 × 24 pixels, and a video needs even"):
        record(tmp_path / "odd", [an_episode(size=(15, 24))])
    strange = an_episode()
    strange.observations["map"] = np.zeros((4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match="'map'"):
        record(tmp_path / "strange", [strange])


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from test_recording_lerobot import EPISODES, LeRobotWriter
import rlinf.envs.recording._lerobot as inner
writer = LeRobotWriter(sys.argv[1], fps=10, robot_type="panda", finalize_interval=int(sys.argv[3]))
for episode in EPISODES[:3]:
    writer.write(episode)
if sys.argv[4] == "encoding":
    inner.column = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[4] == "metadata":
    inner._write_json = lambda path, _: path.name == "info.json" and os.kill(os.getpid(), signal.SIGKILL)
writer.write(EPISODES[3])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("interval", "moment", "left"),
    [
        (1, "metadata", 3),
        (2, "encoding", 2),
        pytest.param(1, "encoding", 3, marks=pytest.mark.slow),
        pytest.param(1, "after", 4, marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_leaves_what_it_had_finished(tmp_path, interval, moment, left):
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "set"), here, str(interval), moment]
    died = subprocess.run(command, timeout=120, capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    if moment != "metadata":
        assert_holds(tmp_path / "set", EPISODES[:left])
    assert info(tmp_path / "set")["total_episodes"] == left
    record(tmp_path / "set", EPISODES[left:], finalize_interval=2)
    assert_holds(tmp_path / "set")


def test_an_episode_that_cannot_be_written_leaves_the_others(tmp_path, monkeypatch):
    writer = LeRobotWriter(tmp_path, fps=10, robot_type="panda")
    writer.write(EPISODES[0])
    broken = tmp_path.parent / f"{tmp_path.name}_ffmpeg"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(broken))
        with pytest.raises(RLinfError, match="can't be written"):
            writer.write(EPISODES[1])
    for episode in EPISODES[1:]:
        writer.write(episode)
    writer.close()
    assert_holds(tmp_path)


def test_memory_stays_flat(tmp_path):
    writer = LeRobotWriter(tmp_path, fps=10, finalize_interval=4)
    episode = an_episode(20)
    for key in ("main_images", "wrist_images"):
        del episode.observations[key]
    tracemalloc.start()
    try:
        for _ in range(12):
            writer.write(episode)
        early = tracemalloc.get_traced_memory()[0]
        for _ in range(40):
            writer.write(episode)
        grown = tracemalloc.get_traced_memory()[0] - early
    finally:
        tracemalloc.stop()
        writer.close()
    assert grown < 40_000
    assert info(tmp_path)["total_episodes"] == 52


def test_lerobot_itself_reads_it(tmp_path):
    module = pytest.importorskip("lerobot.datasets.lerobot_dataset", reason="lerobot is not installed")
    for use_videos in (True, False):
        folder = record(tmp_path / str(use_videos), use_videos=use_videos, finalize_interval=2)
        dataset = module.LeRobotDataset("local/recorded", root=folder, video_backend="pyav")
        assert (len(dataset), dataset.num_episodes, dataset.fps) == (17, 5, 10)
        assert dict(dataset.meta.tasks["task_index"]) == {"stack them": 0, "open it": 1}
        frames = [(episode, t) for episode in EPISODES for t in range(len(episode))]
        for number, (episode, t) in enumerate(frames):
            item = dataset[number]
            assert item["task"] == episode.task
            np.testing.assert_array_equal(item["action"].numpy(), episode.actions[t])
            np.testing.assert_array_equal(item["observation.state"].numpy(), episode.observations["states"][t])
            for key, images in views(episode).items():
                np.testing.assert_allclose(item[key].numpy().transpose(1, 2, 0) * 255, images[t], atol=4)
