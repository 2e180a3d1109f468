"""A network of transformers as its folder has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import core_model_loading

from rlinf.models.lora import adapter_state, merged_state


def folder_weights(network: nn.Module) -> dict[str, Tensor]:
    """Its weights by the names that `save_network` writes, with adapters merged: transformers holds some of them in another form.

    An expert of a mixture, for one, has weights of its own there, and one of all experts in memory.
    """
    found: dict[str, Tensor] = cast("Any", core_model_loading).revert_weight_conversion(network, merged_state(network))
    return {name: found[name].contiguous() for name in sorted(found)}


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
