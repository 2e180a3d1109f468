"""OpenVLA's vision-language model under the names of the published checkpoints."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from rlinf.core.errors import ShapeError
from rlinf.models.openvla.architecture import PrismaticConfig, TextConfig
from rlinf.models.openvla.vision import VisionTransformer
from rlinf.models.seeding import seeded_weights

_CHANNELS = 3


class VisionBackbone(nn.Module):
    """Two vision transformers look at each picture; their features stand side by side.

    Args:
        config: the sizes of both.
    """

    def __init__(self, config: PrismaticConfig) -> None:
        super().__init__()
        first, second = config.vision
        self.featurizer = VisionTransformer(first)
        self.fused_featurizer = VisionTransformer(second)

    def forward(self, pixels: Tensor) -> Tensor:
        """`[B, 6, h, w]`, each transformer's own normalised picture, to `[B, P, D₁ + D₂]`."""
        return torch.cat([self.featurizer(pixels[:, :_CHANNELS]), self.fused_featurizer(pixels[:, _CHANNELS:])], dim=-1)


class Projector(nn.Module):
    """From features to embeddings: linear to 4 D, GELU, linear, GELU, linear."""

    def __init__(self, vision_width: int, text_width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(vision_width, 4 * vision_width)
        self.fc2 = nn.Linear(4 * vision_width, text_width)
        self.fc3 = nn.Linear(text_width, text_width)

    def forward(self, features: Tensor) -> Tensor:
        """`[B, P, D]` to `[B, P, L]`."""
        return self.fc3(functional.gelu(self.fc2(functional.gelu(self.fc1(features)))))


class PrismaticVLM(nn.Module):
    """Pictures and text go into one Llama.

    Karamcheti et al., "Prismatic VLMs" (2024), arXiv:2402.07865.

    Args:
        config: the sizes.
    """

    def __init__(self, config: PrismaticConfig) -> None:
        super().__init__()
        self.config = config
        self.vision_backbone = VisionBackbone(config)
        width = sum(vision.width for vision in config.vision)
        self.projector = Projector(width, config.text.hidden_size)
        self.language_model: Any = LlamaForCausalLM(llama_config(config.text))

    def embed_images(self, pixel_values: Tensor) -> Tensor:
        """The embeddings of V pictures a sample.

        Args:
            pixel_values: `[B, V · 6, h, w]`: for each picture the channels of `featurizer`, then those of `fused_featurizer`.

        Returns:
            `[B, V · P, L]`, picture after picture.

        Raises:
            ShapeError: channels or size don't fit.
        """
        size, shape = self.config.image_size, tuple(pixel_values.shape)
        if len(shape) != 4 or shape[1] % (2 * _CHANNELS) or shape[2:] != (size, size):
            raise ShapeError("embed_images(pixel_values)", f"expected [B, V · 6, {size}, {size}], found {list(shape)}")
        pictures = pixel_values.reshape(-1, 2 * _CHANNELS, size, size)
        embedded = cast("Tensor", self.projector(self.vision_backbone(pictures)))
        return embedded.reshape(shape[0], -1, embedded.shape[-1])

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """`[B, N]` token ids to `[B, N, L]`."""
        return self.language_model.get_input_embeddings()(tokens)

    def embed_prompt(self, pixel_values: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the Llama reads: [BOS | pictures | the rest of the prompt].

        Args:
            pixel_values: as of `embed_images`.
            tokens: `[B, N]`, BOS first; see `encode_prompts`.
            mask: `[B, N]` bool, False for padding.

        Returns:
            Embeddings `[B, M, L]` and the mask of what is not padding, `[B, M]` bool; M = V · P + N.
        """
        text = self.embed_tokens(tokens)
        pictures = self.embed_images(pixel_values).to(text.dtype)
        seen = mask.new_ones(pictures.shape[:2])
        return torch.cat([text[:, :1], pictures, text[:, 1:]], dim=1), torch.cat([mask[:, :1], seen, mask[:, 1:]], dim=1)

    def fresh_angles(self) -> None:
        """Computes the frequencies of the rotary embedding anew, in float32: they are not stored."""
        inner = self.language_model.model
        device = inner.embed_tokens.weight.device
        inner.rotary_emb = type(inner.rotary_emb)(inner.config).to(device)


def llama_config(text: TextConfig) -> Any:
    """The configuration that transformers asks for; dropout is off."""
    make: Any = LlamaConfig
    return make(
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads or text.num_attention_heads,
        vocab_size=text.vocab_size,
        max_position_embeddings=text.max_position_embeddings,
        rms_norm_eps=text.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_theta},
        initializer_range=text.initializer_range,
        # Llama-2 has an output embedding of its own.
        tie_word_embeddings=False,
        attention_dropout=0.0,
        attn_implementation="sdpa",
    )


def build_prismatic(config: PrismaticConfig, seed: int) -> PrismaticVLM:
    """The network with random weights; torch's global generator is neither read nor moved.

    Args:
        config: the sizes.
        seed: decides the weights.
    """
    with seeded_weights(seed):
        model = PrismaticVLM(config)
        _initialize(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def _initialize(model: PrismaticVLM, generator: torch.Generator) -> None:
    """Draws the weights outside the Llama, which has drawn its own."""
    model.vision_backbone.featurizer.initialize(generator)
    model.vision_backbone.fused_featurizer.initialize(generator)
    spread = model.config.text.initializer_range
    for parameter in model.projector.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, spread, generator=generator)
        else:
            parameter.zero_()
