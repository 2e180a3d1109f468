"""The networks of π0 and π0.5: a prefix that is read once, and a velocity that is asked at every denoising step.

    images, prompt ─▶ SigLIP, Gemma ─▶ keys and values of each layer ─┐
    state, x, τ ────────────────────▶ expert, layer by layer ◀────────┘ ─▶ velocity

Attention is block-wise: the prefix sees itself, π0's state token sees the prefix and itself, actions see everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.gemma.configuration_gemma import GemmaConfig
from transformers.models.paligemma.configuration_paligemma import PaliGemmaConfig
from transformers.models.paligemma.modeling_paligemma import PaliGemmaModel
from transformers.models.pi0.configuration_pi0 import PI0Config
from transformers.models.pi0.modeling_pi0 import PI0ForConditionalGeneration
from transformers.models.siglip.configuration_siglip import SiglipVisionConfig

from rlinf.core.errors import ConfigError
from rlinf.models.pi0._ada_gemma import AdaGemma
from rlinf.models.pi0.architecture import GemmaSizes, Kind, PiArchitecture
from rlinf.models.precision import at_least_float32

# openpi's, with which the published weights were trained.
_PERIODS = (0.004, 4.0)


class KeyValues:
    """Keys and values by layer, in the place of a transformers cache; written once."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Keeps those of a layer that is new, and gives them back."""
        # A layer that is known comes from gradient checkpointing, which runs it again on the way back.
        if layer == len(self.layers):
            self.layers.append((keys, values))
        return keys, values


class PrefixCache:
    """A transformers cache that puts keys and values behind others, which it never changes.

    Args:
        before: those of a prefix.
    """

    def __init__(self, before: KeyValues) -> None:
        self.before = before

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        """Those of the prefix and, behind them, these."""
        before = self.before.layers[layer]
        return torch.cat((before[0], keys), 2), torch.cat((before[1], values), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What the expert needs to know of images and prompt."""

    cache: KeyValues
    valid: Tensor
    """`[B, P]` bool, which positions are to be seen."""
    hidden: Tensor
    """`[B, P, W]`, the last layer's states."""

    def mean(self) -> Tensor:
        """`[B, W]` float32 at least, the mean over valid positions."""
        hidden = at_least_float32(self.hidden)
        weight = self.valid[..., None].to(hidden)
        return (hidden * weight).sum(1) / weight.sum(1)


class PiNetwork(nn.Module):
    """π0, which is that of transformers, or π0.5 in the same structure.

    Args:
        kind: which of the two.
        of: the sizes.
    """

    def __init__(self, kind: Kind, of: PiArchitecture) -> None:
        super().__init__()
        _check(of)
        self.kind, self.of = kind, of
        self.core: Any = PI0ForConditionalGeneration(_pi0_config(of)) if kind == "pi0" else _Pi05(of)
        # transformers computes frequencies up to 250 turns in float32, which costs four digits of the angle.
        self.core.embed_action_time.sinusoid_embeds = TimeEmbedding(of.expert.width)
        # The expert reads no tokens.
        self.core.model.dit.embed_tokens = None

    def transformers(self) -> list[nn.Module]:
        """What is computed in the precision of the configuration; the rest stays in float32."""
        return [self.core.model.vlm, self.core.model.dit]

    def freeze(self, *, expert_only: bool, critic_gradient: bool) -> None:
        """Takes gradients from what must not change, and from what no gradient can reach.

        The expert sees keys and values of the last layer of the vision-language model, and nothing that comes after them.

        Args:
            expert_only: whether the vision-language model must not change.
            critic_gradient: whether a critic trains what comes after them.
        """
        vlm = self.core.model.vlm
        if expert_only:
            vlm.requires_grad_(requires_grad=False)
        if critic_gradient:
            return
        last = vlm.language_model.layers[-1]
        unread: list[nn.Module] = [last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm]
        for module in (*unread, vlm.language_model.norm):
            module.requires_grad_(requires_grad=False)

    def prefix(self, pixels: Tensor, seen: Tensor, tokens: Tensor, valid: Tensor) -> Prefix:
        """Reads images and prompt.

        Args:
            pixels: `[B, V, 3, S, S]`, of V cameras.
            seen: `[B, V]` bool, which cameras there are.
            tokens: `[B, L]`, ids of the prompt.
            valid: `[B, L]` bool, which of them are no padding.
        """
        vlm = self.core.model.vlm
        rows, cameras = pixels.shape[:2]
        kind = vlm.multi_modal_projector.linear.weight.dtype
        # transformers returns the projected features of all patches as `pooler_output`, although nothing is pooled.
        images = vlm.get_image_features(pixels.flatten(0, 1).to(kind)).pooler_output
        patches, width = images.shape[1:]
        embeds = torch.cat((images.reshape(rows, cameras * patches, width), vlm.language_model.embed_tokens(tokens)), 1)
        valid = torch.cat((seen.repeat_interleave(patches, 1), valid), 1)
        cache = KeyValues()
        mask = _additive(valid[:, None, None], embeds.dtype)
        # Positions count valid tokens only: neither a missing camera nor the length of the padding shifts what follows.
        hidden = _run(vlm.language_model, embeds, mask, valid.cumsum(1) - 1, cache)
        return Prefix(cache=cache, valid=valid, hidden=vlm.language_model.norm(hidden))

    def velocity(self, x: Tensor, time: Tensor, state: Tensor, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """What the expert says of noisy actions.

        Args:
            x: `[B, H, D]`.
            time: `[B]`, τ.
            state: `[B, max_state_dim]`, padded; π0.5 does not look at it.
            prefix: that of the same rows.

        Returns:
            The velocity `[B, H, D]` and the states `[B, H, W]` that it was read from, float32 at least.
        """
        core, dit = self.core, self.core.model.dit
        # Projections stay in float32 where the transformers are in bfloat16.
        outer = core.action_out_proj.weight.dtype
        condition: Tensor | None = None
        if self.kind == "pi0":
            embeds = core.embed_action_time(state.to(outer), x.to(outer), time)
        else:
            embeds, condition = core.embed_action_time(x.to(outer), time)
        kind = dit.layers[0].mlp.up_proj.weight.dtype
        embeds = embeds.to(kind)
        length = embeds.shape[1]
        positions = prefix.valid.sum(1, keepdim=True) + torch.arange(length, device=x.device)
        seen = torch.cat((prefix.valid, prefix.valid.new_ones(len(x), length)), 1)[:, None, None].expand(-1, 1, length, -1)
        if self.kind == "pi0":
            # The state's token comes first, and sees no action.
            own = torch.ones(length, seen.shape[-1], dtype=torch.bool, device=x.device)
            own[0, prefix.valid.shape[1] + 1 :] = False
            seen = seen & own
        given = {} if condition is None else {"condition": condition.to(kind)}
        hidden = _run(dit, embeds, _additive(seen, kind), positions, PrefixCache(prefix.cache), **given)
        hidden = dit.norm(hidden) if condition is None else dit.norm(hidden, given["condition"])[0]
        hidden = hidden[:, length - x.shape[1] :].to(outer)
        return at_least_float32(core.action_out_proj(hidden)), at_least_float32(hidden)


class TimeEmbedding(nn.Module):
    """sin and cos of 2 π τ / T for periods T from 0.004 to 4, in a geometric series."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, time: Tensor) -> Tensor:
        """`[B, W]` float32, of `[B]`; computed in float64 where the device has it."""
        # MPS has no float64.
        kind = torch.float32 if time.device.type == "mps" else torch.float64
        fraction = torch.linspace(0.0, 1.0, self.width // 2, dtype=kind, device=time.device)
        angle = time.to(kind)[:, None] * (2.0 * math.pi / (_PERIODS[0] * (_PERIODS[1] / _PERIODS[0]) ** fraction))
        return torch.cat((angle.sin(), angle.cos()), 1).float()


class _Pi05(nn.Module):
    """The modules of π0.5, with the names that transformers gives to those of π0."""

    def __init__(self, of: PiArchitecture) -> None:
        super().__init__()
        vlm = PaliGemmaModel(_paligemma_config(of))
        self.model = nn.ModuleDict({"vlm": vlm, "dit": AdaGemma(_gemma_config(of.expert, vocabulary=1))})
        self.embed_action_time = _ActionTime(of)
        self.action_out_proj = nn.Linear(of.expert.width, of.max_action_dim)


class _ActionTime(nn.Module):
    """Embeds actions, and makes of the time the condition of the expert's norms."""

    def __init__(self, of: PiArchitecture) -> None:
        super().__init__()
        width = of.expert.width
        self.sinusoid_embeds: nn.Module
        self.action_in_proj = nn.Linear(of.max_action_dim, width)
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def forward(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, H, W]` and `[B, W]`."""
        condition = F.silu(self.time_mlp_in(self.sinusoid_embeds(time).to(self.time_mlp_in.weight.dtype)))
        return self.action_in_proj(x), F.silu(self.time_mlp_out(condition))


def _run(
    model: Any, hidden: Tensor, mask: Tensor, positions: Tensor, cache: KeyValues | PrefixCache, **condition: Tensor
) -> Tensor:
    """All layers of a Gemma model, before its last norm."""
    rotary = model.rotary_emb(hidden, positions)
    for layer in model.layers:
        hidden = layer(hidden, attention_mask=mask, past_key_values=cache, position_embeddings=rotary, **condition)
    return hidden


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where attention may look, the least finite number elsewhere."""
    # Not −∞: softmax makes NaN of a row that is −∞ everywhere.
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


def _check(of: PiArchitecture) -> None:
    shared = ("depth", "heads", "kv_heads", "head_dim")
    ours, theirs = ([getattr(sizes, key) for key in shared] for sizes in (of.expert, of.language))
    if ours != theirs:
        raise ConfigError("architecture.expert", f"expected {dict(zip(shared, theirs, strict=True))} as of language, found {ours}")


def _gemma_config(sizes: GemmaSizes, vocabulary: int) -> GemmaConfig:
    config = GemmaConfig(
        hidden_size=sizes.width,
        num_hidden_layers=sizes.depth,
        intermediate_size=sizes.mlp,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=vocabulary,
        # Who sees whom is said by our masks; a causal one must not be added.
        use_bidirectional_attention=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    # GemmaAttention reads it from its config; PreTrainedModel would set it, which AdaGemma is none of.
    cast("Any", config)._attn_implementation = "sdpa"
    return config


def _paligemma_config(of: PiArchitecture) -> PaliGemmaConfig:
    vision = SiglipVisionConfig(
        hidden_size=of.vision.width,
        num_hidden_layers=of.vision.depth,
        intermediate_size=of.vision.mlp,
        num_attention_heads=of.vision.heads,
        patch_size=of.vision.patch,
        image_size=of.vision.image,
        vision_use_head=False,
    )
    return PaliGemmaConfig(
        vision_config=vision,
        text_config=_gemma_config(of.language, of.vocabulary),
        projection_dim=of.language.width,
        hidden_size=of.language.width,
        # An id that no prompt has, and nobody looks for: `prefix` itself puts the images before the text.
        image_token_index=of.vocabulary,
    )


def _pi0_config(of: PiArchitecture) -> PI0Config:
    config: Any = PI0Config(
        vlm_config=_paligemma_config(of),
        dit_config=_gemma_config(of.expert, of.vocabulary),
        chunk_size=of.horizon,
        max_state_dim=of.max_state_dim,
        max_action_dim=of.max_action_dim,
    )
    # PI0Config has just given the expert the whole vocabulary; an embedding that is removed unread shall cost one row.
    config.dit_config.vocab_size = 1
    return config
