"""A checkpoint is one folder that is either whole or not there: files first, manifest last, all on the disk, then one rename.

global_step_40/
actor/…          what the trainer writes: model.safetensors, optimizer, random state
config.json      the configuration of the run
state.json       counters
manifest.json    size and SHA-256 of every other file

Beside it `best` links to the checkpoint that was best in evaluations, and `best.json` says in what.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from rlinf.core.checkpoints.disk import file_sha256, flush_to_disk, rename_on_disk, unwritten
from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.errors import CheckpointError

MANIFEST = "manifest.json"
MODEL = "actor/model.safetensors"
BEST = "best"
FORMAT = 1
_HELD: list[TextIO] = []
"""Held open for as long as this process lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    folder: Path
    config: Mapping[str, Any]
    """The mapping that the run was configured with."""
    state: Mapping[str, Any]
    """`step` (iterations done), `optimizer_steps` (of the whole run as it was planned), and counters of the kind of run."""

    @property
    def model_file(self) -> Path:
        """The policy's weights."""
        return self.folder / MODEL


def write_checkpoint(
    folder: Path, write_actor: Callable[[Path], None], *, config: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Writes a checkpoint that appears as a whole or not at all.

    Args:
        folder: where it will be; replaced if it exists.
        write_actor: writes the trainer's files into the folder that it is given.
        config: the mapping that the run was configured with.
        state: counters.

    Raises:
        CheckpointError: the system refuses to write. Nothing of it stays, and checkpoints that were there stay as they were.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        _write_whole(folder, partial, write_actor, config, state)
    except OSError as error:
        # What could not be made may be the folder of the checkpoints itself.
        there = next(parent for parent in folder.absolute().parents if parent.exists())
        free = f"{shutil.disk_usage(there).free / 2**30:.3g} GiB of its disk are free"
        problem = f"can't be written ({error.strerror or error}; {free})"
        raise unwritten(folder, problem, error) from error
    finally:
        # A disk that is full would stay so.
        shutil.rmtree(partial, ignore_errors=True)


def _write_whole(
    folder: Path, partial: Path, write_actor: Callable[[Path], None], config: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    # Left behind by a process that was killed while it wrote.
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "actor").mkdir(parents=True)
    write_actor(partial / "actor")
    _write_json(partial / "config.json", config)
    _write_json(partial / "state.json", state)
    files = {str(p.relative_to(partial)): _fingerprint(p) for p in sorted(partial.rglob("*")) if p.is_file()}
    _write_json(partial / MANIFEST, {"format": FORMAT, "files": files})
    flush_to_disk(partial)
    # A folder can't be renamed onto one that holds files.
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    rename_on_disk(partial, folder)
    shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> Checkpoint:
    """Reads a checkpoint and compares every file with the manifest.

    Args:
        folder: a `global_step_N` folder, the link `best` to one, or the folder of a run, of which the last checkpoint is taken.

    Raises:
        CheckpointError: there is none, or a file is missing or damaged.
    """
    folder = find_checkpoint(folder)
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(str(folder / MANIFEST), f"format {manifest.get('format')!r}, this version reads {FORMAT}")
    for name, expected in cast("Mapping[str, Mapping[str, Any]]", manifest["files"]).items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(str(path), "listed in the manifest but missing", "Use another checkpoint.")
        if _fingerprint(path) != expected:
            raise CheckpointError(str(path), "differs from the manifest: damaged or changed", "Use another checkpoint.")
    return _opened(folder)


def peek_checkpoint(folder: Path) -> Checkpoint:
    """The same, without a look at the files: what its configuration and its counters say, soon.

    Raises:
        CheckpointError: there is none, or these two can't be read.
    """
    return _opened(find_checkpoint(folder))


def model_of(weights: Path) -> str | None:
    """The `actor.model.model_type` of the run whose checkpoint a file of weights belongs to; None where it is in no such folder."""
    try:
        return peek_checkpoint(weights.absolute().parents[1]).config["actor"]["model"]["model_type"]
    except (CheckpointError, KeyError, TypeError, IndexError):
        return None


def hold_checkpoint(checkpoint: Checkpoint) -> None:
    """Keeps a run that goes on from removing a checkpoint, until this process ends; nothing where a file system has no locks."""
    manifest = (checkpoint.folder / MANIFEST).open()
    _HELD.append(manifest)
    with suppress(OSError):
        # Shared, as several processes may hold one checkpoint.
        fcntl.flock(manifest, fcntl.LOCK_SH)


def in_use(folder: Path) -> bool:
    """Whether a process holds a checkpoint."""
    try:
        with (folder / MANIFEST).open() as manifest:
            # Closing the file gives the lock back, so that this look holds nothing.
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no manifest, or a file system without locks
        return False
    return False


def find_checkpoint(folder: Path) -> Path:
    """The folder of the checkpoint that a path stands for; see `read_checkpoint`.

    Raises:
        CheckpointError: there is none.
    """
    if (folder / MANIFEST).is_file():
        # `best` may lead to another checkpoint before whoever asks has read this one.
        return folder.resolve() if folder.is_symlink() else folder
    newest = newest_checkpoint(folder)
    if newest is None or not (newest / MANIFEST).is_file():
        remedy = "Name a global_step_N folder, or the folder of a run."
        raise CheckpointError(str(newest or folder), f"no checkpoint here (no {MANIFEST})", remedy)
    return newest


def _opened(folder: Path) -> Checkpoint:
    return Checkpoint(folder=folder, config=_read_json(folder / "config.json"), state=_read_json(folder / "state.json"))


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(str(path), f"unreadable ({error})", "Use another checkpoint.") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, default=str))
