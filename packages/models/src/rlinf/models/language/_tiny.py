"""Sizes of the tiny presets; an architecture takes those that it knows."""

from __future__ import annotations

from typing import Any, Final

VOCABULARY: Final = 384
IMAGE_TOKEN: Final = 3

TINY: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Architectures name the number of experts differently; each takes the key that it knows.
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
# The sections for frames, rows and columns add up to half of head_dim.
_TEXT: Final[dict[str, Any]] = {**TINY, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
TINY_VISION: Final[dict[str, Any]] = {
    "text_config": _TEXT,
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
        "initializer_range": 0.1,
    },
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 380,
    "vision_start_token_id": 381,
    "vision_end_token_id": 382,
}
"""For Qwen-VL."""
