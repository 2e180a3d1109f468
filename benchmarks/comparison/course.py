"""What every run of the comparison has in common: sizes, configuration, protocol, clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rlinf.core.evaluation import EpisodeProtocol
from rlinf.envs import evaluate
from rlinf.envs.parallel import Parallel
from rlinf.runners import EmbodiedConfig, compose_recipe
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.embodied.schema import PlayedConfig
from rlinf.runners.task_types import task_type_of

APP = Path(__file__).parents[2] / "apps/embodied"
PROCESSES = 2
"""That simulate, of `rlinf` as the recipe places them, and of `sb3`."""
EVALUATED_ENVS = 16
Decide = Callable[[Any], Any]
"""The mean action of observations `[M, D]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What every run of a comparison has in common; a run that was done with others is done again."""

    recipe: str
    max_steps: int
    """Environment steps of a run."""
    interval: int
    """Environment steps between evaluations."""
    episodes: int
    """Of an evaluation."""


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a run did."""

    steps: int = 0
    """Environment steps."""
    seconds: float = 0.0
    """Of training, without evaluations."""
    start_s: float = 0.0
    """From the command to the first step."""
    evaluations: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    """Steps, seconds and the metric of the comparison, such as the share of episodes that succeeded."""
    protocol: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Course:
    """The clock of a run in this process, and its evaluations.

    Args:
        protocol: of each evaluation.
        sizes: when there is one.
        began: `time.time()` of the command.
        env: what is evaluated in; None for ManiSkill's in two processes.
        metric: of the evaluations.
    """

    def __init__(
        self, protocol: EpisodeProtocol, sizes: Sizes, began: float, *, env: Any = None, metric: str = "success_once"
    ) -> None:
        self.measured = Measured(protocol=protocol.to_dict())
        self._protocol, self._sizes, self._began, self._metric = protocol, sizes, began, metric
        self._since: float | None = None
        maker = env or Parallel(env="maniskill", params=protocol.env["init_params"], processes=PROCESSES)
        self._env = maker.make(
            EVALUATED_ENVS,
            max_episode_steps=protocol.max_episode_steps,
            ignore_terminations=protocol.ignore_terminations,
            render=False,
        )

    def reached(self, steps: int, decide: Decide) -> None:
        """Called before the first iteration, with 0 steps, and after each one."""
        now, measured = time.monotonic(), self.measured
        if self._since is None:
            measured.start_s = time.time() - self._began
        else:
            measured.seconds += now - self._since
            due = steps // self._sizes.interval > measured.steps // self._sizes.interval
            measured.steps = steps
            if due or steps >= self._sizes.max_steps:
                report = evaluate(self._env, lambda observed, turns: decide(observed["states"]), self._protocol)
                found = report.means[self._metric]
                measured.evaluations.append((steps, measured.seconds, found))
                print(f"{steps:8} steps {measured.seconds:7.1f} s  {self._metric} {found:.3f}", flush=True)
        self._since = time.monotonic()

    def close(self) -> Measured:
        """The run is over."""
        self._env.close()
        return self.measured


def simulated(cfg: EmbodiedConfig) -> Any:
    """The environments that the recipe trains on, in processes."""
    train = cfg.env.train
    return Parallel(env="maniskill", params=episode_protocol(cfg, final=False).env["init_params"], processes=PROCESSES).make(
        train.total_num_envs,
        max_episode_steps=train.max_episode_steps,
        ignore_terminations=train.ignore_terminations,
        render=False,
    )


def config(sizes: Sizes, seed: int, further: Sequence[str] = ()) -> Any:
    """The recipe's configuration with the seed, with the evaluations of the comparison, and with what else is overridden."""
    data = compose_recipe(APP / "config", sizes.recipe, [*overrides(sizes, seed), *further]).data
    return task_type_of(data).read(data)


def overrides(sizes: Sizes, seed: int) -> list[str]:
    """What a comparison changes in the recipe."""
    data = compose_recipe(APP / "config", sizes.recipe, []).data
    train = task_type_of(data).read(data)
    steps = train.decisions_per_iteration
    if sizes.max_steps % steps or sizes.interval % steps:
        raise SystemExit(f"--max-steps and --interval: expected multiples of the {steps} steps of an iteration")
    return [
        f"runner.seed={seed}",
        f"runner.max_steps={sizes.max_steps // steps}",
        f"runner.val_check_interval={sizes.interval // steps}",
        f"env.eval.episodes={sizes.episodes}",
        f"env.eval.final_episodes={sizes.episodes}",
        "env.eval.video_cfg.save_video=false",
    ]


def protocol_of(cfg: PlayedConfig) -> EpisodeProtocol:
    """What the recipe's own evaluations measure."""
    from rlinf.runners.embodied.evaluation import episode_protocol

    return episode_protocol(cfg, final=False)


def learned_with_sb3(model: Any, vector: Any, course: Course, decide: Decide, steps: int) -> Measured:
    """What a model of Stable-Baselines3 does in so many environment steps, evaluated between its rollouts; closes both."""
    callback: Any = import_module("stable_baselines3.common.callbacks").BaseCallback

    class Told(callback):
        """A rollout begins where the updates of the one before have ended."""

        def _on_rollout_start(self) -> None:
            course.reached(model.num_timesteps, decide)

        def _on_step(self) -> bool:
            return True

    model.learn(steps, callback=Told())
    course.reached(model.num_timesteps, decide)
    vector.close()
    return course.close()
