"""The sizes of GR00T-N1.5, and how a public checkpoint tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlinf.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """A SigLIP tower."""

    width: int
    layers: int
    heads: int
    feed_forward: int
    image_size: int
    """Pixels, each way."""
    patch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageShape:
    """The first layers of a Qwen3."""

    width: int
    layers: int
    """How many are kept: `select_layer`; their output, normalised, is what the action head sees."""
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    rope_theta: float = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The action head."""

    width: int
    """Of the diffusion transformer's tokens; `heads` times `head_width`."""
    hidden: int
    """Of what the action decoder reads."""
    layers: int
    """Blocks of the diffusion transformer: the even ones look at images and text, the odd ones at each other."""
    heads: int
    head_width: int
    state_size: int
    """D of the padded state."""
    action_size: int
    """D of the padded action."""
    horizon: int
    """H, steps that are denoised at once."""
    embodiments: int = 32
    """Robots with weights of their own."""
    future_tokens: int = 32
    """Learned tokens between the state and the actions."""
    positions: int = 1024
    """Rows of the position embedding."""
    context_layers: int = 4
    """Self-attention over images and text, before the diffusion transformer."""
    context_heads: int = 32
    context_head_width: int = 64
    buckets: int = 1000
    """Times that the network can tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GR00TShape:
    """All of it."""

    vision: VisionShape
    language: LanguageShape
    head: HeadShape
    pixel_shuffle: bool
    """Whether four neighbouring patches become one image token."""
    connector_layers: int
    """Of the map from patches to tokens: 1, or 2 with a normalisation before and a GELU between."""
    crop: float
    """The share of each side of an image that is kept, around its centre."""
    placeholder: str
    """The text of one image token."""
    image: str
    """The text of one view, with its `{number}` and its `{placeholders}`."""
    prompt: str
    """The text of a decision, with its `{images}` and its `{task}`."""
    value_hidden: tuple[int, ...]
    """Units of the critic's hidden layers."""

    @property
    def tokens_per_image(self) -> int:
        """Image tokens of one view."""
        side = self.vision.image_size // self.vision.patch_size
        return (side // 2) ** 2 if self.pixel_shuffle else side**2


TINY = GR00TShape(
    vision=VisionShape(width=32, layers=2, heads=2, feed_forward=64, image_size=32, patch_size=8),
    # As many entries as `tiny_tokenizer` makes.
    language=LanguageShape(width=64, layers=2, heads=4, key_value_heads=2, head_width=16, feed_forward=128, vocabulary=384),
    head=HeadShape(
        width=64,
        hidden=64,
        layers=2,
        heads=4,
        head_width=16,
        state_size=16,
        action_size=8,
        horizon=4,
        embodiments=3,
        future_tokens=2,
        positions=16,
        context_layers=1,
        context_heads=4,
        context_head_width=16,
    ),
    pixel_shuffle=True,
    connector_layers=2,
    crop=1.0,
    placeholder="<image>",
    image="{placeholders}",
    prompt="{images}{task}",
    value_hidden=(64, 64),
)
"""Random weights, seconds, offline."""

BASE = GR00TShape(
    vision=VisionShape(width=1152, layers=27, heads=16, feed_forward=4304, image_size=224, patch_size=14),
    language=LanguageShape(
        width=2048, layers=12, heads=16, key_value_heads=8, head_width=128, feed_forward=6144, vocabulary=151_680
    ),
    head=HeadShape(width=1536, hidden=1024, layers=16, heads=32, head_width=48, state_size=64, action_size=32, horizon=16),
    pixel_shuffle=False,
    connector_layers=1,
    crop=0.95,
    placeholder="<IMG_CONTEXT>",
    image="<image {number}><img>{placeholders}</img>",
    prompt=(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        # Brackets and quotes as Python writes a list of one task: so the public code puts it.
        "<|im_start|>user\n{images}[{task!r}]<|im_end|>\n<|im_start|>assistant\n"
    ),
    value_hidden=(1024, 512, 256),
)
"""GR00T-N1.5-3B: SigLIP-2 So400m, twelve layers of Qwen3-1.7B, and a diffusion transformer of sixteen."""

_HEAD_KEYS = {
    "input_embedding_dim": "width",
    "hidden_size": "hidden",
    "max_state_dim": "state_size",
    "action_dim": "action_size",
    "action_horizon": "horizon",
    "max_num_embodiments": "embodiments",
    "num_target_vision_tokens": "future_tokens",
    "max_seq_len": "positions",
    "num_timestep_buckets": "buckets",
}
_DIT_KEYS = {"num_layers": "layers", "num_attention_heads": "heads", "attention_head_dim": "head_width"}
_CONTEXT_KEYS = {name: f"context_{ours}" for name, ours in _DIT_KEYS.items()}
_VISION_KEYS = {
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
# Without the number of layers: Eagle's file has those of the whole model, of which GR00T keeps the first few.
_LANGUAGE_KEYS = {
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key_value_heads",
    "head_dim": "head_width",
    "intermediate_size": "feed_forward",
    "vocab_size": "vocabulary",
    "rope_theta": "rope_theta",
}


def shape_of(config: Mapping[str, Any], eagle: Mapping[str, Any] | None = None) -> GR00TShape:
    """The sizes that a public checkpoint declares.

    Args:
        config: of `config.json`: `action_head_cfg` and `backbone_cfg`.
        eagle: of `eagle2_hg_model/config.json`, which the public code keeps beside the checkpoint: `vision_config`, `text_config`;
            the published sizes if None.

    Raises:
        ConfigError: it isn't the checkpoint of a GR00T-N1.5, or one of a kind that isn't built here.
    """
    if "action_head_cfg" not in config:
        raise ConfigError("model_path", f"expected a config.json with action_head_cfg, found {sorted(config)}", "Is it GR00T-N1.5?")
    head, dit = config["action_head_cfg"], config["action_head_cfg"]["diffusion_model_cfg"]
    if not dit.get("interleave_self_attention") or dit.get("norm_type", "ada_norm") != "ada_norm" or not head.get("use_vlln", True):
        raise ConfigError("model_path", "expected interleaved attention, ada_norm and use_vlln, as in N1.5", "Is it GR00T-N1.5?")
    sizes = _renamed(head, _HEAD_KEYS) | _renamed(dit, _DIT_KEYS) | _renamed(head["vl_self_attention_cfg"], _CONTEXT_KEYS)
    shape = replace(BASE, head=replace(BASE.head, **sizes))
    if eagle is not None:
        shape = replace(
            shape,
            vision=replace(shape.vision, **_renamed(eagle["vision_config"], _VISION_KEYS)),
            language=replace(shape.language, **_renamed(eagle["text_config"], _LANGUAGE_KEYS)),
            pixel_shuffle=bool(eagle.get("use_pixel_shuffle", True)),
            connector_layers=int(eagle.get("mlp_connector_layers", 2)),
        )
    layers = config.get("backbone_cfg", {}).get("select_layer", shape.language.layers)
    return replace(shape, language=replace(shape.language, layers=int(layers)))


def _renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {ours: config[name] for name, ours in names.items() if config.get(name) is not None}
