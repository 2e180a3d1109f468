"""Images that are drawn only where somebody looks: nothing but the number of drawn frames differs from steps by hand."""

from __future__ import annotations

import importlib
import runpy
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorWrapper

from rlinf.core.envs.chunks import ChunkExecution, chunk_step
from rlinf.core.envs.failures import env_place
from rlinf.envs.actions.formats import Identity
from rlinf.envs.assembly import assemble
from rlinf.envs.gymnasium import Gymnasium
from rlinf.envs.libero.libero import Libero
from rlinf.envs.metaworld import MetaWorld
from rlinf.envs.rendering.mujoco import can_render
from rlinf.envs.rendering.on_demand import ImagesOnDemand
from rlinf.envs.robosuite import Robosuite
from rlinf.envs.wrappers.action_format import FormatActions
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import MaskedActions
from rlinf.envs.wrappers.groups import GroupReset
from rlinf.envs.wrappers.images import Augmentation, AugmentImages, ResizeImages
from rlinf.envs.wrappers.latency import Latency
from rlinf.envs.wrappers.rewards import ShapedReward

needs_gl = pytest.mark.skipif(not can_render(), reason="MuJoCo can't draw here: install libegl1 and libgl1-mesa-dri, or libosmesa6")


class Drawing(gymnasium.Env):
    """Counts steps, ends after `ends`, and draws the count."""

    def __init__(self, ends=10**6):
        self.metadata = {"render_modes": []}
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {"states": box(-np.inf, np.inf, (1,), np.float32), "main_images": box(0, 255, (8, 8, 3), np.uint8)}
        )
        self.action_space = box(-1.0, 1.0, (2,), np.float32)
        self.ends, self.count, self.drawn = ends, 0, 0
        self.images_on_demand = ImagesOnDemand(self.draw)

    def draw(self):
        self.drawn += 1
        return {"main_images": np.arange(192, dtype=np.uint8).reshape(8, 8, 3) + np.uint8(self.count)}

    def observe(self):
        return {"states": np.array([self.count], np.float32), **self.images_on_demand.observe()}

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        return self.observe(), float(action[0]), self.count >= self.ends, False, {"success": self.count >= self.ends}


def drawings(*ends, limit=100, camera=None):
    return assemble([lambda end=end: Drawing(end) for end in ends], max_episode_steps=limit, camera=camera)


def drawn(env):
    return [task.drawn for task in env.unwrapped.envs]


def count_draws(env):
    """From now on; a list of the numbers of environments, one for each time that one is drawn."""
    calls = []
    for number, task in enumerate(env.unwrapped.envs):
        images = task.images_on_demand
        images._draw = lambda number=number, draw=images._draw: calls.append(number) or draw()
    return calls


def by_hand(env, actions):
    """The steps of a chunk, in which everything is drawn: observations, rewards, both flags, success and statistics."""
    active, rewards = np.ones(len(actions), bool), np.zeros(actions.shape[:2], np.float32)
    over, cut = (np.zeros(actions.shape[:2], bool) for _ in range(2))
    for k in range(actions.shape[1]):
        if active.any():
            seen, reward, ended, stopped, infos = env.step(MaskedActions(actions[:, k], active))
            rewards[active, k], over[active, k], cut[active, k] = reward[active], ended[active], stopped[active]
            active = active & ~(ended | stopped)
    return seen, rewards, over, cut, infos["success"], infos["episode"]


def in_chunks(env, actions):
    step = chunk_step(env, actions)
    return step.observations, step.rewards, step.terminated, step.truncated, step.infos["success"], step.infos["episode"]


def expect_equal(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        pairs = [(one[key], other[key]) for key in one]
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
        pairs = []
    else:
        pairs = list(zip(one, other, strict=True))
    for a, b in pairs:
        expect_equal(a, b)


def episodes(env, advance, limit, size=4, prepare=lambda env: None, seed=(3, 4)):
    """Four chunks: of two rows out of step with one another, each of which ends inside one, and one in which both end."""
    draw = np.random.default_rng(0)
    low, high = env.single_action_space.low, env.single_action_space.high

    def actions(k):
        return draw.uniform(low, high, (2, k, len(low))).astype(np.float32)

    seen = [env.reset(seed=list(seed))[0]]
    prepare(env)
    for reset in (lambda result: np.array([True, False]), lambda result: (result[2] | result[3]).any(axis=1), None):
        result = advance(env, actions(size))
        seen.append(result)
        if reset is not None and reset(result).any():
            seen.append(env.reset(seed=[5, 6], options={"reset_mask": reset(result)})[0])
    seen.append(env.reset(seed=[7, 8])[0])
    seen.append(advance(env, actions(limit + 2)))
    return seen


def test_what_stands_still_is_drawn_when_it_is_seen():
    env = drawings(2, 9)
    env.reset(seed=1)
    step = chunk_step(env, np.zeros((2, 4, 2), np.float32))
    assert drawn(env) == [2, 2]
    assert step.observations["main_images"][:, 0, 0, 0].tolist() == [2, 4]
    env.reset(seed=1, options={"reset_mask": step.done})
    assert drawn(env) == [3, 2]


def test_only_the_rows_that_are_seen_are_drawn():
    env = drawings(9, 9)
    env.reset(seed=1)
    zero, on = np.zeros((2, 2), np.float32), np.ones(2, bool)
    first = env.step(MaskedActions(zero, on, np.array([True, False])))[0]
    assert first["main_images"][:, 0, 0, 0].tolist() == [1, 0]
    assert first["states"][:, 0].tolist() == [1, 1], "all but the images is of now"
    second = env.step(MaskedActions(zero, np.array([True, False]), np.array([False, False])))[0]
    assert second["main_images"][:, 0, 0, 0].tolist() == [1, 0]
    assert drawn(env) == [2, 1]
    third = env.step(MaskedActions(zero, ~on))[0]
    assert third["main_images"][:, 0, 0, 0].tolist() == [2, 1]
    assert drawn(env) == [3, 2]
    assert env.step(zero)[0]["main_images"][:, 0, 0, 0].tolist() == [3, 2]


def test_a_reset_shows_the_others_as_they_are():
    """As after a chunk in which one of them failed."""
    env = drawings(9, 9, 9)
    env.reset(seed=1)
    on = np.ones(3, bool)
    env.step(MaskedActions(np.zeros((3, 2), np.float32), on, ~on))
    shown = env.reset(seed=1, options={"reset_mask": np.array([True, False, False])})[0]
    assert shown["main_images"][:, 0, 0, 0].tolist() == [0, 1, 1]
    assert drawn(env) == [2, 2, 2]


def test_a_picture_that_fails_says_whose_it_is():
    env = drawings(1, 9)
    env.reset(seed=1)
    env.unwrapped.envs[0].images_on_demand._draw = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError) as error:
        chunk_step(env, np.zeros((2, 3, 2), np.float32))
    assert env_place(error.value).env == 0
    assert all(task.images_on_demand.wanted for task in env.unwrapped.envs)


def stack(env):
    """What a recipe may put around an environment."""
    late = Latency(FormatActions(env, Identity()), steps=(0, 2))
    looked = ResizeImages(AugmentImages(late, Augmentation(shift=1, brightness=0.5)), (6, 6))
    return ShapedReward(EnforceContract(looked), use_rel_reward=True)


@pytest.mark.parametrize("wrap", [lambda env: env, stack, lambda env: GroupReset(stack(env), group_size=1)])
def test_wrappers_let_images_be_left_out_and_return_the_same(wrap):
    results, counts = [], []
    for advance in (by_hand, in_chunks):
        env = wrap(drawings(6, 3))
        env.reset(seed=1)
        values = np.random.default_rng(0).uniform(-1, 1, (2, 8, 2)).astype(np.float32)
        results.append([advance(env, values[:, :2]), advance(env, values[:, 2:])])
        counts.append(drawn(env))
    expect_equal(*results)
    assert counts == [[7, 4], [3, 3]]


def test_a_wrapper_of_a_stranger_sees_everything():
    class Watching(VectorWrapper):
        def step(self, actions):
            result = self.env.step(actions)
            pictures.append(result[0]["main_images"][0, 0, 0, 0])
            return result

    pictures = []
    env = Watching(drawings(9))
    env.reset(seed=1)
    chunk_step(env, np.zeros((1, 4, 2), np.float32))
    assert pictures == [1, 2, 3, 4]


def test_an_environment_without_images_has_none_to_leave_out(counters):
    assert not counters(3).metadata["unseen_steps"]
    assert drawings(3).metadata["unseen_steps"]


def test_a_video_is_that_of_the_steps(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    films = []
    for advance in (by_hand, in_chunks):
        shots = []

        def camera(shot, shots=shots):
            shots.append((shot.index, shot.states.tolist(), shot.rewards, shot.success))
            return np.zeros((16, 16, 3), np.uint8)

        env = drawings(2, 5, camera=camera)
        env.reset(seed=1, options={"record": str(tmp_path / f"{len(films)}.mp4"), "tiles": 2})
        advance(env, np.full((2, 3, 2), 0.5, np.float32))
        env.reset(seed=1, options={"reset_mask": np.array([True, False])})
        advance(env, np.full((2, 4, 2), 0.5, np.float32))
        env.close()
        films.append(shots)
    assert films[0] == films[1]


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    """A folder that stands for LIBERO's meshes."""
    root = tmp_path_factory.mktemp("libero_assets")
    runpy.run_path(str(Path(__file__).parent / "libero_shapes.py"))["write_shapes"](root)
    return str(root)


def lift_the_cube(env):
    """Of the first row, which thereby succeeds at once."""
    inner = env.unwrapped.envs[0]._env
    pose = inner.sim.data.get_joint_qpos(inner.cube.joints[0]).copy()
    pose[2] += 0.6
    inner.sim.data.set_joint_qpos(inner.cube.joints[0], pose)


def put_the_bowl_on_the_plate(env):
    """Of the first row, which thereby succeeds within some steps."""
    inner = env.unwrapped.envs[0].simulation.env.env
    bowl, plate = (inner.objects_dict[name].joints[-1] for name in ("akita_black_bowl_1", "plate_1"))
    pose = inner.sim.data.get_joint_qpos(plate).copy()
    pose[2] += 0.031
    inner.sim.data.set_joint_qpos(bowl, pose)


def build(config, limit):
    return config.make(2, max_episode_steps=limit, ignore_terminations=False, render=False)


SIMULATORS = {
    "gymnasium": ("gymnasium", lambda assets: Gymnasium(env_id="Hopper-v5", obs_mode="rgb", image_size=24)),
    "ant": ("gymnasium", lambda assets: Gymnasium(env_id="Ant-v5", obs_mode="rgb", image_size=24, look="full")),
    "metaworld": ("metaworld", lambda assets: MetaWorld(task_id="push", obs_mode="rgb", image_size=24, wrist_camera=True)),
    "robosuite": ("robosuite", lambda assets: Robosuite(obs_mode="rgb", image_size=24, rebuild=False)),
    "rebuilt": ("robosuite", lambda assets: Robosuite(obs_mode="rgb", image_size=24)),
    "libero": ("libero", lambda assets: Libero(assets=assets, task_ids=(0,), image_size=24, settle_steps=2)),
}
SLOW = ("ant", "robosuite", "rebuilt", "libero")


@needs_gl
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SIMULATORS])
def test_chunks_are_steps_by_hand_where_a_limit_ends_episodes(name, assets):
    package, config = SIMULATORS[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = build(config(assets), 7)
    calls = count_draws(env)
    stepped = episodes(env, by_hand, 7)
    by_steps = len(calls)
    expect_equal(stepped, episodes(env, in_chunks, 7))
    ends = [result[3].any(axis=1).tolist() for result in stepped if isinstance(result, tuple)]
    assert ends == [[False, False], [False, True], [True, False], [True, True]]
    # Of resets 6; of chunks every step of theirs, or each row once.
    assert (by_steps, len(calls) - by_steps) == (6 + 8 + 7 + 7 + 14, 6 + 8)
    env.close()


@needs_gl
@pytest.mark.parametrize(("name", "prepare"), [("robosuite", lift_the_cube), ("libero", put_the_bowl_on_the_plate)])
def test_chunks_are_steps_by_hand_where_success_ends_an_episode(name, prepare, assets):
    package, config = SIMULATORS[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = build(config(assets), 50)
    results = []
    for advance in (by_hand, in_chunks):
        env.reset(seed=[3, 4])
        prepare(env)
        size = env.single_action_space.shape[0]
        results.append(advance(env, np.tile(np.eye(size, dtype=np.float32)[-1] * -1, (2, 8, 1))))
    assert results[0][2].any(axis=1).tolist() == [True, False]
    expect_equal(*results)
    env.close()


@needs_gl
def test_chunks_of_an_expert_are_its_steps():
    """Until it succeeds, in the middle of a chunk; rich in contacts."""
    if find_spec("metaworld") is None:
        pytest.skip("metaworld is not installed")
    policy = importlib.import_module("metaworld.policies").ENV_POLICY_MAP["drawer-close-v3"]()
    blind = MetaWorld(task_id="drawer-close").make(1, max_episode_steps=150, ignore_terminations=False, render=False)
    states, taken, over = blind.reset(seed=[5])[0]["states"], [], np.array([False])
    while not over[0]:
        taken.append(np.clip(policy.get_action(states[0].astype(np.float64)), -1, 1).astype(np.float32))
        observation, _, over, _, _ = blind.step(taken[-1][None])
        states = observation["states"]
    size = 8 if len(taken) % 8 else 7
    rest = [np.zeros(4, np.float32)] * (-len(taken) % size)
    chunks = np.array(taken + rest).reshape(1, -1, size, 4)
    config = MetaWorld(task_id="drawer-close", obs_mode="rgb", image_size=24)
    env = config.make(1, max_episode_steps=150, ignore_terminations=False, render=False)
    results = []
    for advance in (by_hand, in_chunks):
        env.reset(seed=[5])
        results.append([advance(env, chunks[:, t]) for t in range(chunks.shape[1])])
    assert results[0][-1][2].any()
    assert rest
    expect_equal(*results)


@needs_gl
def test_videos_show_now_where_an_observation_does_not():
    pytest.importorskip("PIL")
    env = Gymnasium(env_id="Hopper-v5", obs_mode="rgb", image_size=24).make(
        1, max_episode_steps=50, ignore_terminations=True, render=True
    )
    before = env.reset(seed=[1])[0]["main_images"]
    full, on = np.ones((1, 3), np.float32), np.ones(1, bool)
    for _ in range(8):
        seen = env.step(MaskedActions(full, on, ~on))[0]["main_images"]
    assert np.array_equal(seen, before)
    shown = env.render()[0]
    assert not np.array_equal(shown, before[0])
    assert np.array_equal(env.step(MaskedActions(full, ~on))[0]["main_images"][0], shown)


@needs_gl
def test_a_task_whose_simulation_changes_when_it_is_drawn_is_drawn_always():
    if find_spec("gymnasium_robotics") is None:
        pytest.skip("gymnasium_robotics is not installed")
    env = Gymnasium(env_id="gymnasium_robotics:FetchReach-v4", obs_mode="rgb", image_size=24).make(
        1, max_episode_steps=9, ignore_terminations=False, render=False
    )
    assert not env.metadata["unseen_steps"]


def test_parts_of_a_chunk():
    env = drawings(9, 9)
    env.reset(seed=1)
    execution = ChunkExecution(env)
    execution.advance(np.zeros((2, 3, 2), np.float32))
    execution.advance(np.zeros((2, 4, 2), np.float32))
    assert drawn(env) == [3, 3]
    assert execution.finish().observations["main_images"][:, 0, 0, 0].tolist() == [7, 7]
