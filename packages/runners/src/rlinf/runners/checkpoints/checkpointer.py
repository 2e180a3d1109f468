"""When a run writes checkpoints, and which of them stay: the last ones, the best, and those in use."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rlinf.core.checkpoints.weight_files import checkpoints_in
from rlinf.runners.checkpoints.checkpoint import BEST, in_use, peek_checkpoint, write_checkpoint
from rlinf.runners.checkpoints.interrupts import StopRequest
from rlinf.runners.checkpoints.run_folder import RunFolder, resume_folder
from rlinf.runners.config.paths import absolute_paths, path_values
from rlinf.runners.config.schema import RunConfig

Writer = Callable[[Path], None]

_NO_CHECKPOINT: Final = (
    "There is no checkpoint to go on from: runner.save_interval and runner.save_minutes say when one is written."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The evaluation that was better than all others under its protocol."""

    step: int
    metric: str
    value: float
    protocol: str
    """Its hash."""


class Checkpointer:
    """Writes the checkpoints of a run where they are due, and removes old ones.

    Args:
        cfg: the configuration of the run.
        folder: where the run writes.
        write_actor: writes the trainer's files into a folder.
        state: the counters of now; `step` is among them.
    """

    def __init__(self, cfg: RunConfig, folder: RunFolder, *, write_actor: Writer, state: Callable[[], Mapping[str, Any]]) -> None:
        self._runner, self._folder = cfg.runner, folder.checkpoints
        self._resumed = resume_folder(cfg)
        # Whoever goes on from a checkpoint may be in another directory.
        self._config = absolute_paths(cfg.source)
        # As it was when the run began and read it.
        self._planned = {"optimizer_steps": cfg.optimizer_steps, **({"content": dict(cfg.content)} if cfg.content else {})}
        self._write_actor, self._state = write_actor, state
        self._request = StopRequest(cfg.runner.interrupt_timeout_s)
        self._written: list[Path] = []
        self._saved_at = time.monotonic()
        self._found = self._read_best()
        self._best: Best | None = None

    @property
    def stopping(self) -> bool:
        """Whether a signal asked the run to stop."""
        return self._request.asked

    @contextmanager
    def stoppable(self, note: Callable[[str], None]) -> Generator[None]:
        """Inside, a first Ctrl-C or SIGTERM lets the iteration end and be saved; see `stop_if_asked`.

        Whatever else ends the run is told from which checkpoint it can go on, or that there is none.

        Args:
            note: shows a line of text.
        """
        # `save_minutes` counts from here, not from the start of the workers.
        self._saved_at = time.monotonic()
        with self._request:
            try:
                yield
            # `KeyboardInterrupt` is no `Exception`.
            except BaseException as error:
                last = self._written[-1] if self._written else self._resumed
                if not self.stopping:
                    _add_last_checkpoint(error, last)
                    raise
                if self._is_saved():
                    note(f"saved; go on with runner.resume_dir={last}")
                else:
                    note(f"not saved{_why(error)}; {f'the last checkpoint is {last}' if last else 'there is no checkpoint'}")
                # What a worker fails with after the signal that ended it is no failure of the run.
                raise KeyboardInterrupt from error

    def stop_if_asked(self) -> None:
        """After a signal, saves and ends the run.

        Raises:
            KeyboardInterrupt: there was one.
        """
        if self.stopping:
            self.save()
            self._request.stop()

    def save_if_due(self) -> None:
        """Saves if the number of iterations or the time since the last checkpoint says so."""
        runner, step = self._runner, self._state()["step"]
        by_step = runner.save_interval and step % runner.save_interval == 0
        by_time = runner.save_minutes and time.monotonic() - self._saved_at >= 60 * runner.save_minutes
        if by_step or by_time:
            self.save()

    def save(self, extra: Writer | None = None) -> Path:
        """Writes `global_step_<step>` and removes what is no longer kept; returns the folder.

        Args:
            extra: writes further files beside the trainer's, into the same folder.
        """
        state = {**self._state(), **self._planned}
        folder = self._folder / f"global_step_{state['step']}"
        # With `extra` it is written once more, as the one that is there lacks those files.
        if extra is None and self._is_saved():
            return folder

        def write(part: Path) -> None:
            self._write_actor(part)
            if extra is not None:
                extra(part)

        write_checkpoint(folder, write, config=self._config, state=state)
        # One that was written again is the newest.
        self._written = [*(path for path in self._written if path != folder), folder]
        self._saved_at = time.monotonic()
        self._remove_old()
        return folder

    def save_last(self, extra: Writer | None = None) -> Path:
        """`save` after the last iteration, before its evaluation."""
        folder = self.save(extra)
        self.stop_if_asked()
        return folder

    @contextmanager
    def saved_if_it_fails(self) -> Generator[None]:
        """Inside is an evaluation: if it fails, what was trained until then is saved, and the error says where."""
        try:
            yield
        except Exception as error:
            # Nothing was trained yet that could be lost.
            if not self._state()["step"]:
                raise
            try:
                error.add_note(f"What was trained before is saved: {self.save()}")
            except Exception as second:  # noqa: BLE001 - the first failure is the one that is raised
                error.add_note(f"What was trained before could not be saved: {second}")
            raise

    def evaluated(self, metric: str, value: float, *, protocol: str, lower_is_better: bool = False) -> None:
        """Saves the weights that were evaluated, and keeps them as the best, if they are better than all before.

        Only values under one protocol are compared: the one of the first evaluation. Weights before any training are not kept.

        Args:
            metric: its name.
            value: its value.
            protocol: the hash of the protocol that made it.
            lower_is_better: whether the metric is a loss.
        """
        best = self._best or (self._found if self._found is not None and self._found.protocol == protocol else None)
        sign = -1 if lower_is_better else 1
        # NaN is not below anything, so that it would count as better.
        if not self._runner.keep_best or not self._state()["step"] or math.isnan(value):
            return
        if best is not None and (best.protocol != protocol or sign * value <= sign * best.value):
            return
        folder = self.save()
        self._best = Best(step=self._state()["step"], metric=metric, value=value, protocol=protocol)
        record = self._folder / f"{BEST}.json"
        record.write_text(json.dumps(asdict(self._best), indent=1) + "\n")
        link = self._folder / f".{BEST}.new"
        with suppress(OSError):  # some file systems have no links
            # Made beside the old one and moved over it, so that `best` leads somewhere at any time.
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)
            link.replace(self._folder / BEST)
        self._remove_old()

    @property
    def best(self) -> str | None:
        """Where the best checkpoint is and why it is; None if there was no evaluation."""
        best = self._best or self._found
        return best and f"{self._folder / BEST} (global_step_{best.step}, {best.metric} {best.value:.4g})"

    def _best_folder(self) -> Path | None:
        best = self._best or self._found
        return best and self._folder / f"global_step_{best.step}"

    def _is_saved(self) -> bool:
        """Whether the newest checkpoint is that of now."""
        return bool(self._written) and self._written[-1].name == f"global_step_{self._state()['step']}"

    def _read_best(self) -> Best | None:
        try:
            found = Best(**json.loads((self._folder / f"{BEST}.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None
        # A run that goes back behind it comes to that iteration again, and puts other weights in its place.
        left = self._resumed is not None and found.step > peek_checkpoint(self._resumed).state["step"]
        return found if not left and found.step in checkpoints_in(self._folder) else None

    def _remove_old(self) -> None:
        """Keeps the last checkpoints, the best, and those that somebody uses; those of an earlier branch of the run go first."""
        if self._runner.keep_checkpoints is None:
            return
        ordered = sorted(checkpoints_in(self._folder).items(), key=lambda found: (found[1] in self._written, found[0]))
        # Such as `runner.resume_dir`: a run keeps the checkpoint that it started from.
        named = [path.resolve() for path in path_values(self._config)]
        best = self._best_folder()
        for _, path in ordered[: -self._runner.keep_checkpoints]:
            there = path.resolve()
            if path != best and not any(name.is_relative_to(there) for name in named) and not in_use(path):
                gone = path.with_name(f".{path.name}.old")
                with suppress(OSError):
                    path.rename(gone)  # at once, so that nobody finds half of it
                shutil.rmtree(gone, ignore_errors=True)


def _add_last_checkpoint(error: BaseException, last: Path | None) -> None:
    """Adds a note to an error: from which checkpoint the run can go on, unless another note has said so."""
    told: Sequence[str] = getattr(error, "__notes__", ())
    if last is None:
        error.add_note(_NO_CHECKPOINT)
    elif not any(str(last) in note for note in told):
        error.add_note(f"The run can go on from its last checkpoint: runner.resume_dir={last}")


def _why(error: BaseException) -> str:
    text = str(error).splitlines()
    return f" ({text[0]})" if text else ""
