"""Runs an evaluation: the env workers own a finite list of episodes, the rollout workers decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.core.protocols import Channel, WorkerGroup
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import EpisodeResult, summarise
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.reporting.phases import within


class Evaluator:
    """Evaluates the weights that the rollout workers hold.

    Args:
        rollout: the workers that decide; initialised.
        env: the workers that simulate; initialised and connected.
        requests: carries observations to `rollout`.
        answers: carries decisions to `env`.
        timeout_s: seconds that an evaluation may take.
    """

    def __init__(
        self,
        rollout: WorkerGroup[MultiStepRolloutWorker],
        env: WorkerGroup[EnvWorker],
        *,
        requests: Channel,
        answers: Channel,
        timeout_s: float,
    ) -> None:
        self._rollout, self._env = rollout, env
        self._requests, self._answers = requests, answers
        self._timeout_s = timeout_s

    def run(self, episodes: int, video: Path | None = None) -> dict[str, float]:
        """Runs `episodes` episodes, each from an initial state of its own, and returns `eval/…` means."""
        film = str(video) if video is not None else None
        handles = [
            self._env.evaluate(episodes, self._requests, self._answers, film),
            self._rollout.evaluate(self._requests, self._answers),
        ]
        per_rank: list[Any] = within(self._timeout_s, *handles)[0]
        results: list[EpisodeResult] = [result for results in per_rank for result in results]
        return summarise(sorted(results, key=_number), "eval/")


def _number(result: EpisodeResult) -> int:
    return result.number
