"""Going on from a checkpoint: what can be known before a worker starts, and the checkpoint itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, cast

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import ConfigError, MissingExtra, UnknownName
from rlinf.runners.checkpoints.checkpoint import Checkpoint, peek_checkpoint, read_checkpoint
from rlinf.runners.checkpoints.run_folder import AUTO, RunFolder, resume_folder, run_folder
from rlinf.runners.config.paths import absolute_paths
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.config.sections import resolved
from rlinf.runners.task_types import task_type_of

_NOT_TRAINED: Final = ("runner", "cluster", "sft")
_SHOWN: Final = 6
"""Changes that a message names."""


def check_resume(cfg: RunConfig) -> None:
    """Refuses a checkpoint that a run can't go on from, and says where it will not go on as it began; nothing without `resume_dir`.

    Raises:
        ConfigError: the checkpoint is of another kind of run, the run is shorter than what it has behind it, or its schedule would
            stretch.
        CheckpointError: there is no checkpoint.
    """
    folder = resume_folder(cfg)
    if cfg.runner.resume_dir == AUTO:
        said = f"from {folder}" if folder else f"nothing yet in {run_folder(cfg).checkpoints}: the run starts anew"
        sys.stderr.write(f"resuming: {said}\n")
    if folder is None:
        return
    # Its files are compared with the manifest once, by `resumed_checkpoint`: that reads all of them.
    checkpoint = peek_checkpoint(folder)
    _refuse_other_kind(cfg, checkpoint)
    _refuse_other_length(cfg, checkpoint)
    changes = list(_changes(cfg, checkpoint))
    if changes:
        more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        sys.stderr.write(f"resuming: not as in {folder}: {'; '.join(changes[:_SHOWN])}{more}\n")
    if checkpoint.state["step"] == cfg.runner.max_steps:
        sys.stderr.write(f"resuming: all {cfg.runner.max_steps} iterations are done; only the last evaluation is run\n")
    elif cfg.inexact_resume:
        sys.stderr.write(f"resuming: {cfg.inexact_resume}\n")


def _changes(cfg: RunConfig, checkpoint: Checkpoint) -> Iterator[str]:
    """Keys that are not as before, but for those of where and how long, and files with another content."""
    before, now = (
        {name: value for name, value in config.items() if name not in _NOT_TRAINED}
        for config in (checkpoint.config, absolute_paths(cfg.source))
    )
    was, found = flatten(before), flatten({name: now[name] for name in before if name in now})
    content = checkpoint.state.get("content", {})
    for key in sorted(was.keys() | found.keys()):
        if was.get(key) != found.get(key):
            yield f"{key} is {_told(found, key)} (was {_told(was, key)})"
        elif key in content and content[key] != cfg.content.get(key):
            yield f"the file of {key} has changed"


def _told(values: Mapping[str, Any], key: str) -> str:
    return f"{values[key]!r:.80}" if key in values else "not set"


def resumed_checkpoint(cfg: RunConfig) -> Checkpoint | None:
    """The checkpoint that a run goes on from, every file compared with the manifest; None if it starts anew.

    Raises:
        ConfigError: see `check_resume`.
        CheckpointError: there is none, or it is damaged.
    """
    folder = resume_folder(cfg)
    if folder is None:
        return None
    checkpoint = read_checkpoint(folder)
    _refuse_other_length(cfg, checkpoint)
    return checkpoint


def misses_evaluation(cfg: RunConfig) -> bool:
    """Whether the run whose checkpoint this one goes on from has no evaluation of it; false where its numbers are not there.

    A signal ends an iteration without the evaluation that was due after it, and an evaluation that fails is none, either.
    """
    folder = resume_folder(cfg)
    if folder is None:
        return False
    checkpoint = peek_checkpoint(folder)
    step, numbers = checkpoint.state["step"], RunFolder(checkpoint.folder.absolute().parents[1]).metrics
    if not numbers.exists():
        return False
    found: Mapping[str, Any] = {}
    with numbers.open() as lines:
        for line in lines:
            if f'"step": {step},' in line and line.endswith("\n"):
                # The last one counts: the lines of a branch that was left come before.
                found = json.loads(line)
    return not any(name.startswith("eval/") for name in found)


def _refuse_other_kind(cfg: RunConfig, checkpoint: Checkpoint) -> None:
    """Each kind of run keeps something else beside the weights, such as a replay buffer."""
    # Whose task type is not installed here may be anything.
    with suppress(UnknownName, MissingExtra):
        made = task_type_of(checkpoint.config).name if checkpoint.config else cfg.runner.task_type
        if made != cfg.runner.task_type:
            problem = f"'{checkpoint.folder}' is of a run of the task type {made}, and this one is {cfg.runner.task_type}"
            raise ConfigError("runner.resume_dir", problem, "Begin anew with its weights: name it as runner.ckpt_path.")


def _refuse_other_length(cfg: RunConfig, checkpoint: Checkpoint) -> None:
    step, steps = checkpoint.state["step"], cfg.runner.max_steps
    if steps < step:
        problem = f"expected at least the {step} iterations that '{checkpoint.folder}' has behind it, found {steps}"
        raise ConfigError("runner.max_steps", problem, "Raise it, or evaluate the checkpoint with eval.py.")
    planned, now = checkpoint.state.get("optimizer_steps"), cfg.optimizer_steps
    if planned is None or planned == now or not _spans_run(cfg):
        return
    problem = (
        f"expected the {planned} optimizer steps over which the learning rate of '{checkpoint.folder}' falls, found {now}: "
        "it would jump where the run goes on"
    )
    remedy = f"Set it to {planned} for the old schedule, or to {now} for one over the longer or shorter run."
    raise ConfigError("actor.optim.total_training_steps", problem, remedy)


def _spans_run(cfg: RunConfig) -> bool:
    """Whether the learning rate follows a schedule whose end nobody wrote down, so that it is that of the run."""
    optim = resolved(cfg)["actor"].get("optim")
    if not isinstance(optim, Mapping):
        return False
    schedule = cast("Mapping[str, Any]", optim)
    return schedule.get("lr_scheduler", "constant") != "constant" and schedule.get("total_training_steps") is None
