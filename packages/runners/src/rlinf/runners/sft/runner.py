"""`SFTRunner`: the loop of supervised fine-tuning.

train_steps     actor        `steps_per_iteration` optimizer steps, each on `global_batch_size` examples
validate        actor        now and then: the loss of examples held out
save, export    actor        a checkpoint to resume from, and a folder for transformers, vLLM and SGLang
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from rlinf.core.metrics import means, merge
from rlinf.core.protocols import WorkerGroup
from rlinf.runners.checkpoint import read_checkpoint, write_checkpoint
from rlinf.runners.entry import STARTED
from rlinf.runners.evaluation import protocol_hash
from rlinf.runners.export import HUGGINGFACE
from rlinf.runners.logbook import Logbook
from rlinf.runners.phases import Phases
from rlinf.runners.progress import ProgressDisplay
from rlinf.runners.run_folder import RunFolder, open_run_folder
from rlinf.runners.sections import resolved
from rlinf.runners.sft.actor_worker import SFTActor
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.summary import write_measured


class SFTRunner:
    """Trains a language model on worked solutions, with one actor group.

    Args:
        cfg: the configuration of the run.
        actor: the group that trains.
        folder: where the run writes; by default the one that `cfg` names.
    """

    def __init__(self, cfg: SFTConfig, actor: WorkerGroup[SFTActor], folder: RunFolder | None = None) -> None:
        self.cfg, self.actor = cfg, actor
        self.folder = folder or open_run_folder(cfg)
        self.step = 0
        self.examples = 0
        self.phases = Phases(cfg.runner.timeout_s)

    def init_workers(self) -> None:
        """Reads the examples, builds the trainer, and restores the checkpoint that the run resumes from."""
        (found,) = self.phases.wait(self.actor.init_worker())
        self.examples = found[0]
        if self.cfg.runner.resume_dir is not None:
            checkpoint = read_checkpoint(Path(self.cfg.runner.resume_dir).expanduser())
            self.phases.wait(self.actor.load_checkpoint(str(checkpoint.folder / "actor")))
            self.step = checkpoint.state["step"]

    def run(self) -> Path:
        """Runs the loop to its end, then validates, saves, exports and writes the summary; returns the last checkpoint."""
        config = self.cfg.runner
        with Logbook(self.folder, config.logger) as log, ProgressDisplay(config.max_steps, self.step) as progress:
            while self.step < config.max_steps:
                began = time.monotonic()
                count = config.steps_per_iteration
                (training,) = self.phases.wait(self.actor.train_steps(self.step * count, count))
                scalars = means(merge(training), "train/")
                scalars["time/step"] = time.monotonic() - began
                self.step += 1
                last = self.step == config.max_steps
                if config.val_check_interval and self.step % config.val_check_interval == 0 and not last:
                    scalars |= self.validate()
                log.write(self.step, scalars)
                progress.iteration(self.step, f"loss {scalars['train/nll']:.3f}")
                if config.save_interval and self.step % config.save_interval == 0 and not last:
                    self.save_checkpoint()
            return self._finish(log, progress)

    def validate(self) -> dict[str, float]:
        """The loss of the examples held out, in nats a token, and its exponential."""
        (per_rank,) = self.phases.wait(self.actor.validate())
        loss = means(per_rank[0])["nll"]
        return {"eval/loss": loss, "eval/perplexity": math.exp(min(loss, 700.0))}

    def save_checkpoint(self) -> Path:
        """Writes `global_step_<step>`; returns the folder."""
        folder = self.folder.checkpoints / f"global_step_{self.step}"

        def write_actor(part: Path) -> None:
            self.phases.wait(self.actor.save_checkpoint(str(part)))

        write_checkpoint(folder, write_actor, config=self.cfg.source, state={"step": self.step})
        return folder

    def _finish(self, log: Logbook, progress: ProgressDisplay) -> Path:
        scalars = {**self.validate(), "data/examples": float(self.examples), "time/wall_s": time.monotonic() - STARTED}
        checkpoint = self.save_checkpoint()
        if self.cfg.runner.export:
            self.phases.wait(self.actor.export(str(self.folder.path / HUGGINGFACE)))
        self.phases.wait(self.actor.close())
        log.write(self.step, scalars)
        plain = resolved(self.cfg)
        protocol = {"data": plain["data"], "hash": protocol_hash(plain["data"])}
        write_measured(self.folder.summary, self.cfg.runner, scalars, protocol)
        steps = self.cfg.optimizer_steps
        progress.note(f"eval/loss {scalars['eval/loss']:.4f} after {steps:,} optimizer steps on {self.examples:,} examples")
        progress.note(f"checkpoint  {checkpoint}")
        return checkpoint
