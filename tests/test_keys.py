"""A message names keys that exist: in the literals of the source, and in what the schemas refuse."""

from __future__ import annotations

import ast
import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import VectorEnv

from rlinf.core.config.reading import field_names, read
from rlinf.core.errors import ConfigError, each_fault
from rlinf.core.registry import (
    ENVS,
    Registry,
)
from rlinf.runners.config.compat import ELSEWHERE, OTHERWISE
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.sections import Section, resolved
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.schema import EmbodiedConfig, EvalEnvConfig, TrainEnvConfig
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig
from rlinf.runners.off_policy.schema import OffPolicyConfig
from rlinf.runners.reasoning import ReasoningConfig, read_reasoning
from rlinf.runners.sft import RewardModelConfig, SFTConfig
from rlinf.scheduler.config import ClusterConfig

ROOT = Path(__file__).parents[1]
KEY = re.compile(r"(?<![\w./{}-])(?:runner|cluster|env|rollout|actor|algorithm|data|reward|reference|eval|sft)\.[a-z_][a-z_.]*")
FILES = ("data.parquet", "data.py", "eval.mp", "eval.py")
ENVIRONMENT = ("env_type", "action", "recv", "send", "send_reset", "autoreset_mode", "keys", "lagging", "num_groups", "resets")
"""Beside the fields of its configuration and the attributes of a `VectorEnv`: what messages of an environment, which knows no run,
call by `env.…`. These are methods, and arguments of `from_vector_env` and of `GroupResets`."""


@dataclasses.dataclass
class Known:
    """What may be configured in any kind of run."""

    keys: set[str] = dataclasses.field(default_factory=set[str])
    free: set[str] = dataclasses.field(default_factory=set[str])
    """Those below which anything may stand."""
    classes: dict[type[Any], None] = dataclasses.field(default_factory=dict[type[Any], None])
    """The dataclasses that are read."""

    def walk(self, cls: type[Any], prefix: str) -> None:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.metadata.get("merged"):
                self.walk_chosen(field.metadata["registry"], prefix)
                continue
            key = prefix + field.name
            self.keys.add(key)
            if "registry" in field.metadata:
                self.walk_chosen(field.metadata["registry"], f"{key}.")
            for hint in _members(hints[field.name]):
                if dataclasses.is_dataclass(hint):
                    section = typing.cast("type[Any]", hint)
                    if prefix:  # the sections of a run have readers of their own
                        self.classes[section] = None
                    self.walk(section, f"{key}.")
                elif isinstance(origin := typing.get_origin(hint), type) and issubclass(origin, Mapping):
                    self.free.add(f"{key}.")

    def walk_chosen(self, registry: Registry[Any], prefix: str) -> None:
        for name in registry.names():
            item = registry.get(name)
            if isinstance(item, type) and dataclasses.is_dataclass(item):
                self.classes[item] = None
                self.walk(item, prefix)


@cache
def known() -> Known:
    found = Known()
    for cls in (EmbodiedConfig, EmbodiedSFTConfig, OffPolicyConfig, ReasoningConfig, RewardModelConfig, SFTConfig):
        found.walk(cls, "")
    found.walk(ClusterConfig, "cluster.")
    return found


def _members(hint: Any) -> Iterator[Any]:
    """The types of a union, and those of the items of a sequence."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType) or (isinstance(origin, type) and issubclass(origin, (tuple, list))):
        for member in typing.get_args(hint):
            yield from _members(member)
    else:
        yield hint


def exists(key: str) -> bool:
    keys = known().keys
    return key in keys or key.startswith(tuple(known().free)) or any(other.startswith(f"{key}.") for other in keys)


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module but for docstrings; what an f-string computes is `{}`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            skipped |= {id(part) for part in node.values}
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def of_an_environment(key: str) -> bool:
    """`env.step` is a method, and an environment that is used alone calls its parameters `env.task_id`; a run adds where."""
    section, _, name = key.partition(".")
    items = [*map(ENVS.get, ENVS.names()), TrainEnvConfig, EvalEnvConfig]
    fields = {field for item in items for field in field_names(item)}
    return section == "env" and (name in fields or name in {*ENVIRONMENT, *dir(VectorEnv), *VectorEnv.__annotations__})


@pytest.mark.parametrize("part", sorted(path.name for path in (ROOT / "packages").iterdir() if (path / "src").is_dir()))
def test_a_literal_that_looks_like_a_key_is_one(part: str) -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / "packages" / part / "src").rglob("*.py")):
        for line, text in literals(path):
            for found in KEY.finditer(text):
                key = found[0].rstrip(".")
                if text[found.end() :].startswith(("(", "{")) and not found[0].endswith("."):
                    continue
                if not exists(key) and key not in (*FILES, *ELSEWHERE) and not of_an_environment(key):
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {key}")
    assert not wrong, "no such key:\n" + "\n".join(wrong)


@pytest.mark.parametrize("key", ELSEWHERE)
def test_a_key_of_other_systems_is_none_of_ours(key: str) -> None:
    assert not exists(key)


@pytest.mark.parametrize("key", OTHERWISE)
def test_a_key_of_other_runs_is_one_of_ours(key: str) -> None:
    assert exists(key)


VALUES = (-1, 0, 2, 10**6, -0.5, 1.5, "no such", [-1], {"no_such": 1})


def test_whatever_is_configured_refuses_its_own_fields_by_name() -> None:
    wrong: set[str] = set()
    for cls in known().classes:
        base = {"preset": "tiny"} if "preset" in field_names(cls) else {}
        for field in field_names(cls):
            for value in VALUES:
                for place in refused(partial(read, cls, place="P"), {**base, field: value}):
                    section, _, name = place.partition(".")
                    if section != "P" or re.split(r"[.\[]", name)[0] not in field_names(cls):
                        wrong.add(f"{cls.__name__}: {field}={value!r} is refused at '{place}'")
    assert not wrong, "\n".join(sorted(wrong))


RECIPES = [
    pytest.param("apps/embodied/config", "maniskill_ppo_mlp", read_embodied, id="embodied"),
    pytest.param("apps/reasoning/config", "grpo_arithmetic", read_reasoning, id="reasoning"),
]


@pytest.mark.parametrize(("folder", "recipe", "reader"), RECIPES)
def test_what_a_schema_refuses_it_calls_by_a_key_that_exists(folder: str, recipe: str, reader: Any) -> None:
    data = dict(compose_recipe(ROOT / folder, recipe).data)
    wrong: set[str] = set()
    for path in leaves(resolved(reader(data))):
        for value in (-1, 10**6, "no such", {"no_such": 1}):
            for place in refused(reader, replaced(data, path, value)):
                key = re.sub(r"\[\d+\]", "", place).removesuffix(".no_such")
                if not exists(key) and key not in data and path[0] not in ("sft", "cluster"):
                    wrong.add(f"{'.'.join(path)}={value!r} is refused at '{place}'")
    assert not wrong, "\n".join(sorted(wrong))


def refused(reader: Any, data: Mapping[str, Any]) -> list[str]:
    """The places of all faults."""
    try:
        reader(data)
    except ConfigError as error:
        return [fault.place for fault in each_fault(error)]
    return []


def leaves(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(typing.cast("Section", value), (*path, name))
        else:
            yield (*path, name)


def replaced(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    name, *rest = path
    below = data.get(name)
    inner = replaced(typing.cast("Section", below) if isinstance(below, Mapping) else {}, tuple(rest), value) if rest else value
    return {**data, name: inner}
