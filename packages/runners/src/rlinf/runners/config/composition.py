"""From a command line to a composed mapping: Hydra composes, and every value remembers where it came from."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.arguments import ArgumentParser
from rlinf.core.config.provenance import Provenance, flatten
from rlinf.core.errors import ConfigError, UnknownName, did_you_mean
from rlinf.runners.config.choices import choices_of, overridden_in_part, replace_parameters
from rlinf.runners.config.recipe_files import Layer, chooses, parse_override, recipe_layers, refuse_hydra, search_path
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.task_types import TaskType, task_type_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A composed configuration, not yet read into types."""

    name: str
    """The recipe."""
    data: Mapping[str, Any]
    """Plain nested containers, interpolations resolved."""
    provenance: Provenance
    """Where each value came from."""
    recipe: Mapping[str, Any] | None = None
    """The sections of the recipe without overrides, and the keys in them; None where there are no overrides."""

    @property
    def task_type(self) -> TaskType:
        """The kind of run; see `task_type_of`."""
        return task_type_of(self.data, self.recipe)


def parse_command_line(argv: Sequence[str], *, config_dir: Path, default: str, description: str) -> tuple[Composition, str | None]:
    """Reads an app's arguments: options, then Hydra overrides such as `runner.max_steps=20`.

    Returns:
        What was composed, and the key to explain instead of running it; "" explains all.

    Raises:
        ConfigError: no such recipe, or an override that Hydra can't parse.
    """
    parser = ArgumentParser(description=description, epilog=f"recipes: {', '.join(recipes(config_dir))}")
    parser.add_argument("--config-name", default=default, help="the recipe to run (default: %(default)s)")
    parser.add_argument("--config-dir", type=Path, default=config_dir, help="where recipes are looked for")
    parser.add_argument("--explain", metavar="KEY", help="say where the values at a key come from, and stop")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides: key=value")
    # `parse_args` refuses overrides on both sides of an option.
    args = parser.parse_intermixed_args(list(argv))
    named = None if args.config_dir == config_dir else args.config_dir
    return compose_app_recipe(config_dir, args.config_name, args.overrides, elsewhere=named), args.explain


def compose_app_recipe(config_dir: Path, name: str, overrides: Sequence[str] = (), *, elsewhere: Path | None = None) -> Composition:
    """Composes a recipe of an app, or one elsewhere that may build on those of the app; see `compose_recipe`.

    Args:
        config_dir: where the app has its recipes; they may be in a folder beside it, too, as those of fine-tuning are.
        name: of the recipe.
        overrides: as Hydra writes them.
        elsewhere: the folder of the recipe, if it isn't the app's. Whoever names one means that one, and none beside it.

    Raises:
        UnknownName: no such recipe.
        ConfigError: YAML or an override is malformed.
    """
    folders = [config_dir, *sorted(config_dir.parent.glob("config*"))]
    found = elsewhere or next((each for each in folders if (each / f"{name.removesuffix('.yaml')}.yaml").is_file()), None)
    if found is None:
        raise _no_recipe(name.removesuffix(".yaml"), sorted({recipe for each in folders for recipe in recipes(each)}))
    return compose_recipe(found, name, overrides, bases=folders)


def compose_file(path: Path, overrides: Sequence[str] = ()) -> Composition:
    """Composes the recipe in a file; see `compose_recipe`.

    Raises:
        ConfigError: there is no such file, or YAML or an override is malformed.
    """
    file = path.with_name(f"{path.name.removesuffix('.yaml')}.yaml")
    if not file.is_file():
        known = recipes(path.parent)
        hint = did_you_mean(path.name.removesuffix(".yaml"), known, label="Recipes") if known else "Name a YAML file."
        raise ConfigError("recipe", f"there is no file '{file}'", hint)
    return compose_recipe(path.parent, path.name, overrides)


def recipes(config_dir: Path) -> list[str]:
    """The names of the recipes in a folder."""
    return sorted(path.stem for path in config_dir.glob("*.yaml"))


def compose_recipe(config_dir: Path, name: str, overrides: Sequence[str] = (), *, bases: Sequence[Path] = ()) -> Composition:
    """Composes a recipe with Hydra.

    An override may set any key, whether or not the recipe's YAML has it: the typed schema decides later which keys exist. Where it
    names another type, the recipe's parameters of the old one go; see `rlinf.runners.config.choices`.

    Args:
        config_dir: where the recipe is.
        name: its name.
        overrides: as Hydra writes them.
        bases: other folders whose recipes it may build on.

    Raises:
        UnknownName: no such recipe.
        ConfigError: YAML or an override is malformed.
    """
    name = name.removesuffix(".yaml")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        remedy = f"Write --config-dir {Path(name).parent} --config-name {Path(name).name}."
        raise ConfigError("--config-name", f"expected the name of a recipe, found the path '{name}'", remedy)
    if not config_dir.is_dir():
        raise ConfigError("--config-dir", f"there is no folder '{config_dir}'", "Name one with recipes, each a YAML file.")
    if not (config_dir / f"{name}.yaml").is_file():
        raise _no_recipe(name, recipes(config_dir), f" in '{config_dir}'")
    folders = search_path(config_dir, name, bases)
    parsed = [_parsed(override) for override in overrides]
    choices = [each for each in parsed if each is not None and chooses(each, folders)]
    layers = recipe_layers(folders, name, choices)
    origins = {path: layer.file for layer in layers for path in layer.values}
    data = _composed(
        folders, name, [text if each in choices else _forced(text) for text, each in zip(overrides, parsed, strict=True)]
    )
    explicit = _set_by([each for each in parsed if each is not None and each not in choices])
    recipe = _outline(layers) if overrides else None
    try:
        schema = task_type_of(data, recipe).config
        alone, dropped = _merged(layers, schema)
        dropped = {path: why for path, why in dropped.items() if not _within(explicit, path)}
        data = _without(data, dropped)
        # What overrides nothing that is chosen by name replaces nothing.
        if _may_choose(explicit, layers, schema) or any(overridden_in_part(choices, explicit) for choices in choices_of(schema)):
            before = _plain(name, OmegaConf.create(alone))
            data, more = replace_parameters(before, data, explicit=explicit, provenance=origins, schema=schema)
            dropped |= more
    except ConfigError:
        dropped = {}  # no such task type, or no whole recipe without the overrides: reading says what is wrong
    provenance = {**origins, **dict.fromkeys(explicit, "command line"), **dropped}
    return Composition(name=name, data=data, provenance=provenance, recipe=recipe)


def _no_recipe(name: str, known: Sequence[str], where: str = "") -> UnknownName:
    return UnknownName("--config-name", f"no recipe '{name}'{where}", did_you_mean(name, known, label="Recipes"))


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> Mapping[str, Any]:
    """The sections of a recipe that its task type accepts; what a part that knows no recipes reads them by.

    Raises:
        ConfigError: there is no such recipe, or it has a fault.
    """
    composition = compose_file(path, overrides)
    composition.task_type.read(composition.data)
    return composition.data


def _merged(layers: Sequence[Layer], schema: type[RunConfig]) -> tuple[dict[str, Any], dict[str, str]]:
    """A recipe by itself, without parameters of types that it replaces in the one that it builds on, and why each went."""
    merged, dropped = dict[str, Any](), dict[str, str]()
    seen, refers = dict[str, str](), bool(_referring(layers))
    for layer in layers:
        over = _nested(layer.values)
        if refers:  # maybe to a later layer, so that none is resolved yet; a section over a reference is merged with its target
            after = cast("Mapping[str, Any]", OmegaConf.to_container(OmegaConf.merge(merged, over), resolve=False))
        else:
            after = _merged_over(merged, over)
        merged, gone = replace_parameters(merged, after, explicit=layer.values, provenance=seen, schema=schema)
        seen |= dict.fromkeys(layer.values, layer.file)
        # A later layer may set again what an earlier one has lost.
        dropped = {path: why for path, why in {**dropped, **gone}.items() if not _within(layer.values, path)}
    return merged, dropped


def _merged_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What Hydra makes of two layers that refer to nothing, an order of magnitude sooner."""
    merged = dict(under)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = _merged_over(cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", value))
        elif value != "???" or key not in merged:  # `???` waits for a value, and replaces none
            merged[key] = value
    return merged


def _referring(layers: Sequence[Layer]) -> set[str]:
    """The dotted paths of values that refer to others."""
    return {path for layer in layers for path, value in layer.values.items() if isinstance(value, str) and "${" in value}


def _may_choose(explicit: Collection[str], layers: Sequence[Layer], schema: type[RunConfig]) -> bool:
    """Whether overrides may change a name that something is chosen by: they set it, a section around it, or what it refers to."""
    if not explicit:
        return False
    names = [f"{section}.{key}" for each in choices_of(schema) for section in (each.section, each.like) for key in each.names]
    return any(_within({*explicit, *_referring(layers)}, name) for name in names)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted path as sections within sections."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *parents, key = path.split(".")
        section = nested
        for name in parents:
            section = section.setdefault(name, {})
        section[key] = value
    return nested


def _outline(layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
    """The sections that layers have, each with its own keys."""
    sections: dict[str, dict[str, Any]] = {}
    for path, value in ((path, value) for layer in layers for path, value in layer.values.items()):
        name, _, rest = path.partition(".")
        section = sections.setdefault(name, {})
        if rest:
            section[rest.partition(".")[0]] = value
    return sections


def _within(paths: Collection[str], path: str) -> bool:
    return any(each == path or each.startswith(f"{path}.") for each in paths)


def _without(data: Mapping[str, Any], paths: Collection[str], place: str = "") -> dict[str, Any]:
    """The configuration without some dotted paths."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{place}.{key}" if place else key
        if path not in paths:
            kept[key] = _without(cast("Mapping[str, Any]", value), paths, path) if isinstance(value, Mapping) else value
    return kept


def _composed(folders: Sequence[Path], name: str, overrides: Sequence[str]) -> Mapping[str, Any]:
    beside = ",".join("'file://{}'".format(str(each).replace("'", r"\'")) for each in folders[1:])
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(folders[0]), version_base="1.3"), _without_hydras_settings():
            # Without `_self_`, a recipe's own values count last, as whoever left it out means it.
            warnings.filterwarnings("ignore", "In '.*': Defaults list is missing `_self_`")
            composed = compose(config_name=name, overrides=[*overrides, f"hydra.searchpath=[{beside}]"])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise _malformed(name, error) from error
    return _plain(name, composed)


@contextmanager
def _without_hydras_settings() -> Generator[None]:
    """Inside, Hydra does not merge its settings for launchers, sweepers, help and logging, which nothing here reads.

    They are six files, and two fifths of the time that a composition takes.
    """
    stored = ConfigStore.instance().repo["hydra"]
    before = stored["config.yaml"]
    stored["config.yaml"] = _bare_hydra()
    try:
        yield
    finally:
        stored["config.yaml"] = before


@cache
def _bare_hydra() -> ConfigNode:
    node = OmegaConf.structured(HydraConf(defaults=[]))
    return ConfigNode(name="config.yaml", node=node, group="hydra", package=None, provider="hydra")


def _plain(name: str, composed: DictConfig) -> Mapping[str, Any]:
    """Plain containers, interpolations resolved."""
    try:
        return cast("Mapping[str, Any]", OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        raise _malformed(name, error) from error


def _malformed(name: str, error: Exception) -> ConfigError:
    # That two kinds of values don't merge, such as a section and a list, only the cause says.
    cause = f": {error.__cause__}" if str(error).startswith("Error merging") else ""
    text = " ".join(f"{error}{cause}".split())
    unlike = re.search(r"Cannot merge \w+ with \w+ full_key: (\S+) object_type=(list|dict)$", text)
    if unlike is None:
        return ConfigError(f"recipe {name}", text)
    key, kind = unlike.groups()
    if kind == "list":
        return ConfigError(key, "expected a list, found a section", "Write it as [{…}, {…}].")
    return ConfigError(key, "expected a section, found a list", "Write it as {key: value}.")


def _parsed(override: str) -> Override | None:
    """What an override says; None if Hydra can't tell."""
    if "=" not in override and not override.startswith("~"):
        raise ConfigError(override, "not an override", "Write key=value, such as runner.max_steps=20.")
    refuse_hydra(override.lstrip("+~").partition("=")[0])
    return parse_override(override)


def _forced(override: str) -> str:
    """`key=value` as Hydra's `++key=value`: set it, whether or not it is there."""
    return override if override[0] in "+~" else f"++{override}"


def _set_by(overrides: Sequence[Override]) -> list[str]:
    """The dotted paths that overrides set; of a section all that is in it."""
    values: list[tuple[str, Any]] = [(each.key_or_group, each.value()) for each in overrides]
    return [path for key, value in values for path in {key: None, **flatten(value, key)}]
