"""The files of a recipe: what Hydra is going to merge, which value comes from where, and what it would stumble over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import ConfigError, did_you_mean

_SELF = "_self_"
_GLOBAL = "_global_"
_HERE = "_here_"
"""The package of who names a recipe."""
_SEARCH_PATH = "hydra.searchpath"
_PACKAGE = re.compile(r"(?:\s|#\s*@(?!package\s).*\n)*#\s*@package\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file of a recipe sets; Hydra merges the later ones over the earlier ones."""

    file: str
    """Its name."""
    values: Mapping[str, Any]
    """By dotted path, interpolations unresolved."""


def search_path(config_dir: Path, name: str, bases: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Where a recipe and what it builds on are looked for: its own folder, those that its `hydra.searchpath` names, and `bases`.

    As in Hydra, an entry is a folder (`file://recipes`, from where the command runs), or a package (`pkg://mine.recipes`).

    Raises:
        ConfigError: the recipe can't be read, or there is no such folder or package.
    """
    path = config_dir / f"{name}.yaml"
    place, content = f"{path}: {_SEARCH_PATH}", _content(path, _text(path), primary=True)
    try:
        resolved: Any = OmegaConf.to_container(OmegaConf.create({"hydra": content.get("hydra")}), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(place, " ".join(str(error).split())) from error
    entries: Any = (resolved["hydra"] or {"searchpath": list[str]()})["searchpath"]
    if not isinstance(entries, list) or not all(isinstance(each, str) for each in cast("list[object]", entries)):
        raise ConfigError(place, f"expected a list of folders, found {entries!r}", "Write [file://FOLDER].")
    named = [_folder(each, place) for each in cast("list[str]", entries)]
    return tuple(dict.fromkeys(each.resolve() for each in (config_dir, *named, *bases)))


def recipe_layers(folders: Sequence[Path], name: str) -> list[Layer]:
    """The files of a recipe, following `defaults`, in the order in which Hydra merges them.

    Args:
        folders: where recipes are, see `search_path`; of two with one name the first counts.
        name: of the recipe, without its ending.

    Raises:
        ConfigError: a file is no recipe: not UTF-8, not YAML, no mapping, built on itself, or on one that is not there. The message
            names it.
    """
    return list(_layers(folders, _Entry(name, ""), "", ()))


def refuse_hydra(*keys: str) -> None:
    """Hydra composes here and runs nothing, so that its own settings would change nothing.

    Raises:
        ConfigError: some of the keys are such.
    """
    its_own = [key for key in keys if key.replace("/", ".").partition(".")[0] == "hydra"]
    if its_own:
        problem = "nothing here reads the settings of Hydra itself, but for hydra.searchpath in a recipe"
        remedy = "Leave it out; set runner.logger.log_path and runner.experiment_name for where a run writes."
        raise ConfigError(", ".join(its_own), problem, remedy)


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


@dataclass(frozen=True, slots=True)
class _Entry:
    """A recipe that a list of defaults names."""

    name: str
    """With its folder: `model/tiny`, or `_self_`."""
    folder: str
    """As it was written, which is its package below that of who names it, unless one is said."""
    package: str | None = None
    """What is said of it, which counts before what the file says of itself."""
    optional: bool = False
    """Whether it may be missing."""

    def package_in(self, outer: str, header: str | None) -> str:
        """Below which its values go."""
        # To Hydra a header is absolute, and so is whatever is behind `_global_`.
        own = self.package if self.package is not None else self.folder if header is None else f"{_GLOBAL}.{header}"
        return _join(outer, own).rpartition(_GLOBAL)[2].removeprefix(".")


def _layers(folders: Sequence[Path], entry: _Entry, outer: str, parents: tuple[str, ...]) -> Iterator[Layer]:
    name = entry.name
    path = _file(folders, name)
    if path is None:
        # Hydra resolves a name that refers to a choice elsewhere in the list.
        if entry.optional or "${" in name:
            return
        known = sorted({str(each.relative_to(folder))[: -len(".yaml")] for folder in folders for each in folder.rglob("*.yaml")})
        where = " or ".join(f"'{each}'" for each in folders)
        hint = did_you_mean(name, [each for each in known if each not in parents], label="Recipes")
        remedy = f"Name the folder of one elsewhere as {_SEARCH_PATH}: [file://FOLDER]. {hint}"
        raise ConfigError(f"{_file(folders, parents[-1])}: defaults", f"there is no recipe '{name}' in {where}", remedy)
    if name in parents:
        raise ConfigError(str(path), f"builds on itself: {' → '.join([*parents, name])}", "Take it out of the defaults.")
    text = _text(path)
    sections = dict(_content(path, text, primary=not parents))
    sections.pop("hydra", None)
    header = _PACKAGE.match(text)
    package = entry.package_in(outer, header[1] if header is not None else None)
    # Hydra looks for what a recipe of a group names in the folder of that group.
    entries = list(_entries(path, sections.pop("defaults", []), name.rpartition("/")[0]))
    file = f"{name}.yaml" if path.is_relative_to(folders[0]) else str(path)
    own = Layer(file, {_join(package, key): value for key, value in flatten(sections).items() if key})
    for each in entries:
        if each.name == _SELF:
            yield own
        else:
            yield from _layers(folders, each, package, (*parents, name))
    # Without `_self_`, Hydra merges a file's own values last.
    if all(each.name != _SELF for each in entries):
        yield own


def _file(folders: Sequence[Path], name: str) -> Path | None:
    """The file of a recipe, in the first folder that has it."""
    return next((path for path in (folder / f"{name}.yaml" for folder in folders) if path.is_file()), None)


def _folder(entry: str, place: str) -> Path:
    """What an entry of Hydra's search path names."""
    kind, _, written = entry.rpartition("://")
    if kind not in {"", "file", "pkg"}:
        raise ConfigError(place, f"expected a folder or a package, found '{entry}'", "Write file://FOLDER or pkg://PACKAGE.")
    if kind != "pkg":
        folder = Path(written).expanduser()
        if not folder.is_dir():
            raise ConfigError(place, f"there is no folder '{folder.absolute()}'", "Name one with recipes, each a YAML file.")
        return folder
    try:
        spec = find_spec(written.replace("/", "."))
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(place, f"there is no package '{written}'", "Install it, or write file://FOLDER.")
    return Path(next(iter(spec.submodule_search_locations)))


def _entries(path: Path, defaults: object, group_of_path: str) -> Iterator[_Entry]:
    if not isinstance(defaults, Sequence) or isinstance(defaults, str):
        raise ConfigError(f"{path}: defaults", f"expected a list of recipes, found {defaults!r}", "Write [base, _self_].")
    for entry in cast("Sequence[object]", defaults):
        chosen = cast("Mapping[object, object]", entry) if isinstance(entry, Mapping) else {"": entry}
        for group, options in chosen.items():
            optional = str(group).startswith("optional ")
            group, _, said = str(group).removeprefix("optional ").removeprefix("override ").partition("@")
            for option in cast("Sequence[object]", options) if isinstance(options, list) else [options]:
                if not isinstance(option, str | None):
                    problem = f"expected the name of a recipe, found {option!r}"
                    raise ConfigError(f"{path}: defaults", problem, "Write [base, _self_].")
                if option is not None:
                    name, _, named = option.removesuffix(".yaml").partition("@")
                    yield replace(_entry(_join_path(group, name), said or named, group_of_path), optional=optional)


def _entry(written: str, package: str, group_of_path: str) -> _Entry:
    if written == _SELF:
        return _Entry(written, "")
    name = written.removeprefix("/")
    folder = name.rpartition("/")[0].replace("/", ".")
    said = {"": None, _HERE: ""}.get(package, package)
    return _Entry(name if written != name else _join_path(group_of_path, name), folder, said)


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        # Some editors begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        found = f"found the byte {content[error.start]:#04x} in line {line}"
        raise ConfigError(str(path), f"expected text in UTF-8, {found}", "Save the file as UTF-8.") from error


def _content(path: Path, text: str, *, primary: bool) -> Mapping[str, Any]:
    try:
        # Interpolations may refer to other files, and are resolved when all are merged.
        content = _parsed(text)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(str(path), " ".join(str(error).split()), "Write it as YAML.") from error
    # OmegaConf takes a text without a colon for a key without a value.
    plain = content == {text.strip(): None} or content == {text: None}
    if not isinstance(content, Mapping) or plain:
        raise ConfigError(str(path), "expected a mapping of sections", "Write key: value.")
    keys = list(flatten(cast("Mapping[str, Any]", content)))
    if _SEARCH_PATH in keys and not primary:
        raise ConfigError(f"{path}: {_SEARCH_PATH}", "counts in the recipe that is run alone", "Write it there.")
    refuse_hydra(*(key for key in keys if key != _SEARCH_PATH))
    return cast("Mapping[str, Any]", content)


@lru_cache(maxsize=32)
def _parsed(text: str) -> object:
    return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def _join(package: str, key: str) -> str:
    return f"{package}.{key}" if package and key else package or key


def _join_path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
