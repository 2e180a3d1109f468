"""The action expert of π0.5: Gemma blocks whose norms are scaled, shifted and gated by the time of the flow.

adaRMS(x, c) = x / rms(x) · (1 + s) + b and a gate g, with (s, b, g) = W c + d, after Peebles and Xie, "Scalable Diffusion Models
with Transformers" (2023), section 3.2, arXiv:2212.09748. Attention, MLP and rotary embedding are those of transformers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.models.gemma import modeling_gemma as gemma
from transformers.models.gemma.configuration_gemma import GemmaConfig


class AdaRMSNorm(nn.Module):
    """Root-mean-square norm with a condition instead of weights.

    Args:
        width: W, of states and of the condition.
        eps: what is added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)
        # Fresh blocks begin as plain Gemma: gates open, hardly any condition. Closed gates would keep gradients from them.
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)
        nn.init.ones_(self.dense.bias[2 * width :])

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised states and their gate, `[B, S, W]` and `[B, 1, W]`, of `[B, S, W]` and `[B, W]`."""
        scale, shift, gate = cast("Tensor", self.dense(condition))[:, None].float().chunk(3, dim=-1)
        # In float32, as Gemma's own norm: bfloat16 would round the mean square.
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * (1.0 + scale) + shift).to(x.dtype), gate.to(x.dtype)


class AdaGemmaLayer(nn.Module):
    """x ↦ x + g₁ Attention(adaRMS(x)), then x ↦ x + g₂ MLP(adaRMS(x))."""

    def __init__(self, config: GemmaConfig, index: int) -> None:
        super().__init__()
        self.self_attn = gemma.GemmaAttention(config, index)
        self.mlp = gemma.GemmaMLP(config)
        self.input_layernorm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, *, condition: Tensor, attention_mask: Tensor, past_key_values: Any, position_embeddings: Any
    ) -> Tensor:
        """`[B, S, W]`, the states after this layer."""
        seen, gate = self.input_layernorm(x, condition)
        mixed, _ = self.self_attn(
            seen, position_embeddings=position_embeddings, attention_mask=attention_mask, past_key_values=past_key_values
        )
        x = x + mixed * gate
        seen, gate = self.post_attention_layernorm(x, condition)
        return x + self.mlp(seen) * gate


class AdaGemma(nn.Module):
    """The layers and the last norm; without token embeddings, for it reads actions."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.rotary_emb = gemma.GemmaRotaryEmbedding(config)
        self.layers = nn.ModuleList(AdaGemmaLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = AdaRMSNorm(config.hidden_size, config.rms_norm_eps)
