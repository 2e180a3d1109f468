"""What follows every iteration: a checkpoint and an evaluation where they are due, its numbers, and what a person is shown."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlinf.runners.checkpoints.checkpointer import Checkpointer
from rlinf.runners.checkpoints.resuming import misses_evaluation
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunConfig, RunnerConfig
from rlinf.runners.reporting.metrics_log import MetricsLog
from rlinf.runners.reporting.progress import ProgressDisplay
from rlinf.runners.training.finite import SkippedSteps

Evaluate = Callable[[], tuple[Mapping[str, float], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Where a run's iterations are recorded."""

    config: RunnerConfig
    """When something is due."""
    checkpoints: Checkpointer
    """Where the run is saved."""
    log: MetricsLog
    """Where numbers go."""
    progress: ProgressDisplay
    """What a person sees."""
    skipped: SkippedSteps = field(default_factory=SkippedSteps)
    """Optimizer steps that changed no weight."""
    unevaluated: bool = False
    """Whether the weights that the run goes on from were not evaluated."""

    def resumed(self, step: int, evaluate: Evaluate) -> None:
        """Makes the evaluation before the first iteration that the run was stopped without, so that its curve has no gap.

        Args:
            step: how many iterations are done.
            evaluate: as for `iteration`.

        Raises:
            KeyboardInterrupt: a signal had asked the run to stop; it is saved.
        """
        every = self.config.val_check_interval
        if self.unevaluated and every and step % every == 0 and step < self.config.max_steps:
            self.progress.note(f"evaluating after iteration {step}, which the run was stopped without")
            found, brief = evaluate()
            self.progress.evaluation(brief)
            self.log.write(step, found)
            self.checkpoints.stop_if_asked()

    def iteration(
        self,
        step: int,
        scalars: Mapping[str, float],
        told: Sequence[str],
        evaluate: Evaluate,
    ) -> None:
        """Ends an iteration; nothing is saved or evaluated after the last one, which the end of the run does.

        Args:
            step: how many iterations are done.
            scalars: its numbers.
            told: what is said of it.
            evaluate: returns the numbers of an evaluation, and what is said of it.

        Raises:
            KeyboardInterrupt: a signal had asked the run to stop; it is saved.
        """
        parts, every = [*told, *self.skipped.add(scalars)], self.config.val_check_interval
        try:
            if step < self.config.max_steps:
                # Saved first: what was trained must outlive an evaluation that fails.
                self.checkpoints.save_if_due()
                if every and step % every == 0 and not self.checkpoints.stopping:
                    found, brief = evaluate()
                    scalars = {**scalars, **found}
                    self.progress.evaluation(brief)
        finally:
            # So must its numbers.
            self.log.write(step, scalars)
        self.progress.iteration(step, *parts)
        self.checkpoints.stop_if_asked()


@contextmanager
def recorded(cfg: RunConfig, folder: RunFolder, checkpoints: Checkpointer, *, step: int) -> Generator[RunRecord]:
    """Inside, a run records its iterations; its files are closed at the end.

    Args:
        cfg: of the run.
        folder: where it writes.
        checkpoints: where it is saved.
        step: the iteration that it begins with.
    """
    with MetricsLog(folder, cfg) as log, ProgressDisplay(cfg.runner.max_steps, step) as progress:
        left_out = misses_evaluation(cfg)
        yield RunRecord(config=cfg.runner, checkpoints=checkpoints, log=log, progress=progress, unevaluated=left_out)
