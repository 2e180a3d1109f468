"""What a configuration can name as a wrapper, on environments of this package."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorWrapper

from rlinf.core.declarations import observed_of
from rlinf.core.errors import ConfigError, UnknownName
from rlinf.core.registry import ENV_WRAPPERS
from rlinf.envs import Gymnasium, MetaWorld, Parallel, Remote
from rlinf.envs.tabletop import Tabletop
from rlinf.envs.wrappers import EnvMisuse


def tables(**options: Any) -> Any:
    task = Tabletop(**({"task": "pick_place"} | options))
    return task.make(3, max_episode_steps=6, ignore_terminations=False, render=False)


def wrapped(type_: str, env: Any = None, **params: Any) -> Any:
    return ENV_WRAPPERS.build(type_, params, place="w").wrap(tables() if env is None else env, "train_0")


def actions(env: Any, value: float = 0.0) -> Any:
    return np.full(env.action_space.shape, value, np.float32)


class Halved(VectorWrapper):
    """A stranger's wrapper."""

    def __init__(self, env: Any, gain: float = 0.5) -> None:
        super().__init__(env)
        self.gain = gain

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = self.env.step(actions)
        return observations, (self.gain * rewards).astype(np.float32), *rest


def test_every_wrapper_of_ours_is_known() -> None:
    ours = {"action_format", "augment_images", "custom", "latency", "record_episodes", "resize_images", "shaped_reward"}
    assert ours <= set(ENV_WRAPPERS.names())


def test_an_action_format_has_the_models_action_space_and_the_simulators_actions() -> None:
    """`pick_place` takes x, y, height and gripper: the model writes seven numbers."""
    plain, formatted = tables(), wrapped("action_format", format="metaworld")
    assert formatted.single_action_space.shape == (7,)
    for env in (plain, formatted):
        env.reset(seed=3)
    model = np.tile(np.array([0.5, -0.25, 0.1, 9, 9, 9, -1], np.float32), (3, 1))
    model[:, 3:6] = 0.7
    ours, theirs = formatted.step(model), plain.step(model[:, [0, 1, 2, 6]])
    assert all(np.array_equal(ours[0][key], theirs[0][key]) for key in theirs[0])
    assert np.array_equal(ours[1], theirs[1])


def test_an_action_outside_of_the_models_bounds_is_refused_in_the_models_terms() -> None:
    env = wrapped("action_format", format=[{"type": "gripper", "source": "unit_open", "target": "sign_open"}])
    assert env.single_action_space.low.tolist() == [-1, -1, -1, 0]
    env.reset(seed=0)
    with pytest.raises(EnvMisuse, match=r"environment 0 is -1.0 at index \[3\], outside \[-1e-05"):
        env.step(actions(env, -1.0))


def test_what_a_format_gives_is_clipped_to_the_simulators_bounds() -> None:
    env = wrapped("action_format", format=[{"type": "unscale", "low": [-3.0] * 4, "high": [3.0] * 4}])
    assert env.single_action_space.high.tolist() == [1] * 4
    env.reset(seed=0)
    plain = tables()
    plain.reset(seed=0)
    assert np.array_equal(env.step(actions(env, 1.0))[0]["states"], plain.step(actions(plain, 1.0))[0]["states"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("libero", "action_format.format: made for other actions than the 4 numbers of the environment"),
        ([{"type": "pick", "columns": [0, 1]}], "made for other actions than the 4 numbers"),
        ([{"type": "unscale", "low": [0.0], "high": [1.0]}], "made for other actions than the 4 numbers"),
    ],
)
def test_a_format_of_another_simulator_is_refused_when_it_is_wrapped(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrapped("action_format", format=given)


@pytest.mark.parametrize(
    ("given", "place"),
    [("libro", "w.format"), ([{"type": "grip"}], r"w.format\[0\]"), ([{"source": "x"}], r"w.format\[0\].type")],
)
def test_a_format_that_is_none_is_refused_when_it_is_read(given: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        ENV_WRAPPERS.build("action_format", {"format": given}, place="w")


def test_a_format_of_a_strangers_function_keeps_the_simulators_space() -> None:
    from rlinf.envs.actions import register_action_format

    register_action_format("test_negative", lambda action: -action)
    env = wrapped("action_format", format="test_negative")
    assert env.single_action_space.shape == (4,)


def test_numbered_actions_have_no_format() -> None:
    cartpole = ENV_WRAPPERS.build("action_format", {"format": "identity"}, place="w")
    from rlinf.envs import Gymnasium

    env = Gymnasium(env_id="CartPole-v1").make(1, max_episode_steps=5, ignore_terminations=False, render=False)
    with pytest.raises(ConfigError, match="expected continuous actions"):
        cartpole.wrap(env, "train_0")


def test_augmentation_is_keyed_by_the_episodes_seed_and_left_out_of_evaluations() -> None:
    assert ENV_WRAPPERS.get("augment_images").training_only
    assert not ENV_WRAPPERS.get("resize_images").training_only
    shown: list[Any] = []
    for seed in (1, 1, 2):
        env = wrapped("augment_images", tables(obs_mode="rgb"), shift=4, brightness=0.2)
        shown.append(env.reset(seed=seed)[0]["main_images"])
    assert np.array_equal(shown[0], shown[1])
    assert not np.array_equal(shown[0], tables(obs_mode="rgb").reset(seed=1)[0]["main_images"])


def test_images_are_resized_in_their_space_too() -> None:
    env = wrapped("resize_images", tables(obs_mode="rgb"), size=[20, 24])
    assert env.single_observation_space["main_images"].shape == (20, 24, 3)
    assert env.reset(seed=0)[0]["wrist_images"].shape == (3, 20, 24, 3)


@pytest.mark.parametrize(
    ("type_", "params", "message"),
    [
        ("latency", {"steps": -1}, "w.steps: expected 0 ≤ least ≤ most, found -1"),
        ("latency", {"steps": [2, 1]}, "w.steps: expected 0 ≤ least ≤ most"),
        ("augment_images", {"crop": 1.5}, "w.crop: expected a value in"),
        ("resize_images", {"size": [0, 4]}, "w.size: expected numbers from 1"),
        ("resize_images", {"size": [4, 4], "center_crop": 0.0}, "w.center_crop"),
        ("shaped_reward", {"coef": 2.0}, "w.coef: unknown key"),
        ("shaped_reward", {"reward_coef": 0.0}, "w.reward_coef: 0 makes every reward 0"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_read(type_: str, params: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ENV_WRAPPERS.build(type_, params, place="w")


def test_what_leaves_nothing_of_an_episode_or_an_image_is_refused_when_it_is_wrapped() -> None:
    with pytest.raises(ConfigError, match=r"latency\.steps: actions arrive 6 steps later at the earliest, .* ends after 6"):
        wrapped("latency", steps=[6, 9])
    assert wrapped("latency", steps=[5, 9])
    with pytest.raises(ConfigError, match=r"shift: moves images by up to 16 pixels, and 'main_images' has 16 × 16"):
        wrapped("augment_images", tables(obs_mode="rgb", image_size=16), shift=16)
    assert wrapped("augment_images", tables(obs_mode="rgb", image_size=16), shift=15)
    assert wrapped("shaped_reward", reward_coef=0.0, use_step_penalty=True)


def test_the_success_of_a_task_that_knows_none_is_not_learned_from(tmp_path: Path) -> None:
    env = Gymnasium(env_id="Pendulum-v1").make(1, max_episode_steps=5, ignore_terminations=False, render=False)
    with pytest.raises(ConfigError, match=r"shaped_reward\.source: asks for the success of a task that knows none\. Use reward"):
        wrapped("shaped_reward", env, source="success")
    kept = {"save_dir": str(tmp_path), "export_format": "numpy", "only_success": True}
    with pytest.raises(ConfigError, match=r"recording\.only_success: .* Set it to false\. Or let .* success_key"):
        wrapped("record_episodes", env, **kept)
    assert wrapped("shaped_reward", source="success")
    assert wrapped("record_episodes", **kept)


def test_images_are_needed_to_change_images() -> None:
    for type_, params in (("augment_images", {"shift": 2}), ("resize_images", {"size": [8, 8]})):
        with pytest.raises(ConfigError, match="there are no images among the observations"):
            wrapped(type_, **params)


def test_latency_and_shaped_rewards_are_those_of_the_library() -> None:
    late = wrapped("latency", steps=1)
    late.reset(seed=0)
    plain = tables()
    plain.reset(seed=0)
    assert np.array_equal(late.step(actions(late, 0.5))[0]["states"], plain.step(actions(plain))[0]["states"])
    shaped = wrapped("shaped_reward", use_step_penalty=True)
    shaped.reset(seed=0)
    assert shaped.step(actions(shaped))[1].tolist() == [-1, -1, -1]


def test_a_wrapper_of_a_stranger_by_its_name() -> None:
    env = wrapped(f"{__name__}:Halved", wrapped("shaped_reward", use_step_penalty=True), kwargs={"gain": 0.25})
    env.reset(seed=0)
    assert env.step(actions(env))[1].tolist() == [-0.25] * 3
    with pytest.raises(EnvMisuse, match="outside"):
        env.step(actions(env, 5.0))


@pytest.mark.parametrize(
    ("type_", "kwargs", "message"),
    [
        (f"{__name__}:Halved", {"gian": 1}, "w.kwargs: .* can't be called with an environment and them"),
        (f"{__name__}:pytest", {}, "expected a class or a function"),
        (f"{__name__}:Nothing", {}, "no environment wrapper at"),
    ],
)
def test_a_wrapper_that_is_none_is_refused_before_anything_is_built(type_: str, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ENV_WRAPPERS.build("custom", {"wrapper": type_, "kwargs": kwargs}, place="w").check("w")


def test_a_wrapper_that_returns_no_environment() -> None:
    with pytest.raises(ConfigError, match=r"to return a gymnasium.vector.VectorEnv, found int"):
        wrapped(f"{__name__}:nothing")


def nothing(env: Any) -> int:
    return 3


def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'latency'"):
        ENV_WRAPPERS.build("latncy", {}, place="w")


def test_videos_are_made_through_wrappers(tmp_path: Any) -> None:
    pytest.importorskip("imageio_ffmpeg")
    env = Tabletop(task="reach").make(2, max_episode_steps=2, ignore_terminations=False, render=True)
    env = wrapped("latency", env, steps=1)
    assert isinstance(env.single_observation_space, gymnasium.spaces.Dict)
    env.reset(seed=0, options={"record": str(tmp_path / "film.mp4")})
    for _ in range(2):
        env.step(actions(env))
    assert (tmp_path / "film.mp4").exists()


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
@pytest.mark.parametrize("task", ["reach", "slots", "pick_place"])
def test_what_is_observed_is_known_before_anything_is_built(task: Any, obs_mode: Any) -> None:
    config = Tabletop(task=task, obs_mode=obs_mode, image_size=8)
    env = config.make(1, max_episode_steps=2, ignore_terminations=False, render=False)
    assert sorted(observed_of(config) or ()) == sorted(config.describe(env).observation)
    inner = {"task": task, "obs_mode": obs_mode}
    assert observed_of(Parallel(env="tabletop", params=inner)) == observed_of(config)
    assert observed_of(Remote(python="/elsewhere/python", env="tabletop", params=inner)) == observed_of(config)
    assert observed_of(Parallel(env="tabletop", params={"tusk": 1})) is None


@pytest.mark.parametrize("options", [{}, {"obs_mode": "rgb"}, {"obs_mode": "rgb", "wrist_camera": True}, {"task_id": "MT10"}])
def test_meta_world_knows_what_is_observed(options: dict[str, Any]) -> None:
    pytest.importorskip("metaworld", reason="the extra rlinf-envs[metaworld] is not installed")
    config = MetaWorld(**options)
    # Its spaces are known before a simulation is built.
    task = importlib.import_module("rlinf.envs.metaworld._metaworld")._Task(config, None, False)
    assert sorted(config.observed) == sorted(task.observation_space.spaces)
