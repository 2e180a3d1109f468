"""Trees of arrays as files of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

from rlinf.core.checkpoints.disk import unwritten


def write_tree(file: Path, tree: Mapping[str, Any]) -> None:
    """Writes nested mappings of arrays, of which no key has a slash; nothing if there is no array.

    Raises:
        CheckpointError: the disk is full, or the system refuses to write.
    """
    arrays = {path: np.ascontiguousarray(leaf) for path, leaf in _leaves(tree)}
    if not arrays:
        return
    try:
        save_file(arrays, file)
    except (OSError, SafetensorError) as error:
        raise unwritten(file, f"can't be written ({error})", error) from error


def read_tree(file: Path) -> dict[str, Any]:
    """What `write_tree` wrote, keys in sorted order; nothing if there is no file."""
    found: dict[str, Any] = {}
    leaves = load_file(file) if file.exists() else {}
    for path in sorted(leaves):
        *keys, last = path.split("/")
        branch = found
        for key in keys:
            branch = branch.setdefault(key, {})
        branch[last] = leaves[path]
    return found


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by their keys, parted by slashes."""
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for key, branch in cast("Mapping[str, Any]", tree).items():
        yield from _leaves(branch, f"{path}/{key}" if path else key)
