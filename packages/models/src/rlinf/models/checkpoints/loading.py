"""Weights from disk into a policy that is built already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torch import Tensor

from rlinf.core.capabilities import LoadsNetwork
from rlinf.core.checkpoints.weight_files import find_weights
from rlinf.core.data import Weights
from rlinf.models.base import BasePolicy
from rlinf.models.checkpoints.fitting import Fitted, fit, unwrapped
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.tensors import read_tensors

CONFIG: Final = "config.json"


def load_weights(
    policy: BasePolicy,
    path: Path,
    *,
    weight_map: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None,
    allow_missing: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
) -> Fitted:
    """Copies weights into a policy, once all of them are known to fit; its version becomes 0.

    Prefixes of FSDP, DDP and torch.compile are removed. A language model reads a folder of Hugging Face, whose names are not its
    own, by itself.

    Args:
        policy: what gets them.
        path: a file or a folder, also a run; see `read_tensors`.
        weight_map: from the names of the file to the policy's, such as `WeightMap.to_policy`.
        allow_missing: patterns of names that may keep their values, such as `value_head.*`.
        allow_unused: patterns of names that are skipped.

    Returns:
        What was copied, what wasn't there and what nobody needed; of a folder of Hugging Face all tensors of the policy.

    Raises:
        CheckpointError: the file is damaged or made for another policy; nothing was changed.
    """
    file = find_weights(path)
    reader: object = policy
    if weight_map is None and isinstance(reader, LoadsNetwork) and _of_hugging_face(file.parent):
        reader.load_network(file.parent)
        policy.version = 0
        return Fitted(tensors=policy.weights().tensors, missing=(), unused=())
    found: Mapping[str, Tensor] = read_tensors(file)
    if weight_map is not None:
        # Maps are written for published names, which have no wrappers.
        found = weight_map(unwrapped(found))
    own = policy.weights().tensors
    fitted = fit(own, found, place=str(file), allow_missing=allow_missing, allow_unused=allow_unused)
    policy.load(Weights(tensors={**own, **fitted.tensors}, version=0))
    return fitted


def _of_hugging_face(folder: Path) -> bool:
    """Whether transformers wrote a folder: it names a class of its own."""
    return "architectures" in read_json(folder / CONFIG)
