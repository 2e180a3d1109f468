"""Weights, and what optimizers remember of them, between one rank's part and the whole model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.engines.megatron._groups import Groups
from rlinf.engines.megatron.mapping import Entry, Shape


class Conversion:
    """The weights of one model, by the names of transformers and by those of this rank.

    Args:
        shape: of the model.
        shapes: of each weight, by the name of transformers.
        groups: the ranks.
    """

    def __init__(self, shape: Shape, shapes: Mapping[str, torch.Size], groups: Groups) -> None:
        self._entries = list(shape.entries(groups.stages))
        self._shapes, self._groups = dict(shapes), groups

    @property
    def own(self) -> list[Entry]:
        """What this rank has a part of."""
        return [entry for entry in self._entries if entry.stage == self._groups.stage]

    def part(self, entry: Entry, read: Callable[[str], Tensor]) -> Tensor:
        """This rank's part of one of its weights.

        Args:
            entry: which.
            read: gives a whole weight by the name of transformers.
        """
        sources = [read(source) for source in entry.sources]
        group = self._over(entry)
        return entry.division.split(sources, dist.get_world_size(group))[dist.get_rank(group)]

    def _over(self, entry: Entry) -> Any:
        """The ranks that have the parts of a weight."""
        return self._groups.experts if entry.experts else self._groups.tensor

    @torch.no_grad()
    def whole(self, held: Mapping[str, Tensor], device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Every whole weight by the name of transformers, on the device; every rank goes through all of them.

        Args:
            held: this rank's parts, by its own names, all of one type.
            device: where they are.
        """
        dtype = next(iter(held.values())).dtype
        for entry in self._entries:
            if entry.repeats:
                continue
            if entry.stage == self._groups.stage:
                part = held[entry.name]
                parts = self._groups.all_gather(part, self._over(entry)) if entry.division.divided else [part]
                # Only contiguous memory can be broadcast.
                found = [tensor.contiguous() for tensor in entry.division.merge(parts)]
            else:
                found = [torch.empty(self._shapes[source], dtype=dtype, device=device) for source in entry.sources]
            for source, tensor in zip(entry.sources, found, strict=True):
                yield source, self._groups.from_stage(tensor, entry.stage)
