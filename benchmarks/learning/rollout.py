"""Playing: experience to learn from, and episodes to be judged by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from learning.recipe import Recipe
from rlinf.core.data import Decision, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_map
from rlinf.core.protocols import Mode, Policy
from rlinf.core.random import keyed_generator, keyed_seed
from rlinf.envs import ChunkStep, chunk_step
from rlinf.runners.embodied.playing.rows import RowCollector
from rlinf.runners.training.tensors import to_torch

UNSEEN = 2**30
"""The first seed of evaluations; those of training are below."""
TAUGHT = 2**30 + 2**29
"""The first seed of demonstrations."""


class Rollout:
    """Environments that go on from one iteration to the next; an episode that has ended is followed by another one.

    The time limit belongs to the task: where it cuts an episode, the episode has failed, and nothing is bootstrapped. Only where
    an iteration stops in the middle of an episode does the critic say what would have followed.
    """

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.recipe, self.seed = recipe, seed
        self._env = recipe.env.make(recipe.num_envs, max_episode_steps=None, ignore_terminations=False, render=False)
        self.spec = recipe.env.describe(self._env)
        self._obs: Any = None
        self.env_steps = 0
        """Control steps executed so far."""
        self.success = 0.0
        """The share of solved episodes among those that ended in the last iteration."""

    def collect(self, policy: Policy, iteration: int) -> Trajectory[torch.Tensor]:
        """One iteration of experience, a row for each piece of an episode."""
        recipe = self.recipe
        if self._obs is None or recipe.group_size > 1:
            self._reset(np.ones(recipe.num_envs, np.bool_), iteration, 0)
        ended = solved = 0
        groups = recipe.num_envs // recipe.group_size
        collector = RowCollector(first_env=0, num_envs=recipe.num_envs, group_size=recipe.group_size, groups=groups)
        for step in range(recipe.decisions):
            decision = self._decide(policy, "rollout", iteration, step)
            moved = play(self._env, decision)
            self.env_steps += int(moved.executed.sum())
            collector.append(decision, moved.rewards.sum(1), moved.done, np.zeros_like(moved.done))
            collector.final_values(np.flatnonzero(moved.done), np.zeros(int(moved.done.sum()), np.float32))
            self._obs = moved.observations
            ended, solved = ended + int(moved.done.sum()), solved + int((moved.done & moved.infos["success"]).sum())
            if moved.done.any():
                self._reset(moved.done, iteration, step + 1)
        self.success = solved / max(1, ended)
        value = self._decide(policy, "bootstrap", iteration).value
        trajectory = collector.finish(value).map(to_torch)
        return trajectory if recipe.group_size == 1 else _first_episodes(trajectory, groups)

    def _decide(self, policy: Policy, purpose: str, *key: int) -> Decision[Any]:
        generator = torch.Generator().manual_seed(keyed_seed(self.seed, purpose, *key))
        return decide(policy, self._obs, "train", generator)

    def _reset(self, done: NDArray[np.bool_], *key: int) -> None:
        groups = self.recipe.num_envs // self.recipe.group_size
        seeds = np.repeat(keyed_generator(self.seed, "reset", *key).integers(UNSEEN, size=groups), self.recipe.group_size)
        self._obs, _ = cast("Any", self._env).reset(seed=seeds.tolist(), options={"reset_mask": done})


def evaluate(recipe: Recipe, policy: Policy, episodes: int) -> float:
    """The share of unseen episodes that mode "eval" solves; always the same ones."""
    env: Any = recipe.env.make(episodes, max_episode_steps=None, ignore_terminations=True, render=False)
    obs, _ = env.reset(seed=list(range(UNSEEN, UNSEEN + episodes)))
    generator = torch.Generator().manual_seed(0)
    while True:
        moved = play(env, decide(policy, obs, "eval", generator))
        obs = moved.observations
        if moved.done.all():
            env.close()
            return float(moved.infos["episode"]["success_once"].mean())


def play(env: Any, decision: Decision[Any]) -> ChunkStep:
    """Executes a decision, clipped to the bounds of the environment."""
    space = env.single_action_space
    return chunk_step(env, np.clip(decision.action, space.low, space.high))


def decide(policy: Policy, obs: Any, mode: Mode, generator: torch.Generator) -> Decision[Any]:
    """A decision in NumPy."""
    decision = policy.predict_action_batch(obs, mode, generator=generator)
    value = None if decision.value is None else as_numpy(decision.value)
    context = tree_map(as_numpy, decision.context)
    return replace(decision, action=as_numpy(decision.action), logprob=as_numpy(decision.logprob), value=value, context=context)


def _first_episodes(trajectory: Trajectory[torch.Tensor], groups: int) -> Trajectory[torch.Tensor]:
    """The first row of each environment: later episodes have higher group numbers."""
    return replace(trajectory.rows(trajectory.group < groups), value=None)
