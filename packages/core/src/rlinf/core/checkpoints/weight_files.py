"""Where weights lie on disk: a file, a folder of Hugging Face, a checkpoint of a run, or the run itself.

<run>/checkpoints/global_step_N/actor/model.safetensors         a run of ours
<folder>/model.safetensors, or model.safetensors.index.json     Hugging Face, LeRobot, a saved policy
<folder>/full_weights.pt                                        RLinf
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.errors import CheckpointError

INDEX_SUFFIX: Final = ".index.json"
"""How the name of an index of shards ends."""
WEIGHT_SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", INDEX_SUFFIX)
"""How the name of a file of weights, or of an index of shards, ends."""
CANDIDATES: Final = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "full_weights.pt",
    "model_state_dict/full_weights.pt",
)
"""Where weights may be below a folder, and below its `actor`; the first one found counts."""

_SHOWN: Final = 8
"""How many names of a folder a refusal lists."""

_STEP: Final = re.compile(r"global_step_(\d+)")


def find_weights(path: Path | str, *, place: str = "") -> Path:
    """The file that has the weights which a path means, or the index of its shards.

    Args:
        path: that file; a folder with one of `CANDIDATES`, or with a folder `actor` that has; or a run, whose newest checkpoint
            is meant.
        place: the configuration key that has the path, for messages; the path itself if empty.

    Raises:
        CheckpointError: there are no weights.
    """
    given = Path(path).expanduser()
    if given.is_file() and given.name.endswith(WEIGHT_SUFFIXES):
        return given
    checkpoint = newest_checkpoint(given)
    for folder in (given, *(() if checkpoint is None or checkpoint == given else (checkpoint,))):
        for file in (folder / sub / name for sub in ("", "actor") for name in CANDIDATES):
            if file.is_file():
                return file
    remedy = f"Name a file ({', '.join(WEIGHT_SUFFIXES)}), a run, or a folder with one of {', '.join(CANDIDATES)}."
    problem = f"no weights at '{path}'" if place else "no weights there"
    raise CheckpointError(place or str(path), f"{problem}{_content(given)}", remedy)


def _content(folder: Path) -> str:
    """What a folder has in place of weights, so that a name that was mistyped is seen."""
    names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    return f", which has {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}" if names else ""


def has_weights(path: Path) -> bool:
    """Whether `find_weights` finds any."""
    try:
        find_weights(path)
    except CheckpointError:
        return False
    return True


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of a run with the highest step.

    Args:
        folder: a `global_step_N` folder, or a link to one such as `best`, which is returned as it is; or what holds such folders,
            itself or in `checkpoints`.

    Returns:
        None if there is none.
    """
    if _STEP.fullmatch(folder.name) or _STEP.fullmatch(folder.resolve().name):
        return folder if folder.is_dir() else None
    found = checkpoints_in(folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder)
    # By number: as texts, 100 comes before 20.
    return found[max(found)] if found else None


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The checkpoints that a folder holds, by the iterations that each has behind it."""
    return {int(match[1]): made for made in folder.glob("global_step_*") if (match := _STEP.fullmatch(made.name))}


def read_shards(index: Path, *, place: str = "") -> dict[str, Path]:
    """The file that has each tensor, of an index of shards such as Hugging Face writes.

    Args:
        index: a file whose name ends in `.index.json`.
        place: as for `find_weights`.

    Raises:
        CheckpointError: the index can't be read, or a shard is not beside it.
    """
    where = place or str(index)
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
        weight_map = cast("dict[str, str]", content["weight_map"])
        names = sorted({os.fspath(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(where, f"'{index}' can't be read ({error!r})", "Use another checkpoint.") from error
    for name in names:
        # A name with a folder in it would read files that are no part of the checkpoint.
        if Path(name).name != name or not (index.parent / name).is_file():
            problem = f"expected the shard '{name}' beside '{index}', found no such file"
            raise CheckpointError(where, problem, "Copy it again.")
    return {tensor: index.parent / name for tensor, name in weight_map.items()}


def expect_whole(file: Path, *, place: str = "") -> None:
    """Refuses safetensors that were cut; reads the header alone, and nothing of files of another kind.

    Args:
        file: of weights, or the index of shards.
        place: as for `find_weights`.

    Raises:
        CheckpointError: a file ends too early, or it begins with something else.
    """
    files = sorted(set(read_shards(file, place=place).values())) if file.name.endswith(INDEX_SUFFIX) else [file]
    for each in files:
        if each.suffix != ".safetensors":
            continue
        expected, found = _size(each), each.stat().st_size
        if expected is None:
            raise CheckpointError(place or str(each), f"'{each}' is no safetensors file", "Copy it again, or use another one.")
        if found < expected:
            problem = f"expected {expected:,} bytes in '{each}', found {found:,}"
            raise CheckpointError(place or str(each), problem, "It was cut: copy it again, or use another one.")


def _size(file: Path) -> int | None:
    """How long a safetensors file has to be; None if it is none."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        # In a file of another kind these bytes are any number, and as many would be read.
        if length > file.stat().st_size:
            return None
        try:
            header: dict[str, Any] = json.loads(opened.read(length))
            ends = [int(about["data_offsets"][1]) for name, about in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return None
    # Offsets of tensors count from the end of the header.
    return 8 + length + max(ends, default=0)
