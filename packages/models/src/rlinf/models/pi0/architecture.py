"""The sizes of π0 and π0.5, and where a checkpoint's folder says them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast, get_args

from rlinf.core.config import read
from rlinf.core.data import EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError, did_you_mean
from rlinf.models.observations.cameras import CAMERAS

Kind = Literal["pi0", "pi05"]
"""π0 puts state and time beside the noisy actions; π0.5 has the state in its prompt, and time scales the expert's norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaSizes:
    """A Gemma transformer."""

    width: int
    depth: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSizes:
    """A SigLIP tower without its pooling head."""

    width: int
    depth: int
    mlp: int
    heads: int
    patch: int
    image: int
    """Pixels of an image, each way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PiArchitecture:
    """All sizes of a model."""

    vision: VisionSizes
    language: GemmaSizes
    expert: GemmaSizes
    """Depth, heads and head_dim are those of `language`, for both attend to the same keys and values."""
    vocabulary: int
    horizon: int
    """H, the steps of a chunk."""
    max_state_dim: int
    max_action_dim: int
    """D."""
    max_token_length: int
    """Tokens of a prompt, padding included."""
    value_hidden_sizes: tuple[int, ...]


_GEMMA_2B: Final = GemmaSizes(width=2048, depth=18, mlp=16384, heads=8, kv_heads=1, head_dim=256)
_GEMMA_300M: Final = GemmaSizes(width=1024, depth=18, mlp=4096, heads=8, kv_heads=1, head_dim=256)
_VARIANTS: Final = {
    "gemma_2b": _GEMMA_2B,
    "gemma_300m": _GEMMA_300M,
    # openpi's small variant, for debugging.
    "dummy": GemmaSizes(width=64, depth=4, mlp=128, heads=8, kv_heads=1, head_dim=16),
}
_SO400M: Final = VisionSizes(width=1152, depth=27, mlp=4304, heads=16, patch=14, image=224)
# openpi's limits: the prompt of π0.5 also holds the state.
_TOKENS: Final[Mapping[Kind, int]] = {"pi0": 48, "pi05": 200}
_VALUE: Final[Mapping[Kind, tuple[int, ...]]] = {"pi0": (512, 256, 128), "pi05": (1024, 512, 256)}


def base(kind: Kind) -> PiArchitecture:
    """PaliGemma-3B with an expert of 300M parameters, as published by Physical Intelligence."""
    return PiArchitecture(
        vision=_SO400M,
        language=_GEMMA_2B,
        expert=_GEMMA_300M,
        vocabulary=257152,
        horizon=50,
        max_state_dim=32,
        max_action_dim=32,
        max_token_length=_TOKENS[kind],
        value_hidden_sizes=_VALUE[kind],
    )


def tiny(kind: Kind) -> PiArchitecture:
    """The same in small: 32 × 32 pixels in four patches, two layers."""
    return PiArchitecture(
        vision=VisionSizes(width=64, depth=2, mlp=128, heads=4, patch=16, image=32),
        language=GemmaSizes(width=64, depth=2, mlp=128, heads=4, kv_heads=1, head_dim=16),
        expert=GemmaSizes(width=64, depth=2, mlp=128, heads=4, kv_heads=1, head_dim=16),
        vocabulary=384,
        horizon=4,
        max_state_dim=8,
        max_action_dim=8,
        max_token_length=32 if kind == "pi0" else 96,
        value_hidden_sizes=(64, 64),
    )


def from_checkpoint(found: Mapping[str, Any], kind: Kind, *, place: str) -> PiArchitecture:
    """The sizes that a folder's `config.json` says.

    Three kinds of file are understood: ours (the key `architecture`), LeRobot's and openpi's (names of variants), and that of
    transformers' `PI0Config`.

    Args:
        found: what is in the file.
        kind: which model is wanted.
        place: the file, for messages.

    Raises:
        CheckpointError: the file is of another model, or says no sizes.
    """
    expect_kind(found, kind, place)
    if "architecture" in found:
        return read(PiArchitecture, found["architecture"], place=f"{place}: architecture")
    if "vlm_config" in found:
        return _of_transformers(found, kind)
    if "paligemma_variant" in found:
        return _of_variants(found, kind, place)
    raise CheckpointError(place, f"expected architecture, paligemma_variant or vlm_config, found {sorted(found)}")


def expect_kind(found: Mapping[str, Any], kind: Kind, place: str) -> None:
    """Refuses the `config.json` of another model.

    Args:
        found: what is in the file.
        kind: which model is wanted.
        place: the file, for messages.

    Raises:
        CheckpointError: with both types.
    """
    # openpi's file names no model: there the caller is believed.
    named = found.get("type", found.get("model_type", kind))
    if named != kind:
        remedy = f"Set model_type: {named}." if named in get_args(Kind) else f"Name a folder of a '{kind}'."
        raise CheckpointError(place, f"expected a model of type '{kind}', found '{named}'", remedy)


def _of_variants(found: Mapping[str, Any], kind: Kind, place: str) -> PiArchitecture:
    """LeRobot says chunk_size, max_state_dim, max_action_dim; openpi action_horizon, action_dim."""
    of = base(kind)
    # openpi pads states to the size of actions, and declares no other.
    state_or_action = int(found.get("max_action_dim", found.get("action_dim", of.max_action_dim)))
    image = found.get("image_resolution", [of.vision.image])
    return replace(
        of,
        vision=replace(of.vision, image=int(image[0])),
        language=_variant(str(found["paligemma_variant"]), place),
        expert=_variant(str(found.get("action_expert_variant", "gemma_300m")), place),
        horizon=int(found.get("chunk_size", found.get("action_horizon", of.horizon))),
        max_state_dim=int(found.get("max_state_dim", state_or_action)),
        max_action_dim=state_or_action,
        max_token_length=int(found.get("tokenizer_max_length", found.get("max_token_len", of.max_token_length))),
    )


def _variant(name: str, place: str) -> GemmaSizes:
    if name not in _VARIANTS:
        raise CheckpointError(place, f"no variant named '{name}'", did_you_mean(name, list(_VARIANTS)))
    return _VARIANTS[name]


def _of_transformers(found: Mapping[str, Any], kind: Kind) -> PiArchitecture:
    of = base(kind)
    vlm = cast("Mapping[str, Any]", found["vlm_config"])
    vision = cast("Mapping[str, Any]", vlm.get("vision_config", {}))
    text = cast("Mapping[str, Any]", vlm.get("text_config", {}))
    keys = {"width": "hidden_size", "depth": "num_hidden_layers", "mlp": "intermediate_size", "heads": "num_attention_heads"}
    seen = keys | {"patch": "patch_size", "image": "image_size"}
    gemma = keys | {"kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    return replace(
        of,
        vision=replace(of.vision, **_renamed(vision, seen)),
        language=replace(of.language, **_renamed(text, gemma)),
        expert=replace(of.expert, **_renamed(found.get("dit_config", {}), gemma)),
        vocabulary=int(text.get("vocab_size", of.vocabulary)),
        horizon=int(found.get("chunk_size", of.horizon)),
        max_state_dim=int(found.get("max_state_dim", of.max_state_dim)),
        max_action_dim=int(found.get("max_action_dim", of.max_action_dim)),
    )


def _renamed(found: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {ours: int(found[theirs]) for ours, theirs in keys.items() if theirs in found}


def check_sizes(spec: EnvSpec, of: PiArchitecture, kind: Kind, num_action_chunks: int) -> tuple[int, int]:
    """How many numbers are in a state and in an action of the environment.

    Raises:
        ConfigError: the environment has not what the model sees, or more than fits into it.
    """
    for key, axes in ((CAMERAS[0], 3), ("states", 1)):
        if key not in spec.observation or len(spec.observation[key].shape) != axes:
            found = {name: leaf.shape for name, leaf in spec.observation.items()}
            raise ConfigError(kind, f"expected the observation '{key}' with {axes} axes, found {found}")
    if len(spec.action.shape) != 1:
        raise ConfigError(kind, f"expected an action [A], found {spec.action.shape}")
    states, actions = spec.observation["states"].shape[0], spec.action.shape[0]
    limits = [("max_action_dim", actions, of.max_action_dim)]
    # The state of π0.5 is in its prompt, which max_token_length limits.
    if kind == "pi0":
        limits.append(("max_state_dim", states, of.max_state_dim))
    for name, size, limit in limits:
        if size > limit:
            raise ConfigError(name, f"expected at least the environment's {size}, found {limit}", f"Set it to {size} or more.")
    if num_action_chunks > of.horizon:
        problem = f"expected at most the horizon, {of.horizon}, found {num_action_chunks}"
        raise ConfigError("num_action_chunks", problem, f"Set num_action_chunks={of.horizon}, or less.")
    return states, actions
