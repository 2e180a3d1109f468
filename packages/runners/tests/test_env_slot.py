from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, Decision, EnvSpec
from rlinf.core.envs.chunks import ChunkStep
from rlinf.core.envs.failures import EnvPlace, locate
from rlinf.core.errors import ConfigError, NonFiniteError, RLinfError
from rlinf.core.evaluation import EpisodeProtocol
from rlinf.runners.embodied.playing.env_slot import EnvSlot, step_decided
from rlinf.runners.embodied.playing.slots import Slot


def stepped(**infos: Any) -> ChunkStep:
    """What two environments say of a chunk of three actions."""
    zeros = np.zeros((2, 3), bool)
    return ChunkStep(
        observations={}, rewards=np.zeros((2, 3), np.float32), terminated=zeros, truncated=zeros, executed=~zeros, infos=infos
    )


def test_what_somebody_else_did_is_the_action_of_the_whole_chunk() -> None:
    given = Decision(action=np.zeros((2, 3, 1)), logprob=np.zeros(2), value=None, context={}, version=4)
    executed = np.array([[[0.0], [0.0], [0.0]], [[0.0], [5.0], [0.0]]])
    flags = np.array([[False, False, False], [False, True, False]])
    decision, acted = step_decided(given, stepped(intervene_flag=flags, intervene_action=executed))
    assert acted is not None
    assert acted.tolist() == [False, True]
    np.testing.assert_array_equal(decision.action, executed)
    assert decision.version == 4
    assert step_decided(given, stepped()) == (given, None)


class Still:
    """An environment of which only resets and the end are seen."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self, *, seed: Any, options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": np.zeros((2, 1))}, {}

    def close(self) -> None:
        self.closed = True


def slot_of(env: Any, *, first_env: int = 0) -> EnvSlot:
    """Two environments of a run."""
    spec = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=3)
    return EnvSlot(Slot(index=0, env_rank=0, stage=0, first_env=first_env, num_envs=2), env, spec)


def test_an_episode_goes_on_from_its_reset_until_it_is_left() -> None:
    env = Still()
    env_slot = slot_of(env)
    assert env_slot.ended.all()
    assert (env_slot.episode < 0).all()
    env_slot.reset(np.array([False, True]), [0, 0])
    assert env_slot.ended.tolist() == [True, False]
    env_slot.reset(np.array([True, False]), [0, 0])
    assert env_slot.ended.tolist() == [False, False], "the other one goes on"
    env_slot.episode = np.array([4, 5])
    env_slot.leave()
    assert env_slot.ended.all()
    assert (env_slot.episode < 0).all()
    env_slot.close()
    assert env.closed


@pytest.mark.parametrize(("first_env", "numbers"), [(0, [0, 1, 4, 5]), (2, [2, 3, 6, 7])])
def test_episodes_of_a_protocol_are_dealt_to_environments_in_turn(first_env: int, numbers: list[int]) -> None:
    protocol = EpisodeProtocol(env="still", init_ids=tuple(range(8)), seeds=(5,))
    assert [episode.number for episode in slot_of(Still(), first_env=first_env).share(protocol, 4)] == numbers


class Mixer:
    """Takes an expert's share, as `MixesExpert` says."""

    beta = 0.0

    def mix_expert(self, beta: float) -> None:
        self.beta = beta

    def take_episodes(self) -> list[Any]:
        return ["an episode"]


@pytest.mark.parametrize("wrappers", [0, 2])
def test_the_expert_is_reached_through_the_wrappers_around_it(wrappers: int) -> None:
    env = mixer = Mixer()
    for _ in range(wrappers):
        env = SimpleNamespace(env=env)
    env_slot = slot_of(env)
    env_slot.mix_expert(0.25)
    assert mixer.beta == 0.25
    assert env_slot.take_episodes() == ["an episode"]


@pytest.mark.parametrize("made", [(), (2,), (1, 1)])
def test_actions_of_another_shape_than_the_environments_are_refused_with_both(made: tuple[int, ...]) -> None:
    env_slot = slot_of(Still())
    problem = rf"the policy makes actions of the shape \[{', '.join(map(str, made))}\], and the environment takes \[1\]"
    with pytest.raises(ConfigError, match=problem):
        env_slot.clipped(np.zeros((2, 3, *made), np.float32))
    assert env_slot.clipped(np.zeros((2, 3, 1), np.float32)).shape == (2, 3, 1)


def failing(error: Exception) -> RLinfError:
    """What is told of an error of environment 1 of a slot whose first one is number 4 of the run, and in its third episode."""
    env_slot = slot_of(Still(), first_env=4)
    env_slot.episode = np.array([1, 2])
    locate(error, EnvPlace(env=1, step=7))
    with pytest.raises(RLinfError) as caught, env_slot.located("iteration 3"):
        raise error
    return caught.value


WHERE = "in slot 0 (environments 4 to 5), environment 5, step 7 of episode 2, iteration 3"


def test_what_an_environment_raises_is_told_with_slot_episode_and_moment() -> None:
    cause = ValueError("it fell")
    told = failing(cause)
    assert str(told) == f"env[0]: ValueError: it fell, {WHERE}"
    assert told.__cause__ is cause
    assert str(failing(ValueError())) == f"env[0]: ValueError, {WHERE}"
    told = failing(NonFiniteError("env.step", "the reward is nan", "Look."))
    assert (type(told), str(told)) == (NonFiniteError, f"env[0]: the reward is nan, {WHERE}. Look.")
    assert str(type(told)(*told.args)) == str(told), "as unpickling does"


def test_an_error_that_ends_with_a_log_says_where_before_it_and_one_of_the_configuration_only_what_it_said() -> None:
    died = failing(RLinfError("env", "simulator 0 was killed; its log:\n  device lost\n", "See."))
    assert str(died) == f"env ({WHERE}): simulator 0 was killed; its log:\n  device lost\nSee."
    assert str(failing(ConfigError("env.kwargs", "no such task"))) == "env.kwargs: no such task"


class Reuses:
    """Two environments that always write what they show into the same memory: row n moves on by n + 1, and both end at once."""

    def __init__(self) -> None:
        self.num_envs, self.action_space = 2, SimpleNamespace(shape=(2, 1))
        self.shown = {"states": np.zeros((2, 1), np.float32)}

    def reset(self, *, seed: Any, options: Any) -> tuple[Any, Any]:
        self.shown["states"][options["reset_mask"]] = 100
        return self.shown, {}

    def step(self, action: Any) -> Any:
        self.shown["states"] += [[1], [2]]
        over = np.ones(2, bool)
        return self.shown, np.zeros(2, np.float32), over, ~over, {"episode": {}, "_episode": over}


def test_final_observations_ride_along_in_order_and_nothing_writes_into_a_request() -> None:
    env, asked = Reuses(), list[Any]()
    bound = np.ones(1, np.float32)
    spec = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32", low=-bound, high=bound), max_episode_steps=3)
    env_slot = EnvSlot(Slot(index=0, env_rank=0, stage=0, first_env=0, num_envs=2), env, spec)
    sender: Any = SimpleNamespace(ask=lambda slot, key, obs, remembered: asked.append(obs["states"]))
    env_slot.reset(np.ones(2, bool), [0, 0])
    env_slot.ask(sender, ())
    env_slot.step(np.zeros((2, 1, 1), np.float32))
    env_slot.keep_finals()
    env_slot.reset(np.ones(2, bool), [0, 0])
    env_slot.ask(sender, ())
    env_slot.step(np.zeros((2, 1, 1), np.float32))
    assert [rows[:, 0].tolist() for rows in asked] == [[100, 100], [100, 100, 101, 102]]
