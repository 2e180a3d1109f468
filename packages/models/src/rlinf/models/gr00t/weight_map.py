"""Names of weights: ours against those of the public checkpoint of GR00T-N1.5.

The public names are those of Isaac-GR00T; LeRobot puts `_groot_model.` in front of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from rlinf.core.errors import CheckpointError

X = TypeVar("X")

PREFIXES: Final[Mapping[str, str]] = {
    "backbone.eagle_model.vision_model.vision_model.": "backbone.vision.",
    "backbone.eagle_model.mlp1.": "backbone.connector.",
    "backbone.eagle_model.language_model.model.": "backbone.language.",
    "action_head.state_encoder.layer1.": "head.state_encoder.first.",
    "action_head.state_encoder.layer2.": "head.state_encoder.second.",
    "action_head.action_encoder.W1.": "head.action_encoder.first.",
    "action_head.action_encoder.W2.": "head.action_encoder.second.",
    "action_head.action_encoder.W3.": "head.action_encoder.third.",
    "action_head.action_decoder.layer1.": "head.action_decoder.first.",
    "action_head.action_decoder.layer2.": "head.action_decoder.second.",
    "action_head.future_tokens.weight": "head.future",
    "action_head.position_embedding.weight": "head.position",
    "action_head.vlln.": "head.context_norm.",
    "action_head.vl_self_attention.transformer_blocks.": "head.context.blocks.",
    "action_head.model.timestep_encoder.timestep_embedder.linear_1.": "head.transformer.time1.",
    "action_head.model.timestep_encoder.timestep_embedder.linear_2.": "head.transformer.time2.",
    "action_head.model.transformer_blocks.": "head.transformer.blocks.",
    "action_head.model.proj_out_1.": "head.transformer.out_time.",
    "action_head.model.proj_out_2.": "head.transformer.out.",
}
"""From a public prefix to ours."""

IN_EMBODIMENTS: Final[Mapping[str, str]] = {"W": "weight", "b": "bias"}
"""Below the encoders and the decoder, from a public last name to ours."""

IN_BLOCKS: Final[Mapping[str, str]] = {
    "norm1.": "norm1.",
    "attn1.to_q.": "attention.query.",
    "attn1.to_k.": "attention.key.",
    "attn1.to_v.": "attention.value.",
    "attn1.to_out.0.": "attention.out.",
    "norm3.": "norm2.",
    "ff.net.0.proj.": "up.",
    "ff.net.2.": "down.",
}
"""Below the number of a transformer block, from a public prefix to ours."""

UNUSED: Final = ("backbone.eagle_model.language_model.lm_head.", "backbone.eagle_model.vision_model.vision_model.head.")
"""Public weights that nothing depends on: the language model's output layer, and the vision tower's pooling."""

_LAYER = re.compile(r"backbone\.eagle_model\.language_model\.model\.layers\.(\d+)\.")
_ENCODERS = ("head.state_encoder.", "head.action_encoder.", "head.action_decoder.")
_BLOCKS = ("head.context.blocks.", "head.transformer.blocks.")


def ours(public: str) -> str:
    """Our name of a public one.

    Raises:
        CheckpointError: GR00T-N1.5 has no such weight.
    """
    name = _swap(public, PREFIXES)
    if name.startswith(_ENCODERS):
        head, _, last = name.rpartition(".")
        return f"{head}.{_known(last, IN_EMBODIMENTS, public)}"
    if name.startswith(_BLOCKS):
        start, number, rest = _block(name)
        return f"{start}{number}.{_swap(rest, IN_BLOCKS)}"
    return name


def public(ours: str) -> str:
    """The public name of ours.

    Raises:
        CheckpointError: the public checkpoint has no such weight, such as a value head.
    """
    name = ours
    if name.startswith(_ENCODERS):
        head, _, last = name.rpartition(".")
        name = f"{head}.{_known(last, _inverse(IN_EMBODIMENTS), ours)}"
    if name.startswith(_BLOCKS):
        start, number, rest = _block(name)
        name = f"{start}{number}.{_swap(rest, _inverse(IN_BLOCKS))}"
    return _swap(name, _inverse(PREFIXES))


def from_public(tensors: Mapping[str, X], *, layers: int) -> dict[str, X]:
    """A public state dict under our names, without what nothing depends on.

    Args:
        tensors: by public name, with or without LeRobot's prefix.
        layers: of the language model that are kept; later ones are left out.

    Raises:
        CheckpointError: a name is none of GR00T-N1.5.
    """
    bare = {_canonical(name): tensor for name, tensor in tensors.items()}
    return {ours(name): tensor for name, tensor in bare.items() if _used(name, layers)}


def to_public(tensors: Mapping[str, X]) -> dict[str, X]:
    """Those of our weights that the public checkpoint has, under its names."""
    return {public(name): tensor for name, tensor in tensors.items() if name.startswith(tuple(PREFIXES.values()))}


def _canonical(name: str) -> str:
    """Without LeRobot's prefix, and with the vision tower's inner name, which newer versions of transformers leave out."""
    name, tower = name.removeprefix("_groot_model."), "backbone.eagle_model.vision_model."
    if not name.startswith(tower) or name.startswith(f"{tower}vision_model."):
        return name
    return f"{tower}vision_model.{name.removeprefix(tower)}"


def _used(name: str, layers: int) -> bool:
    layer = _LAYER.match(name)
    return not name.startswith(UNUSED) and (layer is None or int(layer[1]) < layers)


def _block(name: str) -> tuple[str, str, str]:
    # What follows is the number of the block, which the maps don't have.
    start = next(start for start in _BLOCKS if name.startswith(start))
    number, _, rest = name.removeprefix(start).partition(".")
    return start, number, rest


def _swap(name: str, prefixes: Mapping[str, str]) -> str:
    for prefix, other in prefixes.items():
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    raise _unknown(name, prefixes)


def _known(name: str, names: Mapping[str, str], place: str) -> str:
    if name not in names:
        raise _unknown(place, names)
    return names[name]


def _unknown(name: str, known: Iterable[str]) -> CheckpointError:
    return CheckpointError(name, f"expected a weight of GR00T-N1.5, below one of {', '.join(known)}", "Is it another version?")


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {value: key for key, value in names.items()}
