"""`SFTRunner`: the loop of supervised fine-tuning, of language models and of policies.

grow            actor …      of DAgger: more examples, see `Growth`
train_steps     actor        `steps_per_iteration` optimizer steps, each on `global_batch_size` examples
validate        actor        now and then: the loss of examples held out, which may end the run (`until_loss`)
save, export    actor        a checkpoint to resume from, and a folder for transformers, vLLM and SGLang
evaluate                     at the end: what the last checkpoint achieves, where somebody can say
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from rlinf.core.evaluation import EvalReport, canonical_hash
from rlinf.core.metrics import means, merge
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.checkpoints.checkpointer import Checkpointer
from rlinf.runners.checkpoints.export import HUGGINGFACE
from rlinf.runners.checkpoints.resuming import resumed_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder, open_run_folder
from rlinf.runners.config.sections import resolved
from rlinf.runners.reasoning.evaluation import by_content
from rlinf.runners.reporting.phases import Phases
from rlinf.runners.reporting.record import RunRecord, recorded
from rlinf.runners.reporting.summary import write_measured, write_report
from rlinf.runners.sft.schema import FineTuningConfig, SFTConfig


class Growth(Protocol):
    """What adds examples to those that a run learns from, while it runs."""

    @property
    def state(self) -> Mapping[str, int]:
        """What a checkpoint must know of them."""
        ...

    def open(self, checkpoint: Checkpoint | None) -> None:
        """Makes ready what the run begins with, or goes on with; called before the actors read."""
        ...

    def grow(self, step: int) -> tuple[Mapping[str, float], Sequence[str]]:
        """Adds examples before iteration `step`, and lets the actors read; returns numbers, and what is said of them."""
        ...

    def evaluate(self) -> EvalReport[Any]:
        """What the newest weights achieve."""
        ...

    def close(self) -> None:
        """Ends what the others don't need any more."""
        ...


class SFTRunner:
    """Trains a model on examples, with one actor group.

    Args:
        cfg: the configuration of the run.
        actor: the group that trains, of `FineTuningWorker`.
        folder: where the run writes; by default the one that `cfg` names.
        evaluate: plays the episodes of a protocol with a checkpoint, and reports; None where the loss is all that is known.
        growth: adds examples; None where they stay the same.
    """

    def __init__(
        self,
        cfg: FineTuningConfig,
        actor: WorkerGroup[Any],
        folder: RunFolder | None = None,
        evaluate: Callable[[Path], EvalReport[Any]] | None = None,
        growth: Growth | None = None,
    ) -> None:
        self.cfg, self.actor = cfg, actor
        self._evaluate, self._growth = evaluate, growth
        self.folder = folder or open_run_folder(cfg)
        self.step = 0
        self.loss: float | None = None
        self.examples = 0
        self.phases = Phases(cfg.runner.timeout_s)
        self.checkpoints = Checkpointer(cfg, self.folder, write_actor=self._write_actor, state=self._state)

    def init_workers(self) -> None:
        """Reads the examples, builds the trainer, and restores the checkpoint that the run resumes from."""
        checkpoint = resumed_checkpoint(self.cfg)
        if self._growth is not None:
            self._growth.open(checkpoint)
        (found,) = self.phases.wait(self.actor.init_worker())
        self.examples = found[0]
        if checkpoint is not None:
            self.phases.wait(self.actor.load_checkpoint(str(checkpoint.folder / "actor")))
            self.step = checkpoint.state["step"]
            self.loss = checkpoint.state.get("loss")

    def run(self) -> Path:
        """Runs the loop to its end, then saves, validates, exports and writes the summary; returns the last checkpoint."""
        config = self.cfg.runner
        with recorded(self.cfg, self.folder, self.checkpoints, step=self.step) as record:
            with self.checkpoints.stoppable(record.progress.note):
                record.resumed(self.step, self._validated)
                steps = max(0, config.max_steps - self.step) * self.cfg.runner.steps_per_iteration
                size = self.cfg.actor.global_batch_size
                record.progress.note(f"learning from {self.examples:,} examples in {steps:,} optimizer steps of {size:,}")
                while self.step < config.max_steps and not self.learned:
                    self._train(record)
                record.skipped.check()
                checkpoint = self.checkpoints.save_last()
            self._finish(record, checkpoint)
        return checkpoint

    @property
    def learned(self) -> bool:
        """Whether the loss that was measured last is one that ends the run."""
        bound = self.cfg.runner.until_loss
        return bound is not None and self.loss is not None and self.loss <= bound

    def validate(self) -> dict[str, float]:
        """The loss of the examples held out, and what comes with it; keeps the weights if it is the lowest so far.

        Where examples are added, it says little of the states that a policy visits: there, what is achieved says which are best.
        """
        with self.checkpoints.saved_if_it_fails():
            (per_rank,) = self.phases.wait(self.actor.validate())
        # All ranks say the same, as they have added up.
        found = means(per_rank[0], "eval/")
        self.loss = found["eval/loss"]
        if self._growth is None:
            self.checkpoints.evaluated("eval/loss", found["eval/loss"], protocol=self._protocol["hash"], lower_is_better=True)
        return found

    def _train(self, record: RunRecord) -> None:
        """One iteration, and what follows it."""
        began = time.monotonic()
        grown, told = self._grown()
        count = self.cfg.runner.steps_per_iteration
        (training,) = self.phases.wait(self.actor.train_steps(self.step * count, count))
        scalars = {**means(merge(training), "train/"), **grown}
        scalars["time/step"] = time.monotonic() - began
        self.step += 1
        record.iteration(self.step, scalars, [f"loss {scalars['train/loss']:.3f}", *told], self._validated)

    def _grown(self) -> tuple[Mapping[str, float], Sequence[str]]:
        """More examples to learn from, if there are any; with numbers, and what is said of them."""
        if self._growth is None:
            return {}, ()
        found = self._growth.grow(self.step)
        (counts,) = self.phases.wait(self.actor.count())
        self.examples = counts[0]
        return {**found[0], "data/examples": float(self.examples)}, (*found[1], f"{self.examples:,} examples")

    def _validated(self) -> tuple[dict[str, float], str]:
        scalars = self.validate()
        if self._growth is None:
            return scalars, f"loss {scalars['eval/loss']:.3f}"
        with self.checkpoints.saved_if_it_fails():
            report = self._growth.evaluate()
        self._achieved(report)
        return {**scalars, **report.scalars()}, report.brief

    def _achieved(self, report: EvalReport[Any]) -> None:
        self.checkpoints.evaluated(f"eval/{report.metric}", report.means[report.metric], protocol=report.protocol.hash)

    def _write_actor(self, folder: Path) -> None:
        self.phases.wait(self.actor.save_checkpoint(str(folder)))

    def _state(self) -> dict[str, Any]:
        return {"step": self.step, "loss": self.loss, **({} if self._growth is None else self._growth.state)}

    @cached_property
    def _protocol(self) -> dict[str, Any]:
        """What a loss is measured on; a dataset of robots by its path, as its films are too large to be read for a hash."""
        data = resolved(self.cfg)["data"]
        if isinstance(self.cfg, SFTConfig):
            data = by_content(data, self.cfg.data.task, "validation")
        return {"data": data, "hash": canonical_hash(data)}

    def _finish(self, record: RunRecord, checkpoint: Path) -> None:
        measured = {**self.validate(), "data/examples": float(self.examples), "time/wall_s": self.folder.wall_s}
        if self.cfg.exports:
            self.phases.wait(self.actor.export(str(self.folder.path / HUGGINGFACE)))
        if self._growth is not None:
            self._growth.close()
        self.phases.wait(self.actor.close())
        if self._evaluate is None:
            record.log.write(self.step, measured)
            write_measured(self.folder, self.cfg.runner, measured, self._protocol)
        else:
            with self.checkpoints.saved_if_it_fails():
                report = self._evaluate(checkpoint)
            if self._growth is not None:
                self._achieved(report)
            record.progress.note(f"eval/{report}")
            record.log.write(self.step, {**measured, **report.scalars()})
            write_report(self.folder, self.cfg.runner, report, {**measured, "loss_protocol": self._protocol})
        steps = self.step * self.cfg.runner.steps_per_iteration
        record.progress.note(f"eval/loss {measured['eval/loss']:.4f} after {steps:,} optimizer steps on {self.examples:,} examples")
        paths = {"checkpoint": checkpoint, "best": self.checkpoints.best, "summary": self.folder.summary}
        record.progress.paths(paths)
