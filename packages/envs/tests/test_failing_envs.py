"""An environment that raises: which one it was, how far it had come and what it played."""

from __future__ import annotations

import re

import numpy as np
import pytest
from remote_envs import TASKS, Numbers

from rlinf.core.envs.chunks import MaskedActions
from rlinf.core.envs.failures import EnvPlace, env_place
from rlinf.core.errors import NonFiniteError
from rlinf.core.evaluation import EpisodeProtocol
from rlinf.envs.evaluation import evaluate
from rlinf.envs.parallel import Parallel
from rlinf.envs.remote import Deadlines

SETTINGS = {"max_episode_steps": 9, "ignore_terminations": False, "render": False}


def here(num_envs, fails="raises"):
    return Numbers(fails=fails).make(num_envs, **SETTINGS)


def in_processes(num_envs, fails="raises"):
    config = Parallel(env="remote_envs:Numbers", params={"fails": fails}, processes=2, deadlines=Deadlines(close=2.0))
    return config.make(num_envs, **SETTINGS)


@pytest.mark.parametrize("make", [here, in_processes])
def test_what_an_environment_raises_says_where(make):
    env = make(3)
    env.reset(seed=0, options={"task": [0, 0, 1]})
    actions = np.zeros((3, 2), np.float32)
    env.step(actions)
    env.reset(seed=1, options={"reset_mask": np.array([True, False, False])})
    env.step(actions)
    actions[2] = 0.25
    with pytest.raises(Exception, match="the gripper is stuck") as caught:
        env.step(actions)
    env.close()
    place = env_place(caught.value)
    assert place == EnvPlace(env=2, step=2, task=f"1 ({TASKS[1]!r})")
    assert str(place) == f"environment 2, step 2 of its episode, task 1 ({TASKS[1]!r})"
    assert caught.value.__notes__[-1] == f"in {place}"


def test_a_step_that_only_some_take_says_which_one_raised():
    env = here(3)
    env.reset(seed=0)
    actions = np.array([[1.0, 0.0], [0.25, 0.0], [0.25, 0.0]], np.float32)
    with pytest.raises(ValueError, match="the gripper is stuck") as caught:
        env.step(MaskedActions(actions, np.array([True, False, True])))
    assert env_place(caught.value).env == 2


def test_a_reset_that_raises_says_which_one_and_for_which_task():
    env = here(3)
    with pytest.raises(IndexError) as caught:
        env.reset(seed=0, options={"task": [0, 7, 1]})
    assert env_place(caught.value) == EnvPlace(env=1, task="7")


def test_a_number_that_is_none_says_the_step_and_the_task():
    env = here(2)
    env.reset(seed=0, options={"task": [1, 0]})
    env.step(np.zeros((2, 2), np.float32))
    env.unwrapped.envs[1].n = float("nan")
    with pytest.raises(NonFiniteError, match="observation 'states' of environment 1 is nan") as caught:
        env.step(np.zeros((2, 2), np.float32))
    assert str(env_place(caught.value)) == "environment 1, step 1 of its episode, task 0"


def test_an_evaluation_says_the_episode_and_its_seed():
    env = here(2)
    protocol = EpisodeProtocol(env="numbers", init_ids=(0, 1, 2, 3), seeds=(5,), initial_states="seed", max_episode_steps=9)

    def decide(observations, turns):
        return np.array([[0.25 if turn.episode.number == 3 and turn.step == 4 else 0.0, 0.0] for turn in turns], np.float32)

    with pytest.raises(ValueError, match="the gripper is stuck") as caught:
        evaluate(env, decide, protocol)
    place = env_place(caught.value)
    assert (place.episode, place.step) == (3, 4)
    assert re.fullmatch(r"in episode 3 of the protocol, with seed \d+", caught.value.__notes__[-1])
