"""A reward for a text: one number at its last token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import LossOutput
from rlinf.models.base import Versioned
from rlinf.models.language.tokens import INPUT_IDS, SEGMENT_IDS, last_columns, restarting_positions
from rlinf.models.reward_models.losses import bradley_terry


class SequenceReward(Versioned):
    """r(text) = w · h_last.

    Args:
        network: a sequence classifier of transformers with one label, without dropout.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def rewards(self, context: Mapping[str, Tensor]) -> Tensor:
        """`[B]` float32, of the one sequence of each row of `input_ids` `[B, T]`; differentiable."""
        device = next(self.network.parameters()).device
        ids = context[INPUT_IDS].to(device)
        segments = context.get(SEGMENT_IDS, torch.ones_like(ids)).to(device)
        network: Any = self.network
        positions = restarting_positions(segments)
        # No attention mask: to these positions padding is a sequence of its own.
        hidden = network.base_model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(ids), device=device), last_columns(segments)]
        return cast("Tensor", network.score(last)).squeeze(-1).float()

    @torch.no_grad()
    def score(self, context: Mapping[str, Tensor]) -> Tensor:
        """`rewards` without a graph."""
        return self.rewards(context)

    def preference_loss(self, chosen: Mapping[str, Tensor], rejected: Mapping[str, Tensor]) -> LossOutput[Tensor]:
        """How surprising the preferences of B pairs are; see `bradley_terry`."""
        return bradley_terry(self.rewards(chosen), self.rewards(rejected))

    def save(self, folder: Path) -> None:
        """Writes a folder that `AutoModelForSequenceClassification.from_pretrained` reads; adapters are merged into it."""
        from rlinf.models.language._folder import save_network

        save_network(self.network, folder)
