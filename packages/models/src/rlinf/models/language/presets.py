"""Presets: the sizes of the tiny ones, and what can be said against a model without transformers, whose import takes seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.errors import ConfigError, below

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

_COUNTS: Final = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


def check_preset(architecture: str, overrides: Mapping[str, Any], place: str, *, tiny: bool) -> None:
    """Refuses a model that can't be made, before a worker starts.

    A name that the files of transformers mention is taken for known; only of another one transformers itself is asked.

    Args:
        architecture: a `model_type` of transformers.
        overrides: values of its configuration.
        place: of the model's section.
        tiny: whether sizes that are not given are those of the tiny preset.

    Raises:
        ConfigError: an unknown architecture or value, a size that is none, or heads that don't share keys evenly.
    """
    for name in _COUNTS:
        value = overrides.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{place}.overrides.{name}", f"expected a whole number of at least 1, found {value!r:.80}")
    text = _source(architecture)
    if not text or not all(re.search(rf"\b{re.escape(name)}\b", text) for name in _names(overrides)):
        from rlinf.models.language._presets import fresh_config

        try:
            fresh_config(architecture, TINY if tiny else {}, overrides)
        except ConfigError as error:
            raise below(place, error) from error
    heads, shared = (overrides.get(name, TINY[name] if tiny else None) for name in ("num_attention_heads", "num_key_value_heads"))
    if "num_key_value_heads" in text and heads and shared and heads % shared:
        problem = f"expected a divisor of num_attention_heads = {heads}, found {shared}"
        raise ConfigError(f"{place}.overrides.num_key_value_heads", problem, "Set both, so that heads share keys evenly.")


def _names(overrides: Mapping[str, Any]) -> Iterator[str]:
    for name, value in overrides.items():
        yield name
        if isinstance(value, Mapping):
            yield from _names(cast("Mapping[str, Any]", value))


def _source(architecture: str) -> str:
    """The text of an architecture's configuration and of what all have in common; "" for one that is not found."""
    spec = find_spec("transformers")
    root = Path() if spec is None or spec.origin is None else Path(spec.origin).parent
    found = root / "models" / architecture / f"configuration_{architecture}.py"
    if not architecture.isidentifier() or not found.is_file():
        return ""
    return found.read_text(encoding="utf-8") + (root / "configuration_utils.py").read_text(encoding="utf-8")
