"""Where each weight of a transformers model is in Megatron's, and how it is divided over tensor ranks; exact in both directions.

    transformers                              Megatron, on one of n tensor ranks
    q_proj, k_proj, v_proj                    linear_qkv: for each group of queries its q, k and v, then the next group
    gate_proj, up_proj                        linear_fc1: its part of the gate, then its part of up
    o_proj, down_proj                         linear_proj, linear_fc2: some columns
    embed_tokens, lm_head                     some rows, zeros behind the vocabulary
    norms, router                             whole, on each rank
    experts                                   some experts, on one of n ranks of experts

Optimizer state has the shapes of the weights, and goes the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rlinf.core.errors import ConfigError

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""The `model_type` of architectures that are known."""
PLACE = "trainer(policy)"


class Division(Protocol):
    """How weights of transformers become one of Megatron's, and how that is divided."""

    @property
    def divided(self) -> bool:
        """Whether each tensor rank holds a part of its own."""
        ...

    def split(self, sources: Sequence[Tensor], ranks: int) -> list[Tensor]:
        """The part of each tensor rank."""
        ...

    def merge(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """What `split` was given, from the parts of all tensor ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """The same on each rank."""

    divided: bool = False

    def split(self, sources: Sequence[Tensor], ranks: int) -> list[Tensor]:
        return [sources[0]] * ranks

    def merge(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [parts[0]]


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive rows or columns."""

    dim: int
    """0 for rows, 1 for columns."""
    size: int
    """How many there are; zeros are added until they can be divided."""
    divided: bool = True

    def split(self, sources: Sequence[Tensor], ranks: int) -> list[Tensor]:
        (source,) = sources
        missing = -self.size % ranks
        if missing:
            shape = [missing if dim == self.dim else n for dim, n in enumerate(source.shape)]
            source = torch.cat([source, source.new_zeros(shape)], self.dim)
        return list(source.chunk(ranks, self.dim))

    def merge(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(parts), self.dim).narrow(self.dim, 0, self.size)]


@dataclass(frozen=True, slots=True)
class Gated:
    """Each rank's rows of the gate above its rows of up."""

    divided: bool = True

    def split(self, sources: Sequence[Tensor], ranks: int) -> list[Tensor]:
        gates, ups = (source.chunk(ranks) for source in sources)
        return [torch.cat(pair) for pair in zip(gates, ups, strict=True)]

    def merge(self, parts: Sequence[Tensor]) -> list[Tensor]:
        pairs = [part.chunk(2) for part in parts]
        return [torch.cat([pair[i] for pair in pairs]) for i in range(2)]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Queries, keys and values, interleaved by group; a rank has whole groups."""

    groups: int
    """Heads of keys and values."""
    queries: int
    """Heads of queries in each group."""
    width: int
    """Of a head."""
    divided: bool = True

    def split(self, sources: Sequence[Tensor], ranks: int) -> list[Tensor]:
        # Biases have no columns, so that only the rows are named.
        grouped = torch.cat([source.view(self.groups, -1, *source.shape[1:]) for source in sources], 1)
        return [part.flatten(0, 1) for part in grouped.chunk(ranks)]

    def merge(self, parts: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(parts))
        grouped = whole.view(self.groups, -1, *whole.shape[1:])
        sizes = [self.queries * self.width, self.width, self.width]
        return [part.flatten(0, 1) for part in torch.split(grouped, sizes, 1)]


@dataclass(frozen=True, slots=True)
class Entry:
    """One weight of Megatron's."""

    name: str
    """In the model of its stage."""
    stage: int
    """The pipeline rank that holds it."""
    sources: tuple[str, ...]
    """The weights of transformers of which it is made."""
    division: Division
    """How."""
    repeats: bool = False
    """Whether it is a copy of another entry: the embedding as head of the last stage."""
    experts: bool = False
    """Whether the ranks of experts have the parts, and not those of matrices."""


@dataclass(frozen=True, slots=True)
class Experts:
    """What stands in the place of each layer's MLP."""

    count: int
    """How many there are."""
    chosen: int
    """How many a token goes through."""
    ffn: int
    """The width of each."""
    normalised: bool
    """Whether the weights of those that are chosen are divided by their sum."""

    @classmethod
    def of(cls, config: Any) -> Experts | None:
        """Those of a configuration of transformers; None if each layer has an MLP.

        Raises:
            ConfigError: only some layers have experts.
        """
        if config.model_type != "qwen3_moe":
            return None
        if config.mlp_only_layers or config.decoder_sparse_step != 1 or config.num_experts < 1:
            found = "layers without experts among those with experts can't be converted"
            raise ConfigError(PLACE, found, "Use the trainer fsdp.")
        return cls(config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, bool(config.norm_topk_prob))


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a transformers configuration this package must know."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    groups: int
    width: int
    """Of a head."""
    vocabulary: int
    eps: float
    tied: bool
    """Whether the embedding is the head, too."""
    qkv_bias: bool
    qk_norm: bool
    experts: Experts | None = None
    """None if each layer has an MLP."""

    @classmethod
    def of(cls, config: Any) -> Shape:
        """That of a configuration of transformers.

        Raises:
            ConfigError: the architecture, or one of its variants, is not known.
        """
        family = str(config.model_type)
        if family not in FAMILIES:
            found = f"expected an architecture of {', '.join(FAMILIES)}, found '{family}'"
            raise ConfigError(PLACE, found, "Use the trainer fsdp.")
        sliding = bool(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
        # This architecture has no types of layers.
        sliding |= family == "qwen3_moe" and config.sliding_window is not None
        # Biases of queries, keys and values, which every qwen2 has, are the only ones that are converted.
        biased = family != "qwen2" and (config.attention_bias or (family == "llama" and config.mlp_bias))
        for wrong, what in ((sliding, "sliding windows"), (biased, "biases"), (config.hidden_act != "silu", config.hidden_act)):
            if wrong:
                raise ConfigError(PLACE, f"'{family}' with {what} can't be converted", "Use the trainer fsdp.")
        heads = int(config.num_attention_heads)
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            ffn=config.intermediate_size,
            heads=heads,
            groups=config.num_key_value_heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
            eps=config.rms_norm_eps,
            tied=bool(config.tie_word_embeddings),
            qkv_bias=family == "qwen2",
            qk_norm=family in ("qwen3", "qwen3_moe"),
            experts=Experts.of(config),
        )

    def check(self, tensor: int, pipeline: int) -> None:
        """Refuses sizes that don't divide the model.

        Raises:
            ConfigError: heads, groups, hidden columns or layers can't be divided so.
        """
        # Experts are divided as wholes.
        columns = 0 if self.experts else self.ffn
        parts = (("heads", self.heads), ("heads of keys and values", self.groups), ("columns of the MLP", columns))
        for what, count in parts:
            if count % tensor:
                found = f"{count} {what} can't be divided over {tensor} ranks"
                raise ConfigError("actor.tensor_model_parallel_size", found, "Use a divisor.")
        if self.layers % pipeline:
            found = f"{self.layers} layers can't be divided over {pipeline} ranks"
            raise ConfigError("actor.pipeline_model_parallel_size", found, "Use a divisor.")

    def check_experts(self, ranks: int, tensor: int, *, sequence_parallel: bool) -> None:
        """Refuses sizes under which a token would not be sent to each of its experts once.

        Raises:
            ConfigError: there are no experts, they can't be divided so, or tensor ranks would all send the same tokens.
        """
        place = "actor.expert_model_parallel_size"
        if self.experts is None:
            if ranks > 1:
                raise ConfigError(place, f"found {ranks} for a model without experts", "Use 1.")
            return
        if self.experts.count % ranks:
            raise ConfigError(place, f"{self.experts.count} experts can't be divided over {ranks} ranks", "Use a divisor.")
        if tensor > 1 and not sequence_parallel:
            found = f"{tensor} tensor ranks would send the same tokens to experts"
            remedy = "Set it to true, or actor.tensor_model_parallel_size to 1 and divide the experts alone."
            raise ConfigError("actor.sequence_parallel", found, remedy)

    def entries(self, stages: int) -> Iterator[Entry]:
        """All weights of Megatron's, stage by stage."""
        vocabulary, whole, each = Cut(0, self.vocabulary), Whole(), self.layers // stages
        yield Entry("embedding.word_embeddings.weight", 0, ("model.embed_tokens.weight",), vocabulary)
        for layer in range(self.layers):
            yield from self._layer(layer, layer % each, layer // each)
        last = stages - 1
        yield Entry("decoder.final_layernorm.weight", last, ("model.norm.weight",), whole)
        if not self.tied:
            yield Entry("output_layer.weight", last, ("lm_head.weight",), vocabulary)
        # With one stage Megatron itself uses the embedding as head.
        elif last > 0:
            yield Entry("output_layer.weight", last, ("model.embed_tokens.weight",), vocabulary, repeats=True)

    def _layer(self, layer: int, local: int, stage: int) -> Iterator[Entry]:
        ours, theirs = f"decoder.layers.{local}", f"model.layers.{layer}"
        grouped = Grouped(self.groups, self.heads // self.groups, self.width)

        def entry(name: str, division: Division, *sources: str) -> Entry:
            return Entry(f"{ours}.{name}", stage, tuple(f"{theirs}.{source}" for source in sources), division)

        yield entry("input_layernorm.weight", Whole(), "input_layernorm.weight")
        for kind in ("weight", "bias") if self.qkv_bias else ("weight",):
            sources = [f"self_attn.{part}_proj.{kind}" for part in "qkv"]
            yield entry(f"self_attention.linear_qkv.{kind}", grouped, *sources)
        if self.qk_norm:
            yield entry("self_attention.q_layernorm.weight", Whole(), "self_attn.q_norm.weight")
            yield entry("self_attention.k_layernorm.weight", Whole(), "self_attn.k_norm.weight")
        yield entry("self_attention.linear_proj.weight", Cut(1, self.heads * self.width), "self_attn.o_proj.weight")
        yield entry("pre_mlp_layernorm.weight", Whole(), "post_attention_layernorm.weight")
        if self.experts is not None:
            yield entry("mlp.router", Whole(), "mlp.gate.weight")
            for own, source in (("gate_up", "gate_up_proj"), ("down", "down_proj")):
                division = Cut(0, self.experts.count)
                yield replace(entry(f"mlp.{own}", division, f"mlp.experts.{source}"), experts=True)
            return
        yield entry("mlp.linear_fc1.weight", Gated(), "mlp.gate_proj.weight", "mlp.up_proj.weight")
        yield entry("mlp.linear_fc2.weight", Cut(1, self.ffn), "mlp.down_proj.weight")

    def expect(self, names: Collection[str]) -> None:
        """Refuses a model with weights that would be lost, or lacks some.

        Args:
            names: of all weights of the model of transformers.

        Raises:
            ConfigError: they are not those of this architecture.
        """
        known = {source for entry in self.entries(1) for source in entry.sources}
        # transformers lists the head of a tied model as a weight, too.
        known |= {"lm_head.weight"} if self.tied else set[str]()
        strange = sorted(set(names) ^ known)
        if strange:
            found = f"{len(strange)} weights are not those of the architecture, such as '{strange[0]}'"
            raise ConfigError(PLACE, found, "Train without adapters, or use the trainer fsdp.")
