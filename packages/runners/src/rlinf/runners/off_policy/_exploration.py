"""A policy with exploration around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import HasExplorationSchedule, RealTimeChunkingPolicy
from rlinf.core.data import ArraySpec, Decision, Weights
from rlinf.core.data.tree import Tree
from rlinf.core.off_policy import Explores
from rlinf.core.protocols import Mode, Policy
from rlinf.core.random import RowGenerators
from rlinf.runners.off_policy.exploration import Exploration


class ExploringPolicy(nn.Module):
    """Acts uniformly at first, then as the algorithm explores; in evaluations it is the policy.

    Args:
        policy: whose weights go in and out.
        spec: one control step.
        exploration: how.
    """

    def __init__(self, policy: nn.Module, spec: ArraySpec, exploration: Exploration) -> None:
        super().__init__()
        self.policy, self._spec, self._exploration = policy, spec, exploration
        self._decisions = 0

    @property
    def _inner(self) -> Policy:
        return cast("Policy", self.policy)

    @property
    def version(self) -> int:
        """That of the weights."""
        return self._inner.version

    def set_global_step(self, step: int) -> None:
        """Tells the iteration, from which follows how many decisions came before."""
        self._decisions = max(0, step - self._exploration.first_step) * self._exploration.decisions_per_iteration
        if isinstance(self.policy, HasExplorationSchedule):
            self.policy.set_global_step(step)

    @torch.no_grad()
    def predict_action_batch(self, env_obs: Tree[Any], mode: Mode = "train", *, generator: Any = None) -> Decision[Tensor]:
        """The decision with the action that is executed; its log-probability is that of what the policy would have done."""
        explores, first = self._exploration.objective, self._decisions < self._exploration.start_steps
        # An algorithm that explores adds its noise to what the policy would do without any.
        noiseless: Mode = "eval" if isinstance(explores, Explores) else mode
        decision = self._inner.predict_action_batch(env_obs, noiseless, generator=generator)
        if mode == "eval" or not (first or isinstance(explores, Explores)):
            return decision
        parts: list[Tensor] = []
        # Where the numbers are drawn: the same on whatever device the policy is.
        action = decision.action if generator is None else decision.action.to(generator.device)
        for rows, own in _parts(generator, action):
            if first:
                parts.append(uniform(rows, self._spec, own))
            elif isinstance(explores, Explores):
                parts.append(explores.explored(rows, self._spec, decisions=self._decisions, generator=own))
        return replace(decision, action=torch.cat(parts).to(decision.action.device))

    def continue_chunk(self, env_obs: Tree[Any], previous: Any, *, delay: int, generator: Any = None) -> Decision[Tensor]:
        """As the policy, in evaluations; `env.eval.real_time_chunking` is refused for one that can't."""
        return cast("RealTimeChunkingPolicy", self.policy).continue_chunk(env_obs, previous, delay=delay, generator=generator)

    def weights(self) -> Weights[Tensor]:
        """Those of the policy."""
        return self._inner.weights()

    def load(self, weights: Weights[Tensor]) -> None:
        """Into the policy."""
        self._inner.load(weights)


def uniform(action: Tensor, spec: ArraySpec, generator: Any) -> Tensor:
    """An action of the shape and type of `action`, each one within the bounds as likely as any other."""
    low, high = (torch.as_tensor(bound).to(action) for bound in (spec.low, spec.high))
    drawn = torch.rand(action.shape, generator=generator, dtype=torch.float64, device=action.device)
    if action.is_floating_point():
        return (low + (high - low) * drawn).to(action.dtype)
    # Rounding may give the number behind the last one.
    return torch.minimum(low + (drawn * (high - low + 1)).floor(), high).to(action.dtype)


def _parts(generator: Any, action: Tensor) -> Iterator[tuple[Tensor, Any]]:
    """Rows that share a generator, and that one."""
    if not isinstance(generator, RowGenerators):
        yield action, generator
        return
    first = 0
    for rows, own in generator.parts:
        yield action[first : first + rows], own
        first += rows
