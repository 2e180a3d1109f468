from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core.chunks import ChunkStep
from rlinf.core.data import ArraySpec, Decision, EnvSpec
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
    spec = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=3)
    env_slot = EnvSlot(Slot(index=0, env_rank=0, stage=0, first_env=0, num_envs=2), env, spec)
    env_slot.mix_expert(0.25)
    assert mixer.beta == 0.25
    assert env_slot.take_episodes() == ["an episode"]
