"""Policies written as other projects read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from rlinf.core.checkpoints.weight_files import WEIGHT_SUFFIXES, find_weights
from rlinf.core.errors import CheckpointError
from rlinf.models.base import BasePolicy
from rlinf.models.checkpoints.atomic import fresh_file, fresh_folder
from rlinf.models.checkpoints.tensors import PROCESSORS, SHARD_BYTES, read_tensors, write_tensors


def export_like(
    policy: BasePolicy,
    source: Path,
    folder: Path,
    *,
    to_public: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Writes a policy as the folder that it came from, with the weights that it has now.

    Names, shapes, types, tensors that the policy has no use for, and every other file (configuration, tokenizer, processor,
    statistics) are those of `source`, so that whatever reads `source` reads the result.

    Args:
        policy: what is written.
        source: a folder of Hugging Face or LeRobot.
        folder: where.
        to_public: from the policy's names to those of `source`, such as `WeightMap.from_policy`.
        shard_bytes: above this the weights are written in shards.
        overwrite: whether an older checkpoint there is replaced.

    Returns:
        The tensors that `source` has no place for, such as a value head's; they are left out.

    Raises:
        CheckpointError: `source` has none of the tensors, or of another shape, or the folder is there already.
    """
    return write_like(to_public(policy.weights().tensors), source, folder, shard_bytes=shard_bytes, overwrite=overwrite)


def write_like(
    new: Mapping[str, Tensor], source: Path, folder: Path, *, shard_bytes: int = SHARD_BYTES, overwrite: bool = False
) -> tuple[str, ...]:
    """The same with tensors by the names of `source`; see `export_like`."""
    old = read_tensors(source)
    written = sorted(old.keys() & new.keys())
    if not written:
        raise CheckpointError(
            str(source), f"expected tensors such as {sorted(new)[:3]}, found {sorted(old)[:3]}", "Check to_public."
        )
    for name in written:
        if old[name].shape != new[name].shape:
            raise CheckpointError(f"{source}: {name}", f"expected {list(new[name].shape)}, found {list(old[name].shape)}")
    # Copies: two names of one tensor are two tensors there, for readers that know nothing of our metadata.
    tensors = {**old, **{name: new[name].detach().to("cpu", old[name].dtype, copy=True) for name in written}}
    with fresh_folder(folder, overwrite=overwrite) as made:
        copy_others(source, made)
        write_tensors(tensors, made, shard_bytes=shard_bytes)
    return tuple(sorted(new.keys() - old.keys()))


def inverse_names(
    to_ours: Callable[[Mapping[str, str]], Mapping[str, str]], published: Iterable[str]
) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """The way back of a map that only renames and drops, learned by sending the published names themselves through it."""
    names = to_ours({name: name for name in published})
    # A name that was not published, such as a value head's, stays as it is and is left out by `export_like`.
    return lambda tensors: {names.get(name, name): tensor for name, tensor in tensors.items()}


def export_full_weights(policy: BasePolicy, file: Path) -> None:
    """Writes the state dict as RLinf's `full_weights.pt`: tensors by name and nothing else, whole or not at all."""
    write_full_weights(policy.weights().tensors, file)


def write_full_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes tensors by name as `export_full_weights` does."""
    with fresh_file(file) as made:
        cast("Any", torch).save({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, made)


def copy_others(source: Path, folder: Path, *, skip: Collection[str] = ()) -> None:
    """Copies all but the weights themselves and some names; the small safetensors of a LeRobot processor are no weights."""
    weights = _folder_of_weights(source)
    for file in sorted(source.rglob("*")):
        if not file.is_file() or (file.parent == weights and _holds_weights(file)) or str(file.relative_to(source)) in skip:
            continue
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _folder_of_weights(source: Path) -> Path:
    try:
        return find_weights(source).parent
    except CheckpointError:  # a folder without any, such as a configuration with its tokenizer
        return source


def _holds_weights(file: Path) -> bool:
    return file.name.endswith(WEIGHT_SUFFIXES) and not file.name.startswith(PROCESSORS)
