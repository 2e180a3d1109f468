"""The files of a recipe: what Hydra is going to merge, which value comes from where, and what it would stumble over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlinf.core.config.provenance import flatten
from rlinf.core.errors import ConfigError, UnknownName, did_you_mean

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


def recipe_layers(folders: Sequence[Path], name: str, choices: Sequence[Override] = ()) -> list[Layer]:
    """The files of a recipe, following `defaults`, in the order in which Hydra merges them.

    Args:
        folders: where recipes are, see `search_path`; of two with one name the first counts.
        name: of the recipe, without its ending.
        choices: overrides that choose from a folder; see `chooses`.

    Raises:
        ConfigError: a file is no recipe: not UTF-8, not YAML, no mapping, built on itself, or on one that is not there. The message
            names it.
    """
    added = [{each.get_key_element().removeprefix("+"): each.value()} for each in choices if each.is_add()]
    chosen = {each.get_key_element().removeprefix("~"): each for each in choices if not each.is_add()}
    options = {key: None if each.is_delete() else each.value() for key, each in chosen.items()}
    return _Files(folders, options, added).layers(_Entry(name, ""), "", ())


def chooses(override: Override, folders: Sequence[Path]) -> bool:
    """Whether an override chooses a file from a folder (`model=tiny`, `model@actor.model=tiny`), and sets no key."""
    names = isinstance(override.value(), str | list) or override.is_delete()
    return names and any((folder / override.key_or_group).is_dir() for folder in folders)


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


def parse_override(override: str) -> Override | None:
    """What an override says; None if it is malformed, which Hydra reports when it composes.

    Raises:
        ConfigError: it has several values: Hydra would start a program for each, and advises an option that no program here has.
    """
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        return None
    if parsed.is_sweep_override():
        key = parsed.key_or_group
        problem = f"'{override.partition('=')[2]}' is for several runs, and this is one"
        loop = f"for value in …; do … {key}=$value; done"
        raise ConfigError(key, problem, f"Loop in the shell ({loop}), or write a list as [1,2].")
    return parsed


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
    group: str | None = None
    """The folder that it is chosen from, if it is written so: `model: tiny`."""
    override: bool = False
    """Whether it changes what is chosen elsewhere."""
    options: object = None
    """What is chosen from it: a name, several, or None for nothing."""

    def package_in(self, outer: str, header: str | None) -> str:
        """Below which its values go."""
        # To Hydra a header is absolute, and so is whatever is behind `_global_`.
        own = self.package if self.package is not None else self.folder if header is None else f"{_GLOBAL}.{header}"
        return _join(outer, own).rpartition(_GLOBAL)[2].removeprefix(".")

    def choice_in(self, outer: str) -> str:
        """What Hydra calls the choice from a folder: the folder, and its package if that is another."""
        group, package = self.group or "", self.package_in(outer, None)
        return group if package == group.replace("/", ".") else f"{group}@{package or _GLOBAL}"


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a recipe is made of."""

    folders: Sequence[Path]
    choices: dict[str, Any]
    """What is chosen elsewhere than where the choice stands, by its name; None if nothing is."""
    added: Sequence[Mapping[str, Any]]
    """What is appended to the defaults of the recipe."""
    known: dict[str, str] = field(default_factory=dict[str, str])
    """What is chosen from each folder, by the name of the choice; filled while files are read."""

    def layers(self, entry: _Entry, outer: str, parents: tuple[str, ...]) -> list[Layer]:
        name = entry.name
        path = _file(self.folders, name)
        if path is None:
            # Hydra says what is wrong with a reference that leads nowhere.
            if entry.optional or "${" in name:
                return []
            raise self._missing(name, parents)
        if name in parents:
            raise ConfigError(str(path), f"builds on itself: {' → '.join([*parents, name])}", "Take it out of the defaults.")
        text = _text(path)
        sections = dict(_content(path, text, primary=not parents))
        sections.pop("hydra", None)
        header = _PACKAGE.match(text)
        package = entry.package_in(outer, header[1] if header is not None else None)
        file = f"{name}.yaml" if path.is_relative_to(self.folders[0]) else str(path)
        group = name.rpartition("/")[0]
        # Hydra looks for what a recipe of a group names in the folder of that group.
        entries = list(_entries(path, sections.pop("defaults", []), group))
        if all(each.name != _SELF for each in entries):
            entries.append(_Entry(_SELF, ""))
        if not parents:
            entries += _entries(path, self.added, group)
        for each in entries:
            if each.override:
                self.choices.setdefault(each.choice_in(package), each.options)
        own = Layer(file, {_join(package, key): value for key, value in flatten(sections).items() if key})
        found = [list[Layer]() for _ in entries]
        referring: list[tuple[int, _Entry]] = []
        # As Hydra, the last first: what is overridden there counts in what stands before it.
        for at, each in reversed(list(enumerate(entries))):
            for chosen in reversed(self._chosen(each, package)):
                if "${" in chosen.name:
                    referring.append((at, chosen))
                    continue
                below = [own] if chosen.name == _SELF else self.layers(chosen, package, (*parents, name))
                found[at] = [*below, *found[at]]
        # And what refers to choices after all that it may refer to.
        for at, each in referring:
            found[at] = self.layers(replace(each, name=self._resolved(each.name)), package, (*parents, name))
        return [layer for layers in found for layer in layers]

    def _resolved(self, name: str) -> str:
        """A name with `${folder}` for what is chosen from a folder; as it is where there is no such choice, which Hydra refuses."""
        try:
            return str(OmegaConf.create({**self.known, "": name})[""])
        except OmegaConfBaseException:
            return name

    def _chosen(self, entry: _Entry, outer: str) -> list[_Entry]:
        """What stands for an entry: what is chosen from its folder, here or elsewhere; nothing for one that overrides."""
        if entry.group is None or entry.override:
            return [] if entry.override else [entry]
        choice = entry.choice_in(outer)
        options: object = self.choices.get(choice, entry.options)
        if isinstance(options, str):
            self.known[choice] = options
        names = cast("list[object]", options) if isinstance(options, list) else [] if options is None else [options]
        chosen = [replace(entry, name=f"{entry.group}/{str(each).removesuffix('.yaml')}") for each in names]
        for each, one in zip(names, chosen, strict=True):
            # What is optional may be missing, and what refers to a choice elsewhere is known when all are.
            missing = _file(self.folders, one.name) is None and not entry.optional and "${" not in one.name
            if missing and choice in self.choices:
                known = {path.stem for folder in self.folders for path in (folder / entry.group).glob("*.yaml")}
                raise UnknownName(choice, f"no '{each}' in the folder '{entry.group}'", did_you_mean(str(each), sorted(known)))
        return chosen

    def _missing(self, name: str, parents: tuple[str, ...]) -> ConfigError:
        known = {str(each.relative_to(folder))[: -len(".yaml")] for folder in self.folders for each in folder.rglob("*.yaml")}
        where = " or ".join(f"'{each}'" for each in self.folders)
        hint = did_you_mean(name, sorted(known.difference(parents)), label="Recipes")
        remedy = f"Name the folder of one elsewhere as {_SEARCH_PATH}: [file://FOLDER]. {hint}"
        return ConfigError(f"{_file(self.folders, parents[-1])}: defaults", f"there is no recipe '{name}' in {where}", remedy)


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
            words, _, said = str(group).partition("@")
            kinds, _, group = words.rpartition(" ")
            refuse_hydra(group.removeprefix("/"))
            if group:
                found = _entry(_join_path(group, _SELF), said, group_of_path)
                optional, override = "optional" in kinds, "override" in kinds
                above = found.name.rpartition("/")[0]
                yield replace(found, group=above, options=options, optional=optional, override=override)
            elif isinstance(options, str):
                name, _, named = options.removesuffix(".yaml").partition("@")
                yield _entry(name, named, group_of_path)
            else:
                raise ConfigError(f"{path}: defaults", f"expected the name of a recipe, found {options!r}", "Write [base, _self_].")


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
