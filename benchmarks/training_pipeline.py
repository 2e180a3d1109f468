"""What it gains to train while the rollout goes on: `uv run benchmarks/training_pipeline.py`.

Runs `apps/embodied/train.py` on Ray, with each component on devices of its own, with and without `runner.use_training_pipeline`.
The simulator and the trainer sleep for a known time in each step, as the host of an accelerator does, so that other work on the
machine hardly counts. A rollout epoch takes R seconds, an update epoch U, and an iteration has E and K of them. Without, an
iteration takes

    E R + K U        and with it        E R + U / E + (K − 1) U

if the actor keeps pace: what is left of the first update epoch is that on the last rollout epoch. Prints the median seconds of an
iteration, the bounds, and what is gained.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rlinf.engines import FSDPTrainerConfig, OptimConfig
from timed_runs import iterations_of

DECISIONS, ENVS, STEPS = 25, 8, 4
"""Of a rollout epoch: decisions of each environment, environments, and optimizer steps that are taken on it in an update epoch."""
ENV_WORKERS = 2
"""Of the recipe."""


class Waiting(gymnasium.Env[np.ndarray, np.ndarray]):
    """`env_type: training_pipeline:Waiting`; a simulator whose step takes as long as `STEP_S` says."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Costs nothing."""
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        """Costs the share of one environment in a step of its worker."""
        time.sleep(float(os.environ["STEP_S"]) / (ENVS // ENV_WORKERS))
        return action.astype(np.float32), float(action[0]), False, False, {}


@dataclass(frozen=True)
class WaitingTrainer:
    """`training_backend: training_pipeline:WaitingTrainer`; the trainer `fsdp`, whose steps take `step_s` seconds more."""

    optim: OptimConfig = field(default_factory=OptimConfig)
    step_s: float = 0.0

    def build(self, policy: Any, **ranks: Any) -> Any:
        """The trainer."""
        trainer: Any = FSDPTrainerConfig(self.optim).build(policy, **ranks)
        step = trainer.step

        def slow(*args: Any) -> Any:
            time.sleep(self.step_s)
            return step(*args)

        trainer.step = slow
        return trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured."""

    rollout_epochs: int
    update_epochs: int
    rollout_s: float
    """Of a rollout epoch."""
    update_s: float
    """Of an update epoch."""

    def bound_s(self, *, piped: bool) -> float:
        """Seconds of an iteration in which nothing takes time but simulation and optimizer steps."""
        rollout, later = self.rollout_epochs * self.rollout_s, (self.update_epochs - 1) * self.update_s
        first = self.update_s / self.rollout_epochs if piped else self.update_s
        return rollout + first + later

    def overrides(self, *, piped: bool) -> list[str]:
        """Of the recipe."""
        return [
            "env.train.env_type=training_pipeline:Waiting",
            f"env.train.total_num_envs={ENVS}",
            f"env.train.max_steps_per_rollout_epoch={DECISIONS}",
            f"env.train.rollout_epoch={self.rollout_epochs}",
            f"env.train.max_episode_steps={DECISIONS}",
            f"env.eval.max_episode_steps={DECISIONS}",
            "actor.training_backend=training_pipeline:WaitingTrainer",
            f"actor.step_s={self.update_s / self.rollout_epochs / STEPS}",
            f"actor.global_batch_size={DECISIONS * ENVS // STEPS}",
            f"algorithm.update_epoch={self.update_epochs}",
            f"runner.use_training_pipeline={str(piped).lower()}",
        ]


def seconds(case: Case, iterations: int, *, piped: bool) -> float:
    """The median of an iteration, the first of which does not count."""
    lines = lines_of(case, iterations + 1, case.overrides(piped=piped))
    return statistics.median(line["time/step"] for line in lines[1 : iterations + 1])


def lines_of(case: Case, count: int, overrides: Sequence[str]) -> list[dict[str, float]]:
    """The metrics of each iteration of a run of the default recipe, with slow steps."""
    recipe = ["--config-name", "maniskill_ppo_mlp_disaggregated", f"runner.max_steps={count}"]
    short = ["env.eval.total_num_envs=2", "env.eval.final_episodes=2", "env.eval.video_cfg.save_video=false"]
    steps = {"STEP_S": str(case.rollout_s / DECISIONS)}
    return iterations_of("embodied", *recipe, *short, *overrides, variables=steps, timeout_s=600)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollout-epochs", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, nargs="+", default=[1])
    parser.add_argument("--rollout-s", type=float, default=1.0, help="of one rollout epoch")
    parser.add_argument("--update-s", type=float, default=3.2, help="of one update epoch")
    parser.add_argument("--iterations", type=int, default=3)
    given = parser.parse_args()
    for update_epochs in given.update_epochs:
        case = Case(
            rollout_epochs=given.rollout_epochs,
            update_epochs=update_epochs,
            rollout_s=given.rollout_s,
            update_s=given.update_s,
        )
        plain, piped = (seconds(case, given.iterations, piped=piped) for piped in (False, True))
        bounds = [case.bound_s(piped=piped) for piped in (False, True)]
        print(
            f"{case.rollout_epochs} rollout epochs of {case.rollout_s:g} s, "
            f"{case.update_epochs} update epochs of {case.update_s:g} s: "
            f"without {plain:.2f} s (bound {bounds[0]:.2f}), with {piped:.2f} s (bound {bounds[1]:.2f}), "
            f"ratio {plain / piped:.2f} (bound {bounds[0] / bounds[1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
