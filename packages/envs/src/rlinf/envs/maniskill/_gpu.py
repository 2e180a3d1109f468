"""ManiSkill on a GPU: one batched simulation. Only imported when it is built; written to ManiSkill's documents, not run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rlinf.core.random import keyed_seed
from rlinf.envs._batched import BatchOptions, Outcome, assemble_batch, space_of
from rlinf.envs.maniskill._observations import embodied, episode_id, numbered_states
from rlinf.envs.wrappers.video import Shot

if TYPE_CHECKING:
    from rlinf.envs.maniskill.maniskill import ManiSkill

_SEED_RANGE = 2**31
_ONE_CALL = "exact_resets is off: a state depends on the seeds of all environments that are reset by the same call"
_SETTLES = {"partial_reset": "this task lets its objects settle by simulating all environments"}


def make_batched(
    simulation: Any, config: ManiSkill, limit: int, ignore_terminations: bool, render: bool
) -> VectorEnv[Any, Any, Any]:
    """The vector environment over one batched simulation, a `BaseEnv` of N environments.

    Raises:
        ConfigError: videos of tensors.
    """

    def render_frame(shot: Shot) -> Any:
        return simulation.render()[shot.index].cpu().numpy()

    batch = Simulation(simulation, config)
    waived: dict[str, str] = {} if config.exact_resets else dict.fromkeys(("partial_reset", "place", "seeds"), _ONE_CALL)
    options = BatchOptions(
        max_episode_steps=limit,
        ignore_terminations=ignore_terminations,
        arrays=config.arrays,
        waived=_SETTLES if batch.numbered else waived,
        reset_options=("init_id",) if batch.numbered else (),
        knows_success=batch.knows_success,
    )
    return assemble_batch(batch, options, render=render, camera=render_frame)


class Simulation:
    """A batched `BaseEnv`, which resets nothing by itself.

    ManiSkill draws an initial state from two kinds of generators: NumPy's, one for each environment, and torch's single one, which
    it seeds with the first seed of the list. So each environment is reset alone, with a list that holds its seed alone.

    Args:
        simulation: the `BaseEnv`.
        config: what is observed, and how it is reset.
    """

    def __init__(self, simulation: Any, config: ManiSkill) -> None:
        self.simulation = simulation
        self.num_envs: int = simulation.num_envs
        self.device: torch.device = simulation.device
        self.single_action_space = simulation.single_action_space
        self.texts = None if config.obs_mode == "state" else np.array([config.description] * simulation.num_envs)
        self._obs_mode = config.obs_mode
        self._exact = config.exact_resets
        self.numbered = numbered_states(simulation)
        self._rewards_success = simulation.reward_mode == "none"
        with torch.inference_mode():
            self.knows_success = "success" in simulation.get_info()
            self.single_observation_space = space_of(embodied(simulation.get_obs(), config.obs_mode))

    def reset(self, index: list[int], seeds: list[int], numbers: list[int | None]) -> dict[str, torch.Tensor]:
        if self.numbered:
            # Nothing else is drawn, so that one call serves all.
            drawn = [keyed_seed(seed, "episode") % self.numbered for seed in seeds]
            chosen = [d if number is None else number for d, number in zip(drawn, numbers, strict=True)]
            return self._reset(index, [0] * self.num_envs, episode_id=episode_id(chosen, self.numbered, self.device))
        if self._exact:
            # Each reset returns the observations of all environments, so the last one shows them all as they begin.
            return [self._reset([i], [seed] * self.num_envs) for i, seed in zip(index, seeds, strict=True)][-1]
        # The first place also seeds torch's generator, from which every environment draws.
        own = dict(zip(index, seeds, strict=True)) | {0: keyed_seed(0, "maniskill", *seeds) % _SEED_RANGE}
        return self._reset(index, [own.get(i, 0) for i in range(self.num_envs)])

    def step(self, actions: torch.Tensor) -> Outcome:
        raw, reward, terminated, _, info = self.simulation.step(actions)
        success = info["success"].bool() if "success" in info else torch.zeros_like(terminated)
        return Outcome(
            observation=embodied(raw, self._obs_mode),
            reward=success if self._rewards_success else reward,
            terminated=terminated,
            success=success,
        )

    def close(self) -> None:
        self.simulation.close()

    def _reset(self, index: list[int], seeds: list[int], **options: torch.Tensor) -> dict[str, torch.Tensor]:
        where = torch.as_tensor(index, device=self.device)
        raw, _ = self.simulation.reset(seed=seeds, options={"env_idx": where, **options})
        return embodied(raw, self._obs_mode)
