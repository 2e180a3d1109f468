"""What an engine that reserves its memory takes of a device: what it was told to take, as none of them says what it took."""

from __future__ import annotations

import torch

from rlinf.core.capabilities import LanguageModelPolicy


def share_of_gpu(share: float, gpus: int) -> dict[str, int]:
    """Of an engine that takes a share of each of its GPUs for weights and cache together; {} where this process sees none."""
    if not torch.cuda.is_available():
        return {}
    # Makes a context on the GPU, a few hundred MB; this is asked in traced runs only.
    return {"cache": int(share * gpus * torch.cuda.mem_get_info(0)[1])}


def beside_weights(policy: LanguageModelPolicy, cache: int) -> dict[str, int]:
    """Of an engine that has a cache of so many bytes beside its weights."""
    return {"parameters": sum(each.nbytes for each in policy.network.parameters()), "cache": cache}


def bytes_of_token(policy: LanguageModelPolicy) -> int:
    """Of the keys and values of one token, in the type of the weights."""
    own = policy.network.config.get_text_config()
    heads = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
    width = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return 2 * own.num_hidden_layers * heads * width * policy.network.dtype.itemsize
