"""A simulator and a policy of known cost, for `rollout_pipeline.py`: they wait, or compute, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from rlinf.core.data import ArraySpec, Decision, EnvSpec, Weights
from rlinf.core.declarations import PolicyTraits
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.schema import EmbodiedConfig

BOUND = np.ones(1, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one call: a part of its own, as of a kernel launch, and a part for each environment."""

    call: float = 0.0
    row: float = 0.0
    computes: bool = False
    """Whether the thread computes for so long, instead of sleeping: then a busy machine counts, too."""

    def pay(self, rows: int) -> None:
        """Takes so long."""
        seconds = self.call + self.row * rows
        if not self.computes:
            time.sleep(seconds)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            sum(range(200))


class Costs:
    """What the parts of this process cost; a benchmark sets it between measurements."""

    simulation: ClassVar[Cost] = Cost()
    decision: ClassVar[Cost] = Cost()


class TimedEnv:
    """Episodes that never end."""

    metadata: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.action_space = SimpleNamespace(shape=(num_envs, 1))
        self._steps = 0

    @property
    def unwrapped(self) -> TimedEnv:
        """Itself."""
        return self

    def reset(self, *, seed: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Costs nothing."""
        del seed, options
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        """Costs `Costs.simulation`."""
        del action
        Costs.simulation.pay(self.num_envs)
        self._steps += 1
        none, zeros = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, np.float32)
        episode = {"return": zeros, "episode_len": np.full(self.num_envs, self._steps)}
        return self._observed(), zeros, none, none, {"episode": episode, "_episode": none}

    def close(self) -> None:
        """Has nothing to close."""

    def _observed(self) -> dict[str, Any]:
        return {"states": np.full((self.num_envs, 1), self._steps, np.float32)}


@dataclass(frozen=True)
class Timed:
    """`env_type: timed_parts:Timed`."""

    def check(self, place: str) -> None:
        """Nothing can be wrong."""

    def make(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool, render: bool) -> Any:
        """The environments."""
        del max_episode_steps, ignore_terminations, render
        return TimedEnv(num_envs)

    def describe(self, env: Any) -> EnvSpec:
        """One number is seen, and one is done."""
        del env
        action = ArraySpec(shape=(1,), dtype="float32", low=-BOUND, high=BOUND)
        seen = {"states": ArraySpec(shape=(1,), dtype="float32")}
        return EnvSpec(observation=seen, action=action, max_episode_steps=1_000_000, knows_success=False)


class TimedNetwork(torch.nn.Module):
    """Acts by its observations and by noise."""

    version = 0

    def predict_action_batch(self, env_obs: Any, mode: str = "train", *, generator: Any = None) -> Decision[torch.Tensor]:
        """Costs `Costs.decision`."""
        del mode, generator
        states: torch.Tensor = env_obs["states"]
        Costs.decision.pay(len(states))
        zeros = torch.zeros(len(states))
        return Decision(action=zeros[:, None, None], logprob=zeros, value=zeros, context={"states": states}, version=0)

    def weights(self) -> Weights[torch.Tensor]:
        """It has none."""
        return Weights(tensors={}, version=self.version)

    def load(self, weights: Weights[torch.Tensor]) -> None:
        """Takes none."""


@dataclass(frozen=True)
class TimedPolicy:
    """`model_type: timed_parts:TimedPolicy`."""

    @property
    def traits(self) -> PolicyTraits:
        """It has a critic, and draws nothing."""
        return PolicyTraits(critic=True, entropy=True, recurrent=False, language=False, row_generators=True)

    def build(self, spec: EnvSpec, *, seed: int) -> TimedNetwork:
        """The policy."""
        del spec, seed
        return TimedNetwork()


class TimedEnvWorker(EnvWorker):
    """That of a run, whose configuration and costs can be changed."""

    def change(self, cfg: EmbodiedConfig, simulation: Cost) -> None:
        """Takes another configuration; `init_worker` and `connect` must follow."""
        self.cfg, Costs.simulation = cfg, simulation


class TimedRolloutWorker(MultiStepRolloutWorker):
    """That of a run, whose configuration and costs can be changed."""

    def change(self, cfg: EmbodiedConfig, decision: Cost) -> None:
        """Takes another configuration; `init_worker` must follow."""
        self.cfg, Costs.decision = cfg, decision
