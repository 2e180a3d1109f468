"""From a command line to a composed mapping: Hydra composes, and every value remembers where it came from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import Provenance, flatten
from rlinf.core.errors import ConfigError, UnknownName, did_you_mean
from rlinf.runners.config.choices import NAMES, replace_parameters
from rlinf.runners.config.recipe_files import file_origins, refuse_hydra, refuse_sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A composed configuration, not yet read into types."""

    name: str
    """The recipe."""
    data: Mapping[str, Any]
    """Plain nested containers, interpolations resolved."""
    provenance: Provenance
    """Where each value came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What the user of an app typed."""

    composition: Composition
    explain: str | None
    """The key to explain instead of running; "" explains all."""
    traceback: bool
    """Whether errors are shown with their traceback."""


def parse_command_line(argv: Sequence[str], *, config_dir: Path, default: str, description: str) -> CommandLine:
    """Reads an app's arguments: options, then Hydra overrides such as `runner.max_steps=20`.

    Raises:
        ConfigError: no such recipe, or an override that Hydra can't parse.
    """
    parser = argparse.ArgumentParser(description=description, epilog=f"recipes: {', '.join(recipes(config_dir))}")
    parser.add_argument("--config-name", default=default, help="the recipe to run (default: %(default)s)")
    parser.add_argument("--config-dir", type=Path, default=config_dir, help="where recipes are looked for")
    parser.add_argument("--explain", metavar="KEY", help="say where the values at a key come from, and stop")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: key=value")
    args = parser.parse_intermixed_args(list(argv))
    composition = compose_recipe(args.config_dir, args.config_name, args.overrides)
    return CommandLine(composition=composition, explain=args.explain, traceback=args.traceback)


def recipes(config_dir: Path) -> list[str]:
    """The names of the recipes in a folder."""
    return sorted(path.stem for path in config_dir.glob("*.yaml"))


def compose_recipe(config_dir: Path, name: str, overrides: Sequence[str] = ()) -> Composition:
    """Composes a recipe with Hydra.

    An override may set any key, whether or not the recipe's YAML has it: the typed schema decides later which keys exist. Where it
    names another type, the recipe's parameters of the old one go; see `rlinf.runners.config.choices`.

    Raises:
        UnknownName: no such recipe.
        ConfigError: YAML or an override is malformed.
    """
    name = name.removesuffix(".yaml")
    if not (config_dir / f"{name}.yaml").is_file():
        hint = did_you_mean(name, recipes(config_dir), label="Recipes")
        raise UnknownName("--config-name", f"no recipe '{name}'", hint)
    origins = file_origins(config_dir, name)
    forced = [_forced(override) for override in overrides]
    data = _composed(config_dir, name, forced)
    explicit, dropped = _set_by(overrides), dict[str, str]()
    if any(path.rpartition(".")[2] in NAMES for path in explicit):
        try:
            data, dropped = replace_parameters(_composed(config_dir, name, []), data, explicit=explicit, provenance=origins)
        except ConfigError:
            dropped = {}  # without the overrides there is no whole recipe that would name another type
    return Composition(name=name, data=data, provenance={**origins, **dict.fromkeys(explicit, "command line"), **dropped})


def _composed(config_dir: Path, name: str, overrides: Sequence[str]) -> Mapping[str, Any]:
    try:
        with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
            composed = compose(config_name=name, overrides=list(overrides))
        return cast("Mapping[str, Any]", OmegaConf.to_container(composed, resolve=True))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"recipe {name}", " ".join(str(error).split())) from error


def _forced(override: str) -> str:
    """`key=value` as Hydra's `++key=value`: set it, whether or not it is there."""
    if "=" not in override and not override.startswith("~"):
        raise ConfigError(override, "not an override", "Write key=value, such as runner.max_steps=20.")
    refuse_hydra(override.lstrip("+~").partition("=")[0])
    refuse_sweep(override)
    return override if override[0] in "+~" else f"++{override}"


def _set_by(overrides: Sequence[str]) -> list[str]:
    """The dotted paths that overrides set; of a section all that is in it."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values: list[tuple[str, Any]] = [(each.key_or_group, each.value()) for each in parsed]
    return [path for key, value in values for path in {key: None, **flatten(value, key)}]
