"""What is evaluated: the weights of an evaluation without training, and the plan of a run that trains."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf.core.checkpoints.disk import file_sha256
from rlinf.core.checkpoints.weight_files import INDEX_SUFFIX, find_weights, read_shards
from rlinf.core.config.provenance import flatten
from rlinf.core.evaluation import EvalProtocol
from rlinf.runners.checkpoints.checkpoint import Checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import RunnerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """The weights of a checkpoint, those of `runner.ckpt_path`, or the model's own."""

    name: str
    """What a person knows the weights by."""
    checkpoint_file: str | None
    """The weights of a checkpoint; None for those that a run of this configuration would start from."""
    state: Mapping[str, Any]
    """The counters of the checkpoint; empty without one."""
    parent: Path
    """Holds a folder for each protocol."""
    started: float = field(default_factory=time.monotonic)
    """When the evaluation began, on the clock of `time.monotonic`."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """The files of the weights and the SHA-256 of each; none where the model brings its own."""
    command: str = ""
    """The command line."""
    published: EvalProtocol | None = None
    """The protocol that is repeated, if one is."""
    model: Mapping[str, Any] | None = None
    """`actor.model` of the checkpoint; None without one."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> EvaluatedPolicy:
        """That of a checkpoint, whose results go beside it."""
        folder = checkpoint.folder
        parent = folder.with_name(f"{folder.name}_eval")
        return cls(name=str(folder), checkpoint_file=str(checkpoint.model_file), state=checkpoint.state, parent=parent)

    @property
    def described(self) -> dict[str, Any]:
        """What a report says of the policy."""
        return {"policy": self.name, "weights": dict(self.files), "command": self.command}

    @property
    def step(self) -> int:
        """After how many iterations of training the weights were saved."""
        return int(self.state.get("step", 0))

    def changed(self, source: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a configuration changes of `actor.model` of the checkpoint, by dotted key; None for nothing, or without one."""
        if self.model is None:
            return None
        before, after = flatten(self.model), flatten(source["actor"]["model"])
        return {key: after.get(key) for key in sorted({*before, *after}) if before.get(key) != after.get(key)} or None

    def folder(self, protocol: EvalProtocol) -> RunFolder:
        """Where the results go, so that those of another protocol are left alone."""
        return RunFolder(self.parent / protocol.hash, self.started)


def weight_sums(path: str) -> dict[str, str]:
    """The files of the weights that a path means, and the SHA-256 of each.

    Raises:
        CheckpointError: there are no weights.
    """
    file = find_weights(path, place="runner.ckpt_path")
    files = sorted(set(read_shards(file).values())) if file.name.endswith(INDEX_SUFFIX) else [file]
    return {str(each.absolute()): file_sha256(each) for each in files}


def evaluation_begins(protocol: EvalProtocol) -> str:
    """What an evaluation without training measures, in words."""
    return f"evaluation: {_amount(protocol)} (protocol {protocol.hash})"


def evaluation_plan(interim: EvalProtocol, final: EvalProtocol, runner: RunnerConfig) -> str:
    """What a run will measure, in words.

    Args:
        interim: the protocol of the evaluations while it trains.
        final: that of the last one, which the summary reports.
        runner: says how often.
    """
    last = f"{_amount(final)} at the end (protocol {final.hash})"
    if not runner.val_check_interval:
        return f"evaluation: {last}"
    first = f"{_amount(interim)} every {runner.val_check_interval} iterations"
    if interim.hash == final.hash:
        return f"evaluation: {first} and at the end (protocol {final.hash})"
    return f"evaluation: {first} (protocol {interim.hash}), {last}; their numbers are not comparable"


def _amount(protocol: EvalProtocol) -> str:
    return f"{len(protocol.work_list()):,} {protocol.result.counted}"
