"""Formats of checkpoints, and the names that weights have in those of other projects. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rlinf.core.registry import WEIGHT_LAYOUTS

Names = Callable[[Iterable[str]], Mapping[str, str]]
"""From names in a public folder to those by the names that weights of our policy have."""


def _pi0(public: Iterable[str]) -> Mapping[str, str]:
    from rlinf.models.pi0.weight_map import sources

    return {f"network.{own}": name for own, name in sources(public).items()}


def _gr00t(public: Iterable[str]) -> Mapping[str, str]:
    from rlinf.models.gr00t.weight_map import from_public

    # Layers that our policy leaves out have names, too, which it doesn't ask for.
    return from_public({name: name for name in public}, layers=10**6)


def _openvla(public: Iterable[str]) -> Mapping[str, str]:
    from rlinf.models.openvla.weight_map import own_name

    return {f"vlm.{own_name(name)}": name for name in public}


PUBLIC_NAMES: Final[Mapping[str, Names]] = {
    "pi0": _pi0,
    "pi05": _pi0,
    "gr00t": _gr00t,
    "openvla": _openvla,
    "openvla_oft": _openvla,
}
"""By the registered name of the model."""
LANGUAGE: Final = ("causal_lm", "vlm")
"""Models that are networks of transformers."""
LEROBOT: Final[Mapping[str, tuple[str, ...]]] = {"pi0": ("pi0",), "pi05": ("pi05",), "gr00t": ("gr00t", "groot")}
"""The models that LeRobot has, by the `type` in its `config.json`."""
PUBLIC_TYPES: Final[Mapping[str, str]] = {"gr00t_n1_5": "gr00t"}
"""The models whose `model_type` in a folder of Hugging Face is not their registered name."""
OURS_ALONE: Final = ("value_head.", "noise_net.", "normalize_", "states.", "actions.", "state_norm.", "action_norm.", "normalizer.")
"""Weights that no other project has a place for: what reinforcement learning adds, and statistics, which are files there."""


def formats() -> list[str]:
    """What a checkpoint can be written as."""
    return ["safetensors", "full_weights", "hf", "lerobot", *WEIGHT_LAYOUTS.names()]
