"""The files of a recipe: what Hydra is going to merge, which value comes from where, and what it would stumble over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import ConfigError

_SELF = "_self_"
_GLOBAL = "_global_"
_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file of a recipe sets; Hydra merges the later ones over the earlier ones."""

    file: str
    """Its name."""
    values: Mapping[str, Any]
    """By dotted path, interpolations unresolved."""


def recipe_layers(config_dir: Path, name: str) -> list[Layer]:
    """The files of a recipe, following `defaults`, in the order in which Hydra merges them.

    A file that `defaults` names and that is not there is left to Hydra, which looks for it elsewhere, too.

    Args:
        config_dir: where recipes are.
        name: of the recipe, without its ending.

    Raises:
        ConfigError: a file is no recipe: not UTF-8, not YAML, no mapping, or built on itself. The message names it.
    """
    return list(_layers(config_dir, name, "", ()))


def refuse_hydra(key: str) -> None:
    """Hydra composes here and runs nothing, so that its own settings would change nothing.

    Raises:
        ConfigError: the key is one of them.
    """
    if key.replace("/", ".").partition(".")[0] == "hydra":
        problem = "nothing here reads the settings of Hydra itself"
        raise ConfigError(key, problem, "Set runner.logger.log_path and runner.experiment_name for where a run writes.")


def refuse_sweep(override: str) -> None:
    """Hydra would start a program for each of several values, and advises an option that no program here has.

    Raises:
        ConfigError: the override has several values.
    """
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # Hydra reports it when it composes
        return
    if parsed.is_sweep_override():
        key = parsed.key_or_group
        problem = f"'{override.partition('=')[2]}' is for several runs, and this is one"
        loop = f"for value in …; do … {key}=$value; done"
        raise ConfigError(key, problem, f"Loop in the shell ({loop}), or write a list as [1,2].")


def _layers(config_dir: Path, name: str, package: str, parents: tuple[str, ...]) -> Iterator[Layer]:
    path = config_dir / f"{name}.yaml"
    if not path.is_file():
        return
    if name in parents:
        raise ConfigError(str(path), f"builds on itself: {' → '.join([*parents, name])}", "Take it out of the defaults.")
    text = _text(path)
    sections = dict(_content(path, text))
    header = _PACKAGE.match(text)
    if header is not None:
        # To Hydra a header is absolute, whatever the package of the recipe that names the file.
        package = "" if header[1] == _GLOBAL else header[1]
    defaults = sections.pop("defaults", [])
    own = Layer(f"{name}.yaml", {_join(package, key): value for key, value in flatten(sections).items() if key})
    # Hydra looks for what a recipe of a group names in the folder of that group.
    folder = "" if "/" not in name else f"{name.rpartition('/')[0]}/"
    entries = [(each if each == _SELF else folder + each, inner) for each, inner in _entries(path, defaults)]
    for option, inner in entries:
        inner_package = _join(package, inner) if inner != _GLOBAL else ""
        if option == _SELF:
            yield own
        else:
            yield from _layers(config_dir, option, inner_package, (*parents, name))
    # Without `_self_`, Hydra merges a file's own values last.
    if all(option != _SELF for option, _ in entries):
        yield own


def _entries(path: Path, defaults: object) -> Iterator[tuple[str, str]]:
    """The recipes that a list of defaults names, each with the package below which its values go."""
    if not isinstance(defaults, Sequence) or isinstance(defaults, str):
        raise ConfigError(f"{path}: defaults", f"expected a list of recipes, found {defaults!r}", "Write [base, _self_].")
    for entry in cast("Sequence[object]", defaults):
        chosen = cast("Mapping[object, object]", entry) if isinstance(entry, Mapping) else {"": entry}
        for group, options in chosen.items():
            group, _, package = str(group).removeprefix("optional ").removeprefix("override ").partition("@")
            for option in cast("Sequence[object]", options) if isinstance(options, list) else [options]:
                if not isinstance(option, str | None):
                    problem = f"expected the name of a recipe, found {option!r}"
                    raise ConfigError(f"{path}: defaults", problem, "Write [base, _self_].")
                if option is not None:
                    name, _, named = option.removeprefix("/").removesuffix(".yaml").partition("@")
                    folder = group or str(Path(name).parent).removeprefix(".")
                    yield f"{group}/{name}" if group else name, package or named or folder.replace("/", ".")


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        # Some editors begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        found = f"found the byte {content[error.start]:#04x} in line {line}"
        raise ConfigError(str(path), f"expected text in UTF-8, {found}", "Save the file as UTF-8.") from error


def _content(path: Path, text: str) -> Mapping[str, Any]:
    try:
        # Interpolations may refer to other files, and are resolved when all are merged.
        content = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(str(path), " ".join(str(error).split()), "Write it as YAML.") from error
    # OmegaConf takes a text without a colon for a key without a value.
    plain = content == {text.strip(): None} or content == {text: None}
    if not isinstance(content, Mapping) or plain:
        raise ConfigError(str(path), "expected a mapping of sections", "Write key: value.")
    for key in cast("Mapping[str, Any]", content):
        refuse_hydra(str(key))
    return cast("Mapping[str, Any]", content)


def _join(package: str, key: str) -> str:
    return f"{package}.{key}" if package and key else package or key
