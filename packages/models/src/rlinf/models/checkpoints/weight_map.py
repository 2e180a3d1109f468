"""From the names and shapes of a published checkpoint to those of a policy, and back.

    to_ours = WeightMap((
        Drop("model.language_model.lm_head.**"),
        Split("model.layers.*.qkv.**", into=("layers.*.query.**", "layers.*.key.**", "layers.*.value.**")),
        Rename("model.**", "**"),
    ))
    to_ours.to_policy(published), to_ours.from_policy(policy.weights().tensors)

In a pattern `*` stands for one part of a name and `**` for any rest. Each tensor goes through the rules in order; what no rule
matches keeps its name. An architecture whose own function does this (a mapping in, a mapping out) needs none of these rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from rlinf.core.errors import CheckpointError, ConfigError


class Rule(Protocol):
    """One step of a map, in both directions."""

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """From published names."""
        ...

    def backward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """To published names."""
        ...


@dataclass(frozen=True, slots=True)
class WeightMap:
    """Rules in order; each is undone in the opposite order."""

    rules: tuple[Rule, ...]

    def to_policy(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published tensors under our names.

        Raises:
            CheckpointError: two tensors get one name, or one can't be split as a rule says.
        """
        tensors = dict(published)
        for rule in self.rules:
            tensors = rule.forward(tensors)
        return tensors

    def from_policy(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors under the published names; what was dropped stays away.

        Raises:
            CheckpointError: two tensors get one name, or parts that belong together are not all there.
        """
        tensors = dict(ours)
        for rule in reversed(self.rules):
            tensors = rule.backward(tensors)
        return tensors


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name."""

    published: str
    ours: str

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return _joined((_swapped(name, self.published, self.ours) or name, tensor) for name, tensor in tensors.items())

    def backward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return Rename(self.ours, self.published).forward(tensors)


@dataclass(frozen=True, slots=True)
class Drop:
    """Published tensors that nothing here depends on."""

    published: str

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if not _pattern(self.published).fullmatch(name)}

    def backward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors


@dataclass(frozen=True, slots=True)
class Split:
    """One published tensor is several here, such as a fused query, key and value."""

    published: str
    into: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    """Of the parts along `axis`; equal ones if None."""
    axis: int = 0

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        pairs: list[tuple[str, Tensor]] = []
        for name, tensor in tensors.items():
            names = [_swapped(name, self.published, part) for part in self.into]
            if names[0] is None:
                pairs.append((name, tensor))
                continue
            whole, sizes = tensor.shape[self.axis], self.sizes
            if sum(sizes or ()) != whole if sizes else whole % len(names):
                raise CheckpointError(name, f"expected {len(names)} parts {sizes or ''} along axis {self.axis}, found {whole}")
            lengths = sizes or (whole // len(names),) * len(names)
            parts: tuple[Tensor, ...] = torch.functional.split(tensor, list(lengths), self.axis)
            pairs += [(str(part_name), part) for part_name, part in zip(names, parts, strict=True)]
        return _joined(pairs)

    def backward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        wholes: dict[str, dict[int, Tensor]] = {}
        pairs: list[tuple[str, Tensor]] = []
        for name, tensor in tensors.items():
            found = [(i, whole) for i, part in enumerate(self.into) if (whole := _swapped(name, part, self.published))]
            if found:
                wholes.setdefault(found[0][1], {})[found[0][0]] = tensor
            else:
                pairs.append((name, tensor))
        for whole, parts in wholes.items():
            if len(parts) < len(self.into):
                lacking = [part for i, part in enumerate(self.into) if i not in parts]
                raise CheckpointError(whole, f"expected {len(self.into)} parts, found none for {lacking}")
            pairs.append((whole, torch.cat([parts[i] for i in range(len(self.into))], self.axis)))
        return _joined(pairs)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    # `**` comes first, or it would be read as two single stars.
    parts = re.split(r"(\*\*|\*)", template)
    return re.compile("".join({"**": "(.*)", "*": r"([^.]+)"}.get(part) or re.escape(part) for part in parts))


def _swapped(name: str, pattern: str, target: str) -> str | None:
    """The name in the form of `target`; None if it doesn't match."""
    stars = re.findall(r"\*\*|\*", pattern)
    if stars != re.findall(r"\*\*|\*", target):
        raise ConfigError("weight map", f"expected the same stars in '{pattern}' and '{target}'", "Each stands for the same text.")
    found = _pattern(pattern).fullmatch(name)
    if found is None:
        return None
    texts = iter(found.groups())
    # A function, for in a plain replacement re.sub reads backslashes.
    return re.sub(r"\*\*|\*", lambda _: next(texts), target)


def _joined(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in found:
            raise CheckpointError(name, "two tensors of the checkpoint get this name", "Check the rules of the map.")
        found[name] = tensor
    return found
