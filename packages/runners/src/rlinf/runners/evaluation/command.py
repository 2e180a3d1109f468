"""The command line of an evaluation: a checkpoint, and what is changed of the configuration inside it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.runners.checkpoints.checkpoint import Checkpoint, hold_checkpoint, read_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.choices import replace_parameters
from rlinf.runners.config.paths import moved_paths
from rlinf.runners.reporting.summary import rate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCommand:
    """What the user of an evaluation typed."""

    checkpoint: Checkpoint
    """What is evaluated."""
    data: Mapping[str, Any]
    """The checkpoint's configuration with the changes, not yet read into types."""
    started: float = field(default_factory=time.monotonic)
    """When the evaluation began, on the clock of `time.monotonic`."""

    def folder(self, protocol: Mapping[str, Any]) -> RunFolder:
        """Where the evaluation writes: beside the checkpoint, in a folder for each protocol.

        Args:
            protocol: the one that is used, with its `hash`.
        """
        return RunFolder(_beside(self.checkpoint) / protocol["hash"], self.started)


def parse_evaluation(argv: Sequence[str], *, description: str, example: str) -> EvaluationCommand:
    """Reads the arguments of an evaluation: a checkpoint, then overrides.

    Args:
        argv: the arguments.
        description: of the app.
        example: an override, for messages.

    Raises:
        ConfigError: an override can't be read.
        CheckpointError: there is no such checkpoint, it is damaged, or nothing can be written beside it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("checkpoint", type=Path, help="a global_step_N folder, or the folder of a run")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help=f"changes to the checkpoint's configuration, such as {example}")
    args = parser.parse_intermixed_args(list(argv))
    overrides = cast("list[str]", args.overrides)
    for override in overrides:
        if "=" not in override:
            raise ConfigError(override, "not an override", f"Write key=value, such as {example}.")
    started = time.monotonic()
    checkpoint = read_checkpoint(args.checkpoint.expanduser().absolute())
    hold_checkpoint(checkpoint)
    _make(_beside(checkpoint))
    try:
        before, changes = OmegaConf.create(_own_configuration(checkpoint)), OmegaConf.from_dotlist(overrides)
        merged = cast("Mapping[str, Any]", OmegaConf.to_container(OmegaConf.merge(before, changes)))
        explicit = flatten(OmegaConf.to_container(changes))
        data, _ = replace_parameters(_own_configuration(checkpoint), merged, explicit=explicit)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(" ".join(overrides), " ".join(str(error).split()), f"Write key=value, such as {example}.") from error
    return EvaluationCommand(checkpoint=checkpoint, data=data, started=started)


def _own_configuration(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint was trained with, as it holds here and now: its weights come from nowhere else."""
    config = moved_paths(checkpoint.config, checkpoint.folder.parent.parent)
    runner = {key: value for key, value in config.get("runner", {}).items() if key not in ("resume_dir", "ckpt_path")}
    return {**config, "runner": runner}


def _beside(checkpoint: Checkpoint) -> Path:
    return checkpoint.folder.with_name(f"{checkpoint.folder.name}_eval")


def _make(folder: Path) -> None:
    """Refuses before the work what would fail after it."""
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        problem = f"the evaluation can't be written there ({error.strerror})"
        raise CheckpointError(str(folder), problem, "Copy the run to a folder that you may write to.") from error


def told(summary: Mapping[str, Any], metric: str, *, of: str, folder: RunFolder) -> str:
    """An evaluation in a few lines: the metric with its interval, other rates, and the files.

    Args:
        summary: what was measured.
        metric: the name of the metric that counts most.
        of: how many of what were evaluated.
        folder: where its files are.
    """
    head = f"{rate(summary, metric)} of {of}"
    rates = [f"{name} {value:.1%}" for name, value in summary.items() if name.startswith("eval/pass@")]
    lines = [f"{head} (seed {summary['seed']}, protocol {summary['protocol']['hash']})"]
    lines += ["  ".join(rates)] if len(rates) > 1 else []
    lines += [str(path) for path in (folder.transcripts, folder.video, folder.summary) if path.exists()]
    return "\n".join(lines) + "\n"
