"""Whether tensors fit a policy: checked whole before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import torch
from torch import Tensor

from rlinf.core.errors import CheckpointError, nearest
from rlinf.models.checkpoints.tensors import same_memory

_WRAPPERS: Final = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
"""What FSDP, activation checkpointing and torch.compile put into names."""
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What fits, and what was let pass."""

    tensors: Mapping[str, Tensor]
    """By the policy's names."""
    missing: tuple[str, ...]
    """Those of the policy that keep their values."""
    unused: tuple[str, ...]
    """Those that the policy has no place for."""


def fit(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    *,
    place: str,
    allow_missing: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
) -> Fitted:
    """Compares tensors with the state of a policy.

    A tensor that has several names in the policy may be there under one of them; under several it must be equal.

    Args:
        expected: the policy's state; values don't matter.
        found: what was read.
        place: the file, for messages.
        allow_missing: patterns of names that may keep their values, such as `value_head.*`.
        allow_unused: patterns of names that are skipped.

    Raises:
        CheckpointError: something is missing, left over, of another shape or kind; it names the first of each and the nearest name.
    """
    found = unwrapped(found, expected)
    found, faults = _shared(expected, found)
    missing, unused = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    fits = {name: found[name] for name in sorted(expected.keys() & found.keys())}
    lacking = [name for name in missing if not _matches(name, allow_missing)]
    surplus = [name for name in unused if not _matches(name, allow_unused)]
    wrong = [name for name, tensor in fits.items() if not _alike(expected[name], tensor)]
    faults += _fault("missing", lacking, lambda name: f"{name} {list(expected[name].shape)}{_nearest(name, unused)}")
    faults += _fault("unused", surplus, lambda name: f"{name} {list(found[name].shape)}{_nearest(name, missing)}")
    faults += _fault("different", wrong, lambda name: f"{name}: expected {_kind(expected[name])}, found {_kind(fits[name])}")
    if faults:
        raise CheckpointError(place, "made for another policy: " + "; ".join(faults), "Use that policy's configuration, or a map.")
    return Fitted(tensors=fits, missing=tuple(missing), unused=tuple(unused))


def unwrapped(tensors: Mapping[str, Tensor], expected: Collection[str] = ()) -> dict[str, Tensor]:
    """Tensors under the names that they have without FSDP, DDP and torch.compile around the policy.

    First parts that all names share are removed if more of the names are expected then; `module.` also if nothing is.

    Raises:
        CheckpointError: two names become one.
    """
    forms = [{name: _bare(name) for name in tensors}]
    while len(first := {name.partition(".")[0] for name in forms[-1].values()}) == 1:
        if not all("." in name for name in forms[-1].values()) or (not expected and first != {"module"}):
            break
        forms.append({name: bare.partition(".")[2] for name, bare in forms[-1].items()})
    known = set(expected)
    # Without expected names every form knows none of them, and the shortest is meant.
    # Of equals `max` takes the first, from which the fewest parts were removed.
    names = max(forms, key=lambda form: len(known & set(form.values()))) if known else forms[-1]
    if len(set(names.values())) < len(names):
        raise CheckpointError("weights", "two names become one without their wrappers", "Save the policy without wrappers.")
    return {bare: tensors[name] for name, bare in names.items()}


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _shared(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    complete, faults = dict(found), list[str]()
    for group in same_memory(expected):
        there = [name for name in group if name in found]
        if len(group) == 1 or not there:
            continue
        if any(found[name].shape != found[there[0]].shape or not torch.equal(found[name], found[there[0]]) for name in there):
            faults.append(f"{' and '.join(there)} differ, which are one tensor here")
        complete |= {name: found[there[0]] for name in group if name not in found}
    return complete, faults


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _alike(expected: Tensor, found: Tensor) -> bool:
    """The same shape, and whole numbers for whole numbers; a float may be of another width."""
    kinds = [(t.is_floating_point(), t.is_complex(), t.dtype == torch.bool) for t in (expected, found)]
    return expected.shape == found.shape and kinds[0] == kinds[1]


def _kind(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _nearest(name: str, choices: Sequence[str]) -> str:
    guess = nearest(name, choices)
    return f" (nearest: {guess})" if guess else ""


def _fault(kind: str, names: Sequence[str], line: Callable[[str], str]) -> list[str]:
    if not names:
        return []
    more = ", …" if len(names) > _SHOWN else ""
    return [f"{len(names)} {kind}: {', '.join(map(line, names[:_SHOWN]))}{more}"]
