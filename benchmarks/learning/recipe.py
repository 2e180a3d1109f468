"""What a learning run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf.algorithms import GAE, ActorCritic
from rlinf.engines import OptimConfig
from rlinf.envs.tabletop import Tabletop


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """How a policy is taught before it learns by itself."""

    episodes: int
    """Demonstrations of the scripted expert."""
    steps: int
    """Optimizer steps."""
    speed: float = 1.0
    """By which the expert's motion is multiplied."""
    noise: float = 0.0
    """What is added to it at most."""
    batch_size: int = 256
    lr: float = 1e-3
    """At the first step; it falls to 0 on a cosine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A policy, its task, and how it learns."""

    model: Any
    """A registered model's configuration."""
    env: Tabletop
    advantage: Any = field(default_factory=GAE)
    """An advantage of `rlinf.algorithms`, such as `GAE()` or `GRPO()`."""
    loss: Any = field(default_factory=ActorCritic)
    """A policy loss of `rlinf.algorithms`."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    imitation: Imitation | None = None
    """None to learn from nothing."""
    num_envs: int = 256
    decisions: int = 16
    """Decisions of each environment in an iteration."""
    group_size: int = 1
    """Environments that start from the same state. Above 1, as GRPO needs it, every iteration starts anew, and only the first
    episode of each environment counts; `decisions` must then suffice for a whole one."""
    epochs: int = 4
    batch_size: int = 768
    """Decisions of one optimizer step."""
    micro_batch: int | None = None
    """Decisions that are scored at once; None for all of an optimizer step."""
    iterations: int = 40
    short_iterations: int = 10
    """Those of `--short`."""
    control_iterations: int | None = None
    """Those of the run with shuffled advantages, at most as many; None for as many."""
    eval_every: int = 5
    eval_episodes: int = 512
