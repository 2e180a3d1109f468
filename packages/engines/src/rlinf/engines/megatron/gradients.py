"""Gradients over ranks that share a model: what is added where, and what counts once in a norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlinf.engines.megatron.mapping import Entry

HEAD = "output_layer.weight"
EMBEDDING = "embedding.word_embeddings.weight"


class Gradients:
    """Knows of each weight by whom it is shared.

    Args:
        entries: the weights that this rank has a part of.
        groups: the ranks.
        sequence_parallel: whether what is whole sees a part of the columns only.
        tied: whether embedding and head are one weight, which the first and the last stage then both hold.
    """

    def __init__(self, entries: Iterable[Entry], groups: Any, *, sequence_parallel: bool, tied: bool) -> None:
        self._groups = groups
        held = list(entries)
        self._experts = {entry.name for entry in held if entry.experts}
        self._divided = {entry.name for entry in held if entry.division.divided}
        whole = {entry.name for entry in held} - self._divided
        # Norms of queries and keys see the heads of their own tensor rank only.
        self._partial = {name for name in whole if sequence_parallel or "q_layernorm" in name or "k_layernorm" in name}
        self._twice = {HEAD, EMBEDDING} if tied and groups.stages > 1 else set[str]()

    @torch.no_grad()
    def collect(self, gradients: Mapping[str, Tensor]) -> None:
        """Adds them, in place: of what sees a part, over tensor ranks; of tied weights, over both ends; then over copies.

        Those of experts have come from the tokens of all ranks that share them.
        """
        self._add([gradients[name] for name in gradients if name in self._partial], self._groups.tensor)
        self._add([gradients[name] for name in gradients if name in self._twice], self._groups.ends)
        self._add([gradients[name] for name in gradients if name not in self._experts], self._groups.copies)
        self._add([gradients[name] for name in gradients if name in self._experts], self._groups.expert_copies)

    def _add(self, gradients: list[Tensor], group: Any) -> None:
        if not gradients or dist.get_world_size(group) == 1:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)  # pyright: ignore[reportUnknownMemberType]
        for gradient, total in zip(gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def square_norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Σ g² over the whole model, the same on each rank."""
        shared = [gradient for name, gradient in gradients.items() if name not in self._experts and self._counts(name)]
        experts = [gradient for name, gradient in gradients.items() if name in self._experts]
        square = self._groups.all_reduce(_square(shared), self._groups.model)
        if experts:
            square += self._groups.all_reduce(_square(experts), self._groups.expert_model)
        return float(square)

    def _counts(self, name: str) -> bool:
        """Whether this rank is the one that counts a weight."""
        again = name in self._twice and name == HEAD
        return not again and (name in self._divided or self._groups.column == 0)


def _square(gradients: list[Tensor]) -> Tensor:
    norm = torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
    return norm.detach().to("cpu", torch.float64) ** 2
