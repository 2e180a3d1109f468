"""Megatron's GPT with the sizes of a model of transformers, on any device, and its forward pass over rows of text."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.engines.activation_checkpointing import recompute
from rlinf.engines.megatron._groups import Groups
from rlinf.engines.megatron.attention import TorchAttention, TorchNorm, take_columns
from rlinf.engines.megatron.mapping import PLACE, Shape
from rlinf.engines.megatron.mixture import Mixture
from rlinf.engines.megatron.parallelism import Parallelism
from rlinf.engines.megatron.scoring import score_divided
from rlinf.engines.packing.rows import IDS, SEGMENTS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import mappings, random
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

_regions: Any = mappings
# It says of each layer that it does not know the class of a mixture.
logging.getLogger("megatron.core.transformer.transformer_layer").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Rotation:
    """How positions turn queries and keys. Su et al., "RoFormer" (2021), arXiv:2104.09864."""

    frequencies: Tensor
    """`[width / 2]`."""

    @classmethod
    def of(cls, network: Any, device: torch.device) -> Rotation:
        """That of a model of transformers.

        Raises:
            ConfigError: it depends on more than the position.
        """
        own = network.base_model.rotary_emb
        if own.rope_type in ("dynamic", "longrope") or own.attention_scaling != 1.0:
            found = f"rotary embeddings of type '{own.rope_type}' can't be converted"
            raise ConfigError(PLACE, found, "Use the trainer fsdp.")
        return cls(own.inv_freq.detach().to(device, torch.float32, copy=True))

    def angles(self, positions: Tensor) -> Tensor:
        """`[S, B, 1, width]` of positions `[B, S]`."""
        half = positions.T[:, :, None, None].float() * self.frequencies
        return torch.cat([half, half], -1)


@dataclass(frozen=True, slots=True)
class Columns:
    """What one rank needs of rows of text."""

    ids: Tensor
    """`[B, S]`, of its columns."""
    angles: Tensor
    """`[all columns, B, 1, width]` under tensor parallelism alone, otherwise of its columns."""
    visible: Tensor | None
    """`[B, 1, S, all columns]`; None if each row is one sequence from its first column on."""
    tokens: Tensor
    """`[B, S]`, those that come next."""
    mask: Tensor
    """`[B, S]`, those that are scored."""
    horizon: int
    """How many columns rows have on all ranks without what was added to divide them."""


class Network:
    """One rank's part of a causal language model.

    Args:
        config: how ranks share it.
        shape: of the model.
        rotation: its positions.
        groups: the ranks.
        dtype: of weights and activations.
        device: where.
        temperature: at which tokens are scored.
    """

    def __init__(
        self,
        config: Parallelism,
        shape: Shape,
        rotation: Rotation,
        groups: Groups,
        *,
        dtype: torch.dtype,
        device: torch.device,
        temperature: float,
    ) -> None:
        self._config, self._shape, self._rotation, self._groups = config, shape, rotation, groups
        self._temperature, self._device = temperature, device
        if device.type == "cpu":
            warnings.filterwarnings("ignore", message="When using async grad allreduce")
        if config.sequence_parallel:
            # Megatron asks for its random state there, though nothing is drawn.
            cast("Any", random).model_parallel_cuda_manual_seed(0)
        shared = shape.tied and groups.stages == 1
        self.module: Any = GPTModel(
            config=megatron_config(config, shape, dtype, device),
            transformer_layer_spec=_spec(shape, groups),
            vocab_size=shape.vocabulary + -shape.vocabulary % config.tensor_model_parallel_size,
            # Only positions that are learned would be limited by it.
            max_sequence_length=1,
            pre_process=groups.stage == 0,
            post_process=groups.last,
            share_embeddings_and_output_weights=shared,
            position_embedding_type="none",
        ).to(device)
        if config.recompute:
            recompute(list(self.module.decoder.layers))

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's weights."""
        return dict(self.module.named_parameters())

    def columns(self, context: Any, action: Tensor, mask: Tensor) -> Columns:
        """This rank's part of some rows.

        Args:
            context: `input_ids` and `segment_ids` `[B, T]` on the device.
            action: `[B, T, 1, 1]`, the tokens that come next.
            mask: `[B, T]`, those that are scored.

        Raises:
            ShapeError: the context is not that of a language model.
        """
        leaves = cast("Mapping[str, Tensor]", context) if isinstance(context, Mapping) else dict[str, Tensor]()
        strange = sorted(set(leaves) - {IDS, SEGMENTS})
        if IDS not in leaves or strange:
            found = f"expected '{IDS}' and '{SEGMENTS}' alone, found {sorted(leaves)}"
            raise ShapeError("default_forward(context)", found, "Train models that see with the trainer fsdp.")
        ids = leaves[IDS]
        segments = leaves.get(SEGMENTS, torch.ones_like(ids))
        horizon, parts = ids.shape[1], self._config.context_parallel_size
        unit = parts * (self._config.tensor_model_parallel_size if self._config.sequence_parallel else 1)
        # All ranks that share a row must have the same number of its columns.
        ids, segments, tokens, mask = (
            functional.pad(tensor, (0, -horizon % unit)) for tensor in (ids, segments, action.flatten(1), mask)
        )
        own = slice(None) if parts == 1 else _share(ids.shape[1] // parts, torch.distributed.get_rank(self._groups.context))
        visible = _visible(segments, own, alone=parts == 1)
        angles = self._rotation.angles(_positions(segments))[own]
        return Columns(ids[:, own].contiguous(), angles, visible, tokens[:, own], mask[:, own], horizon)

    def idle(self) -> Columns:
        """A token that nobody scores: for a pass that only keeps pace with other ranks."""
        ids = torch.zeros((1, 1), dtype=torch.int64, device=self._device)
        return self.columns({IDS: ids}, ids[..., None, None], ids.bool())

    def forward(self, columns: Columns) -> Tensor:
        """`[S, B, W]`: what this stage makes of its columns, or of what it received from the stage before."""
        hidden = None
        if self._groups.stage == 0:
            hidden = self.module.embedding(input_ids=columns.ids, position_ids=None)
        return self.module.decoder(hidden_states=hidden, attention_mask=columns.visible, rotary_pos_emb=columns.angles)

    def score(self, hidden: Tensor, columns: Columns) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and Σ π² `[B, T]` of what the last stage made; 0 where nothing is scored."""
        if self._config.sequence_parallel:
            hidden = _regions.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        rows = hidden.transpose(0, 1)[columns.mask]
        found = score_divided(
            rows,
            self._head,
            columns.tokens[columns.mask],
            group=self._groups.tensor,
            vocabulary=self._shape.vocabulary,
            temperature=self._temperature,
            chunk=self._config.logit_chunk,
        )
        spread = torch.stack(
            [torch.zeros(columns.mask.shape, dtype=x.dtype, device=x.device).index_put((columns.mask,), x) for x in found]
        )
        if self._config.context_parallel_size > 1:
            spread = take_columns(spread, self._groups.context, dim=2)
        logprob, entropy, squares = spread[:, :, : columns.horizon]
        return logprob, entropy, squares

    @property
    def _head(self) -> Tensor:
        return self.module.shared_embedding_or_output_weight() if self._shared else self.module.output_layer.weight

    @property
    def _shared(self) -> bool:
        return self.module.share_embeddings_and_output_weights


def megatron_config(config: Parallelism, shape: Shape, dtype: torch.dtype, device: torch.device) -> Any:
    """Megatron's own configuration; weights come from elsewhere, and are not initialised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransformerConfig(
            num_layers=shape.layers,
            hidden_size=shape.hidden,
            ffn_hidden_size=shape.ffn,
            num_attention_heads=shape.heads,
            num_query_groups=shape.groups,
            kv_channels=shape.width,
            normalization="RMSNorm",
            layernorm_epsilon=shape.eps,
            gated_linear_unit=True,
            activation_func=functional.silu,
            add_bias_linear=False,
            add_qkv_bias=shape.qkv_bias,
            qk_layernorm=shape.qk_norm,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tensor_model_parallel_size=config.tensor_model_parallel_size,
            pipeline_model_parallel_size=config.pipeline_model_parallel_size,
            context_parallel_size=config.context_parallel_size,
            sequence_parallel=config.sequence_parallel,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=dtype == torch.bfloat16,
            use_cpu_initialization=device.type == "cpu",
            perform_initialization=False,
            variable_seq_lengths=True,
            # Asked for with lengths that vary, without experts, too.
            moe_token_dispatcher_type="alltoall",  # noqa: S106
            # Otherwise Megatron's pipeline divides the loss by the number of micro-batches.
            calculate_per_token_loss=True,
            gradient_accumulation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            persist_layer_norm=False,
        )


def _spec(shape: Shape, groups: Groups) -> Any:
    """Megatron's layers with attention, norms and mixtures of torch."""
    layer: Any = get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = TorchNorm
    inner = layer.submodules.self_attention.submodules
    inner.core_attention = TorchAttention
    if shape.qk_norm:
        inner.q_layernorm = inner.k_layernorm = TorchNorm
    if shape.experts is not None:
        layer.submodules.mlp = ModuleSpec(module=Mixture, params={"experts": shape.experts, "group": groups.experts})
    return TransformerBlockSubmodules(layer_specs=[layer] * (shape.layers // groups.stages), layer_norm=cast("Any", TorchNorm))


def _share(width: int, number: int) -> slice:
    return slice(number * width, (number + 1) * width)


def _positions(segments: Tensor) -> Tensor:
    """`[B, S]`, the place of each token in its own sequence; the padding counts as sequences of its own."""
    columns = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return columns - torch.where(begins, columns, 0).cummax(1).values


def _visible(segments: Tensor, own: slice, *, alone: bool) -> Tensor | None:
    """`[B, 1, own columns, S]`: what is of the same sequence and not later; None where causal attention alone does it.

    What stands in the padding right of a sequence is never seen by it.
    """
    if alone and bool((segments.diff(dim=1) <= 0).all() and (segments <= 1).all()):
        return None
    columns = torch.arange(segments.shape[1], device=segments.device)
    causal = columns[own, None] >= columns
    same = segments[:, own, None] == segments[:, None, :]
    return (same & causal)[:, None]
