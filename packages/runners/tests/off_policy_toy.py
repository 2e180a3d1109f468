"""Off-policy toys: an algorithm, a trainer that keeps what it is given, and a policy with Q-functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from rlinf.core.data import ArraySpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.metrics import Metric
from rlinf.core.registry import MODELS, OBJECTIVES, TRAINERS


@dataclass(frozen=True)
class ToyObjective:
    judges: ClassVar[str] = "q_functions"
    tau: float = 0.1


@dataclass(frozen=True)
class ToyValues(ToyObjective):
    judges: ClassVar[str] = "action_values"


@dataclass(frozen=True)
class ToyNormalized(ToyObjective):
    judges: ClassVar[str] = "batch_normalized_q_functions"


@dataclass(frozen=True)
class Adds(ToyObjective):
    """Explores by adding how many decisions there were, and a number of its own."""

    def explored(self, action: Any, spec: ArraySpec, *, decisions: int, generator: Any) -> Any:
        return action + decisions + torch.rand((), generator=generator)


@dataclass
class Sees:
    """A trainer that keeps what it is given."""

    version: int = 0
    seen: list[Any] = field(default_factory=list[Any])

    def update(self, micro_batches: Sequence[Any]) -> Mapping[str, Any]:
        self.seen.append(micro_batches)
        self.version += 1
        return {"critic_loss": Metric(1.0)}

    def save(self, folder: Path) -> None:
        (folder / "trainer").touch()

    def load(self, folder: Path) -> None:
        assert (folder / "trainer").exists()


@dataclass(frozen=True)
class SeesConfig:
    def check_off_policy(self) -> None: ...

    def build_off_policy(self, policy: Any, objective: Any, spec: Any, **given: Any) -> Sees:
        return Sees()


@dataclass(frozen=True)
class WithQ:
    heads: int = 2
    latent: bool = False

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(q_functions=self.heads > 0, recurrent=False, latent_action=self.latent)

    def build(self, spec: Any, *, seed: int) -> Any:
        return Chooses() if self.latent else nn.Linear(1, 1)


class Chooses(nn.Module):
    """What it chose are two numbers that its context has in place of the state."""

    def latent_action(self, context: Any) -> Any:
        state = torch.as_tensor(context["states"])
        return torch.stack([state, -state], dim=-1)


OBJECTIVES.register("toy_objective")(ToyObjective)
OBJECTIVES.register("toy_values")(ToyValues)
TRAINERS.register("toy_sees")(SeesConfig)
MODELS.register("toy_q")(WithQ)
