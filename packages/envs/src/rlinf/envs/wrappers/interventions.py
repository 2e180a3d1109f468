"""Somebody who acts in place of the policy now and then: a person, or a script that stands for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlinf.core.capabilities import HasExpert
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_generator
from rlinf.envs.spaces import Vector
from rlinf.envs.wrappers.base import Wrapper
from rlinf.envs.wrappers.episodes import Infos, Step, episode_seeds, remasked, reset_rows, unmasked

Bools = NDArray[np.bool_]


@runtime_checkable
class HasHuman(Protocol):
    """A vector environment, below its wrappers, beside which a person can act."""

    def human_actions(self) -> Any:
        """`[N, A]`, what the person does now; not a number where nobody does."""
        ...


class InterventionSource(Protocol):
    """Who intervenes."""

    def begin(self, seeds: Sequence[int], fresh: Bools) -> None:
        """Episodes begin in the environments of `fresh` `[N]`, each with its seed."""
        ...

    def decide(self, actions: NDArray[Any], active: Bools) -> tuple[NDArray[Any], Bools]:
        """What would be done in place of the actions `[N, *]`, and in which environments it is done, `[N]`.

        Args:
            actions: those of the policy.
            active: `[N]`, which environments take this step.

        Returns:
            Actions `[N, *]`, not a number where nobody knows; and where they are executed.
        """
        ...


class Interventions(Wrapper):
    """Executes the actions of a source in place of the policy's, and says so.

    `infos` of a step hold `intervene_flag` `[N]` bool and `intervene_action` `[N, *]`, which `RecordEpisodes` outside of it keeps,
    and so does the replay buffer of an off-policy run. Actions are in the units of the environment that is wrapped.

    Args:
        env: an environment of this package.
        source: who intervenes.
    """

    def __init__(self, env: Vector, source: InterventionSource) -> None:
        super().__init__(env)
        self._source = source
        self._steps = self._taken = 0

    def reset(self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        fresh = reset_rows(options, self.num_envs)
        seeds = episode_seeds(seed, self.num_envs)
        self._source.begin(seeds, fresh)
        result: tuple[Any, Infos] = self.env.reset(seed=seeds, options=options)
        return result

    def step(self, actions: Any) -> Step:
        """One step of every environment, with the action of the source or the one that was given."""
        given, active = unmasked(actions, self.num_envs)
        values = as_numpy(given)
        wanted, acts = self._source.decide(values, active)
        wanted = np.asarray(wanted, values.dtype)
        executed = np.where(acts.reshape(-1, *[1] * (values.ndim - 1)), wanted, values)
        self._steps += int(active.sum())
        self._taken += int(acts.sum())
        seen, rewards, terminated, truncated, infos = self.env.step(remasked(actions, executed))
        return seen, rewards, terminated, truncated, {**infos, "intervene_flag": acts, "intervene_action": wanted}

    def take_counts(self) -> Mapping[str, float]:
        """`interventions/steps`, in which the source acted since the last call, of `interventions/of_steps`."""
        taken, steps, self._taken, self._steps = self._taken, self._steps, 0, 0
        return {"interventions/steps": float(taken), "interventions/of_steps": float(steps)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervening:
    """A person who acts in place of the policy; what they do is marked in recordings, and learned from off-policy.

    It stands last among the wrappers that change actions, so that those of the person are in the policy's units.
    """

    training_only: ClassVar[bool] = True
    intervenes: ClassVar[bool] = True

    source: Literal["console", "scripted"] = "console"
    """`console`: a person at `rlinf robot console`. `scripted`: the environment's own expert stands for one."""
    probability: float = 0.05
    """Of the scripted one: how likely it takes over in a step in which it does not act."""
    steps: int = 5
    """Of the scripted one: for how many steps."""

    def __post_init__(self) -> None:
        expect_range("probability", self.probability, 0.0, 1.0)
        expect_at_least("steps", self.steps, 1)

    def wrap(self, env: Vector, name: str) -> Interventions:
        """The environment, in which the person can act.

        Raises:
            ConfigError: nobody can act there.
        """
        base = env.unwrapped
        if self.source == "scripted":
            if not isinstance(base, HasExpert):
                problem = f"{type(base).__name__} has no scripted expert (expert_actions)"
                raise ConfigError("interventions.source", problem, "Choose an environment that has one, such as realworld.")
            return Interventions(env, ScriptedHuman(base, env.num_envs, probability=self.probability, steps=self.steps))
        if not isinstance(base, HasHuman):
            problem = f"there is no console beside {type(base).__name__} (human_actions)"
            raise ConfigError("interventions.source", problem, "Use env_type realworld, or source: scripted.")
        return Interventions(env, _AtConsole(base))


class ScriptedHuman:
    """An expert that takes over now and then for some steps, as a person does; drawn from the seed of the episode.

    Args:
        expert: what it would do.
        num_envs: N.
        probability: how likely it takes over in a step.
        steps: for how many.
    """

    def __init__(self, expert: HasExpert, num_envs: int, *, probability: float, steps: int) -> None:
        self._expert, self._probability, self._steps = expert, probability, steps
        self._draws = [keyed_generator(0, "human") for _ in range(num_envs)]
        self._left = np.zeros(num_envs, np.int64)

    def begin(self, seeds: Sequence[int], fresh: Bools) -> None:
        for row in np.flatnonzero(fresh).tolist():
            self._draws[row], self._left[row] = keyed_generator(seeds[row], "human"), 0

    def decide(self, actions: NDArray[Any], active: Bools) -> tuple[NDArray[Any], Bools]:
        # Also while it acts, so that each step of an episode has its own number whatever came before.
        starts = np.array([on and draw.random() < self._probability for on, draw in zip(active, self._draws, strict=True)])
        self._left = np.where(starts & (self._left == 0), self._steps, self._left)
        acts = active & (self._left > 0)
        self._left = self._left - acts
        wanted = np.array(self._expert.expert_actions(), np.float64)
        # As of a person, of whom nobody knows what they would do while they do nothing.
        wanted[~acts] = np.nan
        return wanted, acts


class _AtConsole:
    def __init__(self, env: HasHuman) -> None:
        self._env = env

    def begin(self, seeds: Sequence[int], fresh: Bools) -> None:
        """A person needs no preparation."""

    def decide(self, actions: NDArray[Any], active: Bools) -> tuple[NDArray[Any], Bools]:
        wanted = np.asarray(self._env.human_actions())
        return wanted, active & ~np.isnan(wanted).any(axis=-1)
