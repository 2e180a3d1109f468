"""Writes docs/reference/keys-<task type>.md: every key of a recipe with its type, default and meaning.

uv run tools/key_reference.py            writes the pages
uv run tools/key_reference.py --check    exits with 1 if a page is not what it would write
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from rlinf.core.config.meanings import attributes
from rlinf.core.registry import SANDBOXES, Registry
from rlinf.runners import TASK_TYPES
from rlinf.runners.config.sections import chosen_fields, keyed_fields, listed_type, section_type
from rlinf.scheduler import ClusterConfig

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
TASKS = ("embodied", "embodied_off_policy", "embodied_sft", "reasoning", "agent", "sft", "reward_model")
READERS = {"cluster": ClusterConfig}
"""Sections that somebody else reads."""
HEAD = "| key | type | default | meaning |\n|---|---|---|---|"
INTRODUCTION = """# Keys of a recipe with `task_type: {name}`

What `{config}` accepts. Every key can be set in a recipe or on the command line (`key=value`). An unknown key, a wrong type, a
missing value or a number that is not finite is refused by name, and so is what does not fit the rest of the recipe.
`rlinf config recipe.yaml --explain KEY` says what a recipe sets, where, and what a key means. What a name
chooses brings keys of its own: they are in [another page](keys-choices.md). `uv run tools/key_reference.py` writes both.
"""
CHOICES = """# Keys of what is chosen by name

The parameters of every model, environment, loss and so on, at the place where the first kind of run that has it reads them.
What is not listed has none. `uv run tools/key_reference.py` writes this page.
"""


def rows(cls: type[Any], place: str) -> Iterator[str]:
    """A line for each key of a section, and of the sections within it."""
    written = attributes(cls)
    for field in keyed_fields(cls):
        key = f"{place}.{field.name}" if place else field.name
        inner, optional = section_type(cls, field.name)
        attribute = written[field.name]
        reader = READERS.get(key)
        if reader is not None:
            yield from rows(reader, key)
        elif "registry" in field.metadata:
            if not field.metadata["merged"]:
                yield row(key, "a section", field, f"{attribute.meaning} {choice(field)}")
            else:
                yield row(f"{place}.…", "keys", field, choice(field))
        elif (listed := listed_type(cls, field.name)) is not None and chosen_fields(listed):
            yield row(key, "a list of sections", field, attribute.meaning)
            yield from rows(listed, f"{key}[]")
        elif inner is None:
            yield row(key, attribute.annotation, field, attribute.meaning)
        else:
            if optional:
                yield row(key, "a section, or null", field, attribute.meaning)
            yield from rows(inner, key)


def row(key: str, kind: str, field: Any, meaning: str) -> str:
    """A line of a table."""
    cells = [f"`{key}`", code(kind) if kind != "keys" and kind[:2] != "a " else kind, default(field), meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str) -> str:
    """A text as code within one line: line breaks are escaped, and a text with a backtick stands between double ones."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("\n", "\\n") + fence


def default(field: Any) -> str:
    """As YAML has it; "required" for none."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return "its own"
    if isinstance(value, tuple | list):
        return code(str(list(cast("tuple[Any, ...]", value))))
    plain = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
    return code(plain or str(value)) if value != "" else '""'


def choice(field: Any) -> str:
    """Which keys stand where something is chosen."""
    return f"It has the keys of the {field.metadata['registry'].kind} that `{field.metadata['key']}` names."


def chosen(cls: type[Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Every choice of a section and of those within it, with the place of its parameters."""
    for field in chosen_fields(cls):
        yield place if field.metadata["merged"] else f"{place}.{field.name}", field
    for field in keyed_fields(cls):
        inner, listed = section_type(cls, field.name)[0], listed_type(cls, field.name)
        at = f"{place}.{field.name}" if place else field.name
        if inner is not None and "registry" not in field.metadata:
            yield from chosen(inner, at)
        elif listed is not None:
            yield from chosen(listed, f"{at}[]")


def parameters(registry: Registry[Any], place: str) -> Iterator[str]:
    """The keys of everything of ours that a name can choose, one list for each name that has any."""
    for name in registry.names():
        if not registry.owner(name).startswith("rlinf."):
            continue
        item = registry.get(name)
        if isinstance(item, type) and dataclasses.is_dataclass(item) and keyed_fields(item):
            yield f"\n**{name}**\n\n{HEAD}\n" + "\n".join(rows(item, place))


def page(name: str) -> str:
    """The page of a task type."""
    config = TASK_TYPES.get(name).config
    parts = [INTRODUCTION.format(name=name, config=config.__name__)]
    for field in keyed_fields(config):
        inner, _ = section_type(config, field.name)
        section = READERS.get(field.name, inner)
        if section is None:
            parts.append(f"\n## `{field.name}`\n\n{attributes(config)[field.name].meaning}\n")
        else:
            parts.append(f"\n## `{field.name}`\n\n{HEAD}\n" + "\n".join(rows(section, field.name)) + "\n")
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def choices_page() -> str:
    """The page of everything of ours that a name can choose."""
    parts, told = [CHOICES], set[str]()
    for name in TASKS:
        for place, field in chosen(TASK_TYPES.get(name).config):
            registry = field.metadata["registry"]
            if registry.group not in told:
                told.add(registry.group)
                key = f"{place.removesuffix(f'.{field.name}')}.{field.metadata['key']}"
                parts.append(f"\n## Each {registry.kind}, chosen by `{key}`\n" + "\n".join(parameters(registry, place)) + "\n")
    # The code reward's section `sandbox_params`, which no configuration of a run has as a field of its own.
    sandboxes = "\n".join(parameters(SANDBOXES, "reward.sandbox_params"))
    parts.append(f"\n## Each sandbox, chosen by `reward.sandbox` of the reward `code`\n{sandboxes}\n")
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


def main() -> int:
    """Writes the pages, or compares them."""
    stale = 0
    pages = {**{name: page(name) for name in TASKS}, "choices": choices_page()}
    for name, text in pages.items():
        path = PAGES / f"keys-{name}.md"
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale = 1
            sys.stdout.write(f"{path.relative_to(ROOT)} is not current{os.linesep}run `uv run tools/key_reference.py`\n")
    return stale


if __name__ == "__main__":
    sys.exit(main())
