from __future__ import annotations

import contextlib

import numpy as np
import pytest

from rlinf.core.envs.chunks import chunk_step
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.envs.assembly import SequentialVectorEnv
from rlinf.envs.gymnasium import Gymnasium
from rlinf.envs.tabletop.config import Tabletop
from rlinf.envs.wrappers.episodes import EpisodeStatistics
from rlinf.envs.wrappers.video import RecordVideo, Shot

iio = pytest.importorskip("imageio.v3", reason="the extra rlinf-envs[video] is not installed")
pytest.importorskip("imageio_ffmpeg", reason="the extra rlinf-envs[video] is not installed")


def camera(shot):
    """A grey that tells the step."""
    return np.full((64, 160, 3), 40 + 20 * len(shot.rewards), np.uint8)


def zeros(count):
    return np.zeros((count, 2), np.float32)


def levels(path):
    """The grey of each frame's first tile, over time."""
    return [int(frame[20:40, 20:60].mean()) for frame in iio.imread(path)]


def test_a_video_of_one_episode(counters, tmp_path):
    env = counters(3, camera=camera)
    path = tmp_path / "deep" / "episode.mp4"
    env.reset(seed=1, options={"record": str(path)})
    for _ in range(3):
        assert not path.exists()
        env.step(zeros(1))
    frames = iio.imread(path)
    assert frames.shape[1:] == (64 + 28, 160, 3)
    seen = levels(path)
    assert len(seen) == 4 + 15, "a frame for each state, and the last one held"
    assert np.allclose(seen[:4], [40, 60, 80, 100], atol=6)
    assert list(tmp_path.rglob("*.part.mp4")) == []
    env.close()


def test_a_tile_stands_still_after_its_end_and_a_partial_reset_goes_on(counters, tmp_path):
    env = counters(1, 4, camera=camera)
    path = tmp_path / "two.mp4"
    env.reset(seed=1, options={"record": path})
    done = env.step(zeros(2))[2]
    for _ in range(3):
        env.reset(seed=1, options={"reset_mask": done})
        assert not path.exists()
        done = env.step(zeros(2))[2]
    frames = iio.imread(path)
    assert frames.shape[2] == 2 * 160
    left, right = ([int(f[20:40, x : x + 40].mean()) for f in frames[:5]] for x in (20, 180))
    assert np.allclose(left, [40, 60, 60, 60, 60], atol=6)
    assert np.allclose(right, [40, 60, 80, 100, 120], atol=6)


@pytest.mark.parametrize("ending", ["reset", "close"])
def test_a_recording_cut_short_is_complete_too(counters, tmp_path, ending):
    env = counters(9, camera=camera)
    path = tmp_path / "short.mp4"
    env.reset(seed=1, options={"record": path})
    env.step(zeros(1))
    env.reset(seed=2) if ending == "reset" else env.close()
    assert len(levels(path)) == 2 + 15


@pytest.mark.parametrize(("tiles", "rows", "columns"), [(None, 2, 2), (1, 1, 1), (6, 2, 3), (99, 2, 3)])
def test_as_many_tiles_as_asked_for(counters, tmp_path, tiles, rows, columns):
    env = counters(*[1] * 6, camera=camera)
    path = tmp_path / "tiles.mp4"
    env.reset(seed=1, options={"record": path} | ({"tiles": tiles} if tiles else {}))
    env.step(zeros(6))
    assert iio.imread(path).shape[1:3] == (rows * (64 + 28), columns * 160)


def test_no_tiles_at_all_is_an_error(counters, tmp_path):
    with pytest.raises(ConfigError, match="'tiles' must be at least 1"):
        counters(1, camera=camera).reset(seed=1, options={"record": tmp_path / "x.mp4", "tiles": 0})


def test_a_small_frame_is_enlarged_until_its_words_have_room(counters, tmp_path):
    env = counters(1, camera=lambda shot: np.pad(np.full((32, 32, 3), 200, np.uint8), ((0, 0), (32, 0), (0, 0))))
    env.reset(seed=1, options={"record": tmp_path / "small.mp4"})
    env.step(zeros(1))
    frame = iio.imread(tmp_path / "small.mp4")[0]
    assert frame.shape == (3 * 32 + 28, 3 * 64, 3)
    assert frame[20:80, 10:86].mean() < 15 < 185 < frame[20:80, 106:182].mean()


def test_captions():
    assert shot(1, rewards=()).caption == ("step 0", "", "", "")
    assert shot(1, success=True).caption == ("step 3", "reward 0.20, return 0.70", "success", "")


def test_a_task_in_words_has_its_own_line(tmp_path):
    env = Tabletop(task="slots", obs_mode="rgb").make(1, max_episode_steps=2, ignore_terminations=True, render=True)
    path = tmp_path / "slots.mp4"
    env.reset(seed=1, options={"record": path})
    for _ in range(2):
        env.step(np.zeros(env.action_space.shape, np.float32))
    frames = iio.imread(path)
    assert frames.shape[1:] == (256 + 46, 256, 3)
    line = frames[0, 256 + 30 : -2, 4:-4]
    assert line.min() < 120, "something is written there"
    env.close()


def test_a_chunk_is_filmed_step_by_step(counter, tmp_path):
    tasks = [lambda: counter(1), lambda: counter(9)]
    inner = EpisodeStatistics(SequentialVectorEnv(tasks), 3)
    env = RecordVideo(inner, camera)
    path = tmp_path / "chunk.mp4"
    env.reset(seed=[1, 2], options={"record": path})
    chunk_step(env, np.zeros((2, 5, 2), np.float32))
    left, right = ([int(f[20:40, x : x + 40].mean()) for f in iio.imread(path)[:4]] for x in (20, 180))
    assert np.allclose(left, [40, 60, 60, 60], atol=6)
    assert np.allclose(right, [40, 60, 80, 100], atol=6)
    assert [len(s) for s in env._rewards] == [1, 3]


def test_an_encoder_that_fails_is_a_clear_error(counters, tmp_path, monkeypatch):
    encoder = tmp_path / "ffmpeg"
    encoder.write_text("#!/bin/sh\necho no space left on device >&2\nexit 1\n")
    encoder.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(encoder))
    env = counters(9, camera=lambda shot: np.random.default_rng(0).integers(0, 255, (512, 512, 3), np.uint8))

    def record():
        env.reset(seed=1, options={"record": tmp_path / "film.mp4"})
        for _ in range(3):
            env.step(zeros(1))
        env.close()

    with pytest.raises(RLinfError, match=r"video: .*film\.mp4 can't be written: .*full disk"):
        record()
    with contextlib.suppress(RLinfError):
        env.close()
    assert not (tmp_path / "film.mp4").exists()


def test_a_folder_that_cannot_be_made_is_a_clear_error(counters, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RLinfError, match="can't be written"):
        counters(9, camera=camera).reset(seed=1, options={"record": tmp_path / "file" / "film.mp4"})


def test_render_gives_a_frame_of_each_environment(counters):
    env = counters(5, 5, 5, camera=camera)
    with pytest.raises(RLinfError, match="never reset"):
        env.render()
    env.reset(seed=1)
    env.step(zeros(3))
    env.reset(seed=1, options={"reset_mask": np.array([False, True, False])})
    assert [int(frame[0, 0, 0]) for frame in env.render()] == [60, 40, 60]


def test_without_render_there_is_no_recorder():
    env = Gymnasium(env_id="Pendulum-v1").make(1, max_episode_steps=None, ignore_terminations=False, render=False)
    assert not isinstance(env, RecordVideo)


def shot(size, rewards=(0.1, 0.4, 0.2), success=False):
    states = np.linspace(-0.3, 0.3, size).astype(np.float32)
    return Shot(index=0, states=states, rewards=rewards, success=success)


@pytest.mark.parametrize(("env_id", "size"), [("PushCube-v1", 35), ("FetchReachDense-v4", 16), ("Other-v0", 5), ("PushCube-v1", 6)])
def test_schematics(env_id, size):
    from rlinf.envs.rendering._schematic import schematic_camera

    draw = schematic_camera(env_id)
    frame = draw(shot(size))
    assert (frame.shape, frame.dtype) == ((320, 320, 3), np.uint8)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 20, "there is something in the picture"
    assert np.array_equal(frame, draw(shot(size)))
    draw(shot(size, rewards=()))


def test_a_panel_of_an_environment_without_states():
    from rlinf.envs.rendering._schematic import panel

    assert panel(shot(0)).shape == (320, 320, 3)


def test_schematic_of_push_cube_shows_cube_and_goal_where_they_are():
    from rlinf.envs.rendering._push_cube import draw

    states = np.zeros(35, np.float32)
    states[18:21], states[21], states[25:28], states[28:31], states[31] = (-0.2, 0.2, 0.1), 1, (0.2, 0.1, 0), (0.0, -0.1, 0.02), 1
    frame = draw(Shot(index=0, states=states, rewards=(), success=False)).astype(int)
    scale = 320 / 0.82

    def at(x, y):
        return frame[round(320 - (y + 0.41) * scale), round((x + 0.44) * scale)].tolist()

    assert np.allclose(at(0.0, -0.1), (36, 92, 196), atol=12)
    assert np.allclose(at(0.2, 0.1), (214, 66, 58), atol=12)


def test_a_video_of_an_environment_that_cannot_render(tmp_path):
    env = Gymnasium(env_id="Pendulum-v1").make(2, max_episode_steps=4, ignore_terminations=False, render=True)
    path = tmp_path / "pendulum.mp4"
    env.reset(seed=1, options={"record": path})
    for _ in range(4):
        env.step(np.zeros((2, 1), np.float32))
    env.close()
    assert len(iio.imread(path)) == 5 + 15


def test_what_gymnasium_asks_of_one_that_renders(counters) -> None:
    env = counters(4, 6, camera=lambda shot: np.zeros((8, 8, 3), np.uint8))
    assert env.render_mode == "rgb_array"
    env.reset(seed=0)
    assert [frame.shape for frame in env.render()] == [(8, 8, 3)] * 2
    env.close()
