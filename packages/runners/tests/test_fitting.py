"""A policy and an environment that don't fit are refused, with the names of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from env_worker_toy import connected

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.core.registry import ENVS, MODELS
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import check_spec, check_states, read_embodied


@dataclass(frozen=True)
class Sees:
    """A model with traits."""

    observations: tuple[str, ...] = ()
    num_action_chunks: int = 1
    max_action_dim: int | None = None

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(
            observations=self.observations,
            chunk=self.num_action_chunks,
            discrete_actions=False,
            largest_action=self.max_action_dim,
            largest_action_key="max_action_dim",
        )


@dataclass(frozen=True)
class Shows(ENVS.get("countdown")):
    """An environment that knows what it shows, with another action space."""

    size: int = 1

    @property
    def observed(self) -> tuple[str, ...]:
        return ("states",)

    def describe(self, env: Any) -> EnvSpec:
        return spec(size=self.size)


for name, registry, item in (("toy_sees", MODELS, Sees), ("toy_shows", ENVS, Shows)):
    if name not in registry.names():
        registry.register(name)(item)


def spec(*, size: int = 1, limit: int = 100, **shown: int) -> EnvSpec:
    bound = np.ones(size, np.float32)
    return EnvSpec(
        observation={key: ArraySpec(shape=(n,), dtype="float32") for key, n in ({"states": 1} | shown).items()},
        action=ArraySpec(shape=(size,), dtype="float32", low=-bound, high=bound),
        max_episode_steps=limit,
    )


def data_of(toy_data: dict[str, Any], env: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    toy_data["actor"]["model"] = {"model_type": "toy_sees", **model}
    toy_data["env"]["train"] |= {"env_type": "toy_shows", **(env or {})}
    return toy_data


def test_an_image_policy_in_an_environment_of_numbers_before_any_worker_starts(toy_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_embodied(data_of(toy_data, observations=["states", "main_images"]))
    assert str(caught.value).startswith(
        "actor.model.model_type: 'toy_sees' needs main_images, and env.train.env_type 'toy_shows' shows states. Let the environment"
    )
    read_embodied(data_of(toy_data, observations=["states"]))
    toy_data["env"]["train"]["env_type"] = "countdown"
    read_embodied(data_of(toy_data, {"env_type": "countdown"}, observations=["main_images"]))


def test_the_same_of_an_environment_that_must_be_built_first(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(data_of(toy_data, {"env_type": "countdown"}, observations=["wrist_images"]))
    with pytest.raises(
        ConfigError, match=r"'toy_sees' needs wrist_images, and env.train.env_type 'countdown' shows main_images, states"
    ):
        check_spec(cfg, spec(main_images=3))
    with pytest.raises(
        ConfigError, match=r"and env\.eval\.env_type .* shows main_images.* as a rule by env\.eval\.init_params\.obs_mode"
    ):
        check_spec(cfg, spec(main_images=3), within="eval")
    check_spec(cfg, spec(wrist_images=3))


def test_actions_of_more_numbers_than_the_model_makes_before_any_policy_is_built(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(data_of(toy_data, {"env_type": "countdown"}, max_action_dim=6))
    message = r"^actor\.model\.max_action_dim: 'toy_sees' .* at most 6 numbers, and .* 'countdown' takes 7\. Set it to 7"
    with pytest.raises(ConfigError, match=message):
        check_spec(cfg, spec(size=7))
    check_spec(cfg, spec(size=6))


@pytest.mark.parametrize("section", ["train", "eval"])
def test_a_chunk_that_is_longer_than_an_episode(toy_data: dict[str, Any], section: str) -> None:
    data = data_of(toy_data, num_action_chunks=8)
    data["env"][section]["max_episode_steps"] = 7
    message = f"num_action_chunks: 'toy_sees' decides for 8 control steps at once, and env.{section}.max_episode_steps ends"
    with pytest.raises(ConfigError, match=message):
        read_embodied(data)
    data["env"][section]["max_episode_steps"] = 8
    read_embodied(data)


def test_a_chunk_that_is_longer_than_the_environments_own_limit(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(data_of(toy_data, num_action_chunks=8))
    check_spec(cfg, spec(limit=8))
    with pytest.raises(ConfigError, match=r"env.train.env_type 'toy_shows' ends an episode after 7"):
        check_spec(cfg, spec(limit=7))


@pytest.mark.parametrize("size", [1, 2])
def test_an_evaluation_in_another_environment_is_looked_at_before_training(toy_data: dict[str, Any], size: int) -> None:
    data = data_of(toy_data)
    data["env"]["eval"] |= {"init_params": {"size": size, "level": 3}}
    cfg = read_embodied(data)
    if size == 1:
        connected(cfg)
        return
    message = r"^env.eval.env_type: 'toy_shows' takes actions \[2\], and env.train.env_type 'toy_shows' \[1\]"
    with pytest.raises(ConfigError, match=message):
        connected(cfg)


@pytest.mark.parametrize(
    ("changed", "metadata", "message"),
    [
        ({"tasks": 3}, {"reset_options": ["task"], "tasks": ["a", "b"]}, r"eval\.tasks: .* has no task 2\. .* 0 to 1\."),
        ({"tasks": ["b"]}, {"reset_options": ["init_id"]}, r"eval\.tasks: .* can't be asked for a task, found 'b'"),
        ({"initial_states": "id"}, {"reset_options": ["task"]}, r"eval\.initial_states: .* does not number its initial"),
        ({"initial_states": "id", "init_ids": [50]}, {"init_ids": 50}, r"eval\.init_ids: .* has no initial state 50\. .* 0 to 49"),
        ({"initial_states": "id", "final_episodes": 51}, {"init_ids": 50}, r"eval\.final_episodes: .* no initial state 50"),
        ({"initial_states": "id", "episodes": 51, "init_ids": [0]}, {"init_ids": 50}, r"eval\.episodes: .* no initial state 50"),
    ],
)
def test_what_is_evaluated_must_be_there(
    toy_data: dict[str, Any], changed: dict[str, Any], metadata: dict[str, Any], message: str
) -> None:
    toy_data["env"]["eval"] |= {"episodes": 8, **changed}
    toy_data["runner"]["val_check_interval"] = 1
    cfg = read_embodied(data_of(toy_data))
    with pytest.raises(ConfigError, match=message):
        check_states(cfg, {"reset_options": ["init_id"], **metadata}, trains=True)


def test_an_environment_that_says_nothing_of_its_resets_is_asked_later(toy_data: dict[str, Any]) -> None:
    toy_data["env"]["eval"] |= {"tasks": 3, "initial_states": "id"}
    cfg = read_embodied(data_of(toy_data))
    check_states(cfg, {}, trains=True)
    with pytest.raises(ConfigError, match=r"env\.eval"):
        check_states(cfg, {"reset_options": []}, trains=True)
    # No evaluation before the last one is played where nothing trains.
    toy_data["env"]["eval"] |= {"tasks": None, "episodes": 51, "init_ids": [0]}
    known = {"reset_options": ["init_id"], "init_ids": 50}
    toy_data["runner"]["val_check_interval"] = 1
    cfg = read_embodied(data_of(toy_data))
    check_states(cfg, known, trains=False)
    with pytest.raises(ConfigError, match=r"eval\.episodes"):
        check_states(cfg, known, trains=True)


@pytest.mark.parametrize("size", [1, 2])
def test_an_evaluation_alone_builds_what_it_plays(toy_data: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another environment of training one is built, to say what the policy was trained for."""
    built: list[int] = []
    make = Shows.make

    def counted(self: Shows, num_envs: int, **options: Any) -> Any:
        built.append(num_envs)
        return make(self, num_envs, **options)

    monkeypatch.setattr(Shows, "make", counted)
    data = data_of(toy_data)
    data["env"]["eval"] |= {"total_num_envs": 3} | ({} if size == 1 else {"init_params": {"size": size}})
    cfg = read_embodied(data)
    slots = slot_layout(cfg, 1)
    spec = EnvWorker(cfg).init_evaluation(slots["eval"])
    assert spec.action.shape == (1,)
    assert built == ([3] if size == 1 else [3, 1])


def test_a_class_that_lacks_what_a_run_calls_is_no_policy(toy_data: dict[str, Any]) -> None:
    toy_data["actor"]["model"] = {"model_type": f"{__name__}:PlainModule"}
    model = read_embodied(toy_data).actor.model
    problem = rf"^actor\.model\.model_type: '{__name__}:PlainModule' made a PlainModule that has no weights.*BasePolicy"
    with pytest.raises(ConfigError, match=problem):
        model.build(spec(states=1), seed=0)


class PlainModule:
    """What follows the signatures alone."""

    def __init__(self, spec: EnvSpec, *, seed: int) -> None:
        del spec, seed

    def predict_action_batch(self, env_obs: Any, mode: str = "train", *, generator: Any = None) -> Any:
        """Decides nothing."""
