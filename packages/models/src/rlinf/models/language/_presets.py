"""The configurations that transformers makes of presets."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from rlinf.core.errors import ConfigError, UnknownName, did_you_mean

_hf: Any = import_module("transformers")
_INVALID: Any = getattr(import_module("huggingface_hub.errors"), "StrictDataclassError", ValueError)
"""What newer versions of transformers raise of values that do not go together."""


def fresh_config(architecture: str, tiny: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """A model's own configuration of a preset.

    Raises:
        ConfigError: an unknown architecture or override, or values that it can't have.
    """
    known = sorted(_hf.CONFIG_MAPPING.keys())
    if architecture not in known:
        # transformers knows hundreds; the whole list would bury the guess.
        hint = did_you_mean(architecture, known).split("Known:")[0]
        raise UnknownName("architecture", f"transformers has no '{architecture}'", f"{hint}See its `model_type`s.")
    default = _hf.CONFIG_MAPPING[architecture]()
    sizes = _known(default, {**tiny, **tiny.get(f"{architecture}:", {})})
    check_names(default, overrides, "overrides")
    try:
        return _hf.CONFIG_MAPPING[architecture](**merged(sizes, overrides))
    except (_INVALID, ValueError, TypeError) as error:
        found = f"'{architecture}' can't have these values ({' '.join(str(error).split())})"
        raise ConfigError("overrides", found, "Change what does not fit.") from error


def _known(default: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Those sizes that the architecture has."""
    names = _names(default)
    return {
        name: _known(getattr(default, name), value) if name in default.sub_configs else value
        for name, value in sizes.items()
        if name in names
    }


def _names(config: Any) -> set[str]:
    return set(config.to_dict()) | set(config.attribute_map) | set(config.sub_configs)


def merged(sizes: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes with what is overridden, section by section."""
    both_of = dict(sizes)
    for name, value in overrides.items():
        nested = isinstance(value, Mapping) and isinstance(both_of.get(name), Mapping)
        both_of[name] = merged(both_of[name], cast("Mapping[str, Any]", value)) if nested else value
    return both_of


def check_names(own: Any, overrides: Mapping[str, Any], place: str) -> None:
    """Refuses overrides that a configuration lacks, with the nearest name."""
    names = _names(own)
    for name, value in overrides.items():
        if name not in names:
            raise UnknownName(f"{place}.{name}", f"no such value in {type(own).__name__}", did_you_mean(name, sorted(names)))
        if name in own.sub_configs:
            check_names(getattr(own, name), value, f"{place}.{name}")
