"""What acts in training where the policy alone does not explore enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlinf.core.data import EnvSpec
from rlinf.core.off_policy import Objective

if TYPE_CHECKING:
    from torch import nn

    from rlinf.runners.off_policy._exploration import ExploringPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """Makes of a policy what acts in training."""

    objective: Objective
    """The algorithm, which may explore (`Explores`)."""
    start_steps: int
    """Decisions at the start that are drawn uniformly."""
    decisions_per_iteration: int
    """By which iterations become decisions."""
    first_step: int = 0
    """The first iteration that makes any."""

    def __call__(self, policy: nn.Module, spec: EnvSpec) -> ExploringPolicy:
        """The policy with exploration around it."""
        from rlinf.runners.off_policy._exploration import ExploringPolicy  # imports torch

        return ExploringPolicy(policy, spec.action, self)
