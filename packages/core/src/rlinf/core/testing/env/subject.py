"""The environment that is examined, and how every line of the contract asks it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf.core.errors import ContractError
from rlinf.core.testing.env.moments import Episode, Moment, first_only


@dataclass(kw_only=True)
class EnvSubject:
    """Two environments of one factory, built when they are first needed.

    Attributes:
        factory: builds the vector environment.
        steps: how many steps a compared sequence has.
        seed: from which the seeds of the sub-environments follow.
        act: what to do in a played-out episode instead of random actions, such as a scripted expert: from the environment to
            actions `[N, *]`. With it an end is examined that random actions don't reach.
    """

    factory: Callable[[], Any]
    steps: int = 12
    seed: int = 7
    act: Callable[[Any], Any] | None = None
    episodes: dict[str, list[Episode]] = field(default_factory=dict[str, list[Episode]], init=False, repr=False)
    _envs: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    _reference: list[Moment] = field(default_factory=list[Moment], init=False, repr=False)

    @property
    def env(self) -> Any:
        """The environment under examination."""
        return self._built(0)

    @property
    def other(self) -> Any:
        """Another environment from the same factory."""
        return self._built(1)

    @property
    def waived(self) -> Mapping[str, str]:
        """What the environment declares not to keep, with its reasons."""
        return self.env.metadata.get("waived", {})

    @property
    def options(self) -> Sequence[str]:
        """The row options that the environment takes, out of `task` and `init_id`."""
        return self.env.metadata.get("reset_options", ())

    @property
    def reference(self) -> list[Moment]:
        """The sequence that `seeds(1)` and `actions(steps)` gave the first time."""
        if not self._reference:
            self._reference = self.replay(self.env, self.seeds(1), self.actions(self.steps))
        return self._reference

    def some(self) -> Any:
        """A `reset_mask` of the first sub-environment alone; of all where partial resets are waived."""
        return first_only(self.env.num_envs) | ("partial_reset" in self.waived)

    def seeds(self, first: int) -> list[int]:
        """One seed for each sub-environment, all different."""
        return [self.seed + 1000 * first + 17 * i for i in range(self.env.num_envs)]

    def actions(self, count: int, seed: int = 0) -> list[Any]:
        """Random actions `[N, *]` within the bounds, the same for the same seed."""
        space = self.env.action_space
        space.seed(self.seed + seed)
        return [space.sample() for _ in range(count)]

    def reset(self, env: Any, seeds: Sequence[int] | None, mask: Any = None, **options: Any) -> Moment:
        """Resets and copies the answer."""
        if mask is not None:
            options["reset_mask"] = mask
        return Moment.of(env.reset(seed=None if seeds is None else list(seeds), options=options))

    def step(self, env: Any, action: Any) -> Moment:
        """Steps and copies the answer."""
        return Moment.of(env.step(action))

    def replay(self, env: Any, seeds: Sequence[int], actions: Sequence[Any], **options: Any) -> list[Moment]:
        """Resets all and steps through `actions`, or up to the first end of an episode."""
        moments = [self.reset(env, seeds, **options)]
        for action in actions:
            moments.append(self.step(env, action))
            if moments[-1].done.any():
                break
        return moments

    def close(self) -> None:
        """Closes what was built, and forgets what was seen of it."""
        for env in self._envs:
            # Whether closing twice works has been examined.
            with contextlib.suppress(Exception):
                env.close()
        self._envs.clear()
        self._reference.clear()
        self.episodes.clear()

    def _built(self, index: int) -> Any:
        while len(self._envs) <= index:
            env = self.factory()
            if not hasattr(env, "num_envs"):
                remedy = "Assemble single environments: rlinf.envs.assembly."
                raise ContractError("factory", f"expected a gymnasium.vector.VectorEnv, found {type(env).__name__}", remedy)
            self._envs.append(env)
        return self._envs[index]
