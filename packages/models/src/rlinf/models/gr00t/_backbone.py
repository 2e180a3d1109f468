"""The vision-language model of GR00T-N1.5, of parts that transformers has: SigLIP, a connector, and the first layers of Qwen3."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model
from transformers.models.siglip.configuration_siglip import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from rlinf.models.gr00t.shapes import GR00TShape, LanguageShape, VisionShape


class EagleBackbone(nn.Module):
    """Eagle 2.5, as far as GR00T uses it: what the kept layers of the language model make of images and a prompt.

    Chen et al., "Eagle 2.5" (2025), arXiv:2504.15271.
    """

    def __init__(self, shape: GR00TShape) -> None:
        super().__init__()
        self.pixel_shuffle = shape.pixel_shuffle
        self.vision = SiglipVisionModel(_vision_config(shape.vision))
        self.connector = _connector(shape.vision.width * (4 if shape.pixel_shuffle else 1), shape)
        self.language = Qwen3Model(_language_config(shape.language))

    def forward(self, ids: Tensor, placeholder: int, pixels: Tensor | None) -> Tensor:
        """`[B, L, W]`, the last kept layer, normalised.

        Padding follows the prompt, so that a causal model needs no mask for it.

        Args:
            ids: `[B, L]`, tokens of the prompt; negative where it is over.
            placeholder: the token that stands for a piece of an image.
            pixels: `[B, V, 3, S, S]`, normalised views; None if there are none.
        """
        # PADDING is no row of the embedding; any row does, for a causal prompt never looks behind itself.
        embedded = cast("Tensor", self.language.get_input_embeddings()(ids.clamp(min=0)))
        if pixels is not None:
            images = self.image_tokens(pixels.flatten(0, 1)).to(embedded.dtype)
            # masked_scatter fills in row-major order, which is the order of the views.
            embedded = embedded.masked_scatter((ids == placeholder)[..., None], images)
        found = self.language(inputs_embeds=embedded, use_cache=False)
        return found.last_hidden_state

    def image_tokens(self, pixels: Tensor) -> Tensor:
        """`[n, tokens, W]` of `[n, 3, S, S]`."""
        patches = cast("Tensor", self.vision(pixel_values=pixels.to(self.vision.dtype)).last_hidden_state)
        return self.connector(pixel_shuffle(patches) if self.pixel_shuffle else patches)


def pixel_shuffle(patches: Tensor) -> Tensor:
    """`[n, s²/4, 4 W]` of `[n, s², W]`: each square of four patches becomes one, row by row."""
    side = round(patches.shape[1] ** 0.5)
    squares = patches.reshape(len(patches), side // 2, 2, side // 2, 2, -1)
    return squares.transpose(2, 3).flatten(3).flatten(1, 2)


def _connector(width: int, shape: GR00TShape) -> nn.Sequential:
    out = shape.language.width
    if shape.connector_layers == 1:
        return nn.Sequential(nn.Linear(width, out))
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out), nn.GELU(), nn.Linear(out, out))


def _vision_config(shape: VisionShape) -> SiglipVisionConfig:
    return SiglipVisionConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        image_size=shape.image_size,
        patch_size=shape.patch_size,
        # GR00T reads the patches; nobody would call the tower's pooling.
        vision_use_head=False,
    )


def _language_config(shape: LanguageShape) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_width,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
    )


def initialise(backbone: EagleBackbone) -> None:
    """Weights of variance 1 / fan-in instead of the towers' own 0.02², which is next to nothing at small widths."""
    for module in backbone.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, std=fan_in**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
