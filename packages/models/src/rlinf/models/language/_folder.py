"""Writes a network of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from rlinf.models.lora import adapter_state, merged_state


def save_network(network: nn.Module, folder: Path, *, shard_size: str) -> None:
    """The network as it was built, with adapters merged; a skeleton without memory carries the tensors."""
    own = cast("Any", network)
    if not adapter_state(network):
        own.save_pretrained(str(folder), max_shard_size=shard_size)
        return
    with torch.device("meta"):
        skeleton = type(own)(own.config).to(own.dtype)
    skeleton.load_state_dict(merged_state(network), assign=True)
    skeleton.tie_weights()
    skeleton.save_pretrained(str(folder), max_shard_size=shard_size)
