"""Which images of a chunk are drawn; that a chunk is the same as its steps is tested on the environments of rlinf-envs."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.core.envs.chunks import ChunkExecution, MaskedActions, chunk_step


class Space:
    shape = (2, 1)


class Drawn:
    """Counts steps; an image is the count when it was drawn. Row i ends after `ends[i]` steps."""

    action_space = Space()

    def __init__(self, *ends, **metadata):
        self.ends, self.num_envs = np.array(ends), len(ends)
        self.metadata = {"masked_actions": True, "unseen_steps": True, **metadata}
        self.count, self.image = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
        self.drawn, self.steps = [], 0

    @property
    def unwrapped(self):
        return self

    def step(self, actions):
        active, seen = np.ones(self.num_envs, bool), None
        if isinstance(actions, MaskedActions):
            active, seen = actions.active, actions.seen
        self.steps += 1
        self.count = self.count + active
        drawn = (active | (self.image != self.count)) & (np.ones(self.num_envs, bool) if seen is None else seen)
        self.image = np.where(drawn, self.count, self.image)
        self.drawn.append(np.flatnonzero(drawn).tolist())
        over = (self.count >= self.ends) & active
        # A step that nobody takes says things that must not count.
        reward = np.where(active, 1.0, 99.0)
        infos = {"episode": {"episode_len": self.count.copy()}, "_episode": over if active.any() else ~over}
        return {"images": self.image, "states": self.count}, reward, over, np.zeros(self.num_envs, bool), infos


class Layer:
    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)


class Passing(Layer):
    passes_unseen_steps = True


class Heir(Passing):
    """Of a stranger, who may look at images, and whose base class says that it does not."""


def actions(size, num_envs=2):
    return np.zeros((num_envs, size, 1), np.float32)


def images(step):
    assert step.observations["images"].tolist() == step.observations["states"].tolist()
    return step.observations["images"].tolist()


def test_only_the_last_step_is_drawn():
    env = Drawn(9, 9)
    assert images(chunk_step(env, actions(4))) == [4, 4]
    assert env.drawn == [[], [], [], [0, 1]]


def test_a_single_action_is_drawn():
    env = Drawn(9, 9)
    assert images(chunk_step(env, actions(1))) == [1, 1]
    assert env.drawn == [[0, 1]]


def test_a_row_that_ended_is_drawn_when_the_others_are():
    env = Drawn(2, 9)
    step = chunk_step(env, actions(4))
    assert images(step) == [2, 4]
    assert env.drawn == [[], [], [], [0, 1]]
    assert step.rewards.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_rows_that_all_ended_early_are_drawn_by_a_step_that_counts_for_nothing():
    env = Drawn(2, 3)
    step = chunk_step(env, actions(6))
    assert images(step) == [2, 3]
    assert env.drawn == [[], [], [], [0, 1]]
    assert step.rewards.tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert step.executed.sum(axis=1).tolist() == [2, 3]
    assert step.terminated.sum(axis=1).tolist() == [1, 1]
    assert step.infos["_episode"].tolist() == [True, True]
    assert env.count.tolist() == [2, 3]


def test_rows_that_all_end_with_the_last_action_need_no_further_step():
    env = Drawn(3, 3)
    assert images(chunk_step(env, actions(3))) == [3, 3]
    assert env.steps == 3


def test_each_part_of_a_chunk_ends_with_images():
    env = Drawn(2, 9)
    execution = ChunkExecution(env)
    execution.advance(actions(3))
    assert env.drawn == [[], [], [0, 1]]
    execution.advance(actions(2))
    assert env.drawn[3:] == [[], [1]], "the one that stands still has its image"
    assert images(execution.finish()) == [2, 5]


def test_parts_behind_the_end_of_all_episodes_do_nothing():
    env = Drawn(1, 2)
    execution = ChunkExecution(env)
    execution.advance(actions(3))
    steps = env.steps
    execution.advance(actions(3))
    assert (env.steps, steps) == (3, 3)
    assert images(execution.finish()) == [1, 2]


@pytest.mark.parametrize(
    "wrap",
    [Layer, lambda env: Layer(Passing(env)), lambda env: Passing(Layer(env)), Heir],
    ids=["outside", "outermost", "between", "heir"],
)
def test_everything_is_drawn_where_a_wrapper_might_look(wrap):
    bare = Drawn(2, 2)
    assert images(chunk_step(wrap(bare), actions(4))) == [2, 2]
    assert bare.drawn == [[0, 1]] * 2


@pytest.mark.parametrize("missing", ["masked_actions", "unseen_steps"])
def test_everything_is_drawn_where_the_environment_does_not_leave_images_out(missing):
    bare = Drawn(9, 9, **{missing: False})
    chunk_step(Passing(bare), actions(3))
    assert bare.drawn == [[0, 1]] * 3


def test_wrappers_that_look_at_nothing_let_images_be_left_out():
    bare = Drawn(9, 9)
    chunk_step(Passing(Passing(bare)), actions(3))
    assert bare.drawn == [[], [], [0, 1]]
