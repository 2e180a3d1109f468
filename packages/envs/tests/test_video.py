from __future__ import annotations

import numpy as np
import pytest

from rlinf.core.errors import RLinfError
from rlinf.envs import Gymnasium
from rlinf.envs.video import RecordVideo, Shot

iio = pytest.importorskip("imageio.v3", reason="the extra rlinf-envs[video] is not installed")
pytest.importorskip("imageio_ffmpeg", reason="the extra rlinf-envs[video] is not installed")


def camera(shot):
    """A grey that tells the step."""
    return np.full((64, 96, 3), 40 + 20 * len(shot.rewards), np.uint8)


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
    assert frames.shape[1:] == (64 + 28, 96, 3)
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
    assert frames.shape[2] == 2 * 96
    left, right = ([int(f[20:40, x : x + 40].mean()) for f in frames[:5]] for x in (20, 116))
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


def test_at_most_four_tiles(counters, tmp_path):
    env = counters(*[1] * 6, camera=camera)
    path = tmp_path / "tiles.mp4"
    env.reset(seed=1, options={"record": path})
    env.step(zeros(6))
    assert iio.imread(path).shape[1:3] == (2 * (64 + 28), 2 * 96)


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
    from rlinf.envs._schematic import schematic_camera

    draw = schematic_camera(env_id)
    frame = draw(shot(size))
    assert (frame.shape, frame.dtype) == ((320, 320, 3), np.uint8)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 20, "there is something in the picture"
    assert np.array_equal(frame, draw(shot(size)))
    draw(shot(size, rewards=()))


def test_schematic_of_push_cube_shows_cube_and_goal_where_they_are():
    from rlinf.envs._push_cube import draw

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
