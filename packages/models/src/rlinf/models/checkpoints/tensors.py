"""Tensors by name, in files: safetensors, whole or in shards, and `full_weights.pt` without anything but tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlinf.core.checkpoints.weight_files import INDEX_SUFFIX, find_weights, read_shards
from rlinf.core.errors import CheckpointError

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
SHARD_BYTES: Final = 5 * 2**30
SHARED: Final = "shared"
"""In the metadata: for each name that is stored under another one, that other name."""

_PICKLED = (".pt", ".pth", ".bin")
PROCESSORS: Final = ("policy_preprocessor_", "policy_postprocessor_")
"""How files of LeRobot's processors begin; their safetensors hold statistics, and no weights."""

_safetensors: Any = safetensors.torch
_open: Any = safe_open


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors by name; names of one tensor give one tensor again.

    Args:
        path: a file (`.safetensors`, an index of shards, `.pt`), or what else `rlinf.core.checkpoints.weight_files.find_weights`
            takes.

    Raises:
        CheckpointError: there are no weights, a file is missing or damaged, or holds something else than tensors.
    """
    file = find_weights(path)
    if file.name.endswith(INDEX_SUFFIX):
        return _sharded(file)
    if file.suffix in _PICKLED:
        return _pickled(file)
    tensors, metadata = _whole(file)
    return tensors | _aliases(tensors, metadata.get(SHARED), file)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, without those of LeRobot's processors."""
    return [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith(PROCESSORS)]


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes `model.safetensors`, or shards and an index as Hugging Face has them if there is more than `shard_bytes`.

    A tensor that has several names is stored once, under the first of them in order.
    """
    own, shared = _once(tensors)
    # transformers asks a file for this key.
    metadata = {"format": "pt", **({SHARED: json.dumps(shared)} if shared else {})}
    shards = _shards(own, shard_bytes)
    if len(shards) == 1:
        _save(shards[0], folder / WEIGHTS, metadata)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _save(shard, folder / name, {"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": sum(t.nbytes for t in own.values()), **metadata}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def same_memory(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of the same tensor together, each group and all groups sorted."""
    groups: dict[object, list[str]] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        # Neither has memory of its own: their pointers are equal without being one tensor.
        lone = tensor.numel() == 0 or tensor.device.type == "meta"
        # A transposed or shorter view of the same memory is another tensor.
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        groups.setdefault(name if lone else place, []).append(name)
    return list(groups.values())


def _once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once and in memory of its own, and the other names."""
    groups = same_memory(tensors)
    own = {group[0]: tensors[group[0]].detach().cpu().contiguous() for group in groups}
    seen: set[int] = set()
    for name, tensor in own.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            # safetensors refuses tensors whose memory overlaps, and a view would carry the whole of what it was cut from.
            own[name] = tensor.clone()
        seen.add(storage.data_ptr())
    return own, {alias: group[0] for group in groups for alias in group[1:]}


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _save(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    _safetensors.save_file(tensors, file, metadata=metadata)


def _whole(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with _open(file, framework="pt") as opened:
            names = cast("list[str]", opened.keys())
            return {name: opened.get_tensor(name) for name in names}, opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(str(file), f"can't be read ({error})", "Use another checkpoint.") from error


def _sharded(index: Path) -> dict[str, Tensor]:
    shards = read_shards(index)
    found: dict[str, Tensor] = {}
    for file in sorted(set(shards.values())):
        found |= _pickled(file) if file.suffix in _PICKLED else _whole(file)[0]
    missing = sorted(shards.keys() - found.keys())
    if missing:
        raise CheckpointError(str(index), f"{len(missing)} tensors are in no shard, such as {missing[:3]}", "Copy it again.")
    metadata: Any = json.loads(index.read_text(encoding="utf-8")).get("metadata") or {}
    return found | _aliases(found, metadata.get(SHARED), index)


def _aliases(tensors: Mapping[str, Tensor], shared: str | None, file: Path) -> dict[str, Tensor]:
    aliases: dict[str, str] = json.loads(shared) if shared else {}
    lost = sorted(name for name in aliases.values() if name not in tensors)
    if lost:
        raise CheckpointError(str(file), f"the shared tensor '{lost[0]}' is missing", "Use another checkpoint.")
    return {alias: tensors[name] for alias, name in aliases.items()}


def _pickled(file: Path) -> dict[str, Tensor]:
    try:
        # A pickle may run any code when it is read; with weights_only it can't.
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    # Bytes that are no pickle are read as one all the same, until anything goes wrong, such as a KeyError.
    except Exception as error:
        raise CheckpointError(str(file), f"can't be read as tensors alone ({_reason(error)})", "Save a state dict.") from error
    if not isinstance(content, dict) or not _all_tensors(cast("dict[Any, Any]", content).values()):
        found = sorted(map(str, cast("dict[Any, Any]", content)))[:4] if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(str(file), f"expected tensors by name, found {found}", "Save a state dict.")
    return {str(name): tensor for name, tensor in cast("dict[Any, Tensor]", content).items()}


def _all_tensors(values: Iterable[Any]) -> bool:
    return all(isinstance(value, Tensor) for value in values)


def _reason(error: Exception) -> str:
    """Why a pickled file is refused; torch's own text is a page on how to trust it."""
    held = re.search(r"GLOBAL (\S+)", str(error))
    if held is not None:
        return f"it holds an object of {held[1]}"
    if isinstance(error, OSError | RuntimeError):
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return "it was cut, or torch.save did not write it"
