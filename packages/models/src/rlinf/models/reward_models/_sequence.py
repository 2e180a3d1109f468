"""Builds sequence classifiers with transformers."""

from __future__ import annotations

from typing import Any

import torch

from rlinf.core.errors import ConfigError
from rlinf.models.language._policy import network_of, with_vocabulary
from rlinf.models.language.presets import TINY
from rlinf.models.lora import apply_lora
from rlinf.models.reward_models.sequence import SequenceRewardConfig
from rlinf.models.reward_models.sequence_network import SequenceReward


def build_sequence_reward(config: SequenceRewardConfig, *, seed: int) -> SequenceReward:
    config = with_vocabulary(config)
    may_miss = "score." if config.fresh_head else ""
    network = network_of(config, "AutoModelForSequenceClassification", TINY, seed=seed, labels=1, may_miss=may_miss)
    model = SequenceReward(network)
    if config.precision == "fp32" and config.attention != "flash_attention_2":
        _probe(model, network)
    if config.lora is not None:
        apply_lora(network, config.lora, seed=seed)
    return model


@torch.no_grad()
def _probe(model: SequenceReward, network: Any) -> None:
    """An architecture that doesn't tell padding from text would give another score in another batch."""
    ids = torch.tensor([[5, 6], [7, 8]], device=network.score.weight.device)
    alone = network(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.squeeze(-1)
    # Padding on the left, where a causal model would see it.
    segments = torch.tensor([[0, 1, 1], [0, 1, 1]], device=ids.device)
    if float(
        (model.rewards({"input_ids": torch.cat([ids[:, :1], ids], 1), "segment_ids": segments}) - alone).abs().max()
    ) > 1e-3 * max(1.0, float(alone.abs().max())):
        raise ConfigError("architecture", f"'{network.config.model_type}' sees padding", "It can't be used for rewards yet.")
