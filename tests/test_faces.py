"""The public names of each part against the approved lists in `tests/faces/`.

A name that appears or goes is a decision: look at the difference, then approve it with `nox -s law -- --approve`.
"""

import importlib
import inspect
from enum import EnumType
from pathlib import Path
from types import ModuleType

import pytest

FACES = Path(__file__).parent / "faces"
PARTS = (
    "core",
    "core.agents",
    "core.replay",
    "scheduler",
    "scheduler.lending",
    "scheduler.planner",
    "algorithms",
    "algorithms.objectives",
    "algorithms.off_policy",
    "algorithms.rewards",
    "models",
    "models.checkpoints",
    "models.flow",
    "models.heads",
    "models.language",
    "models.lora",
    "models.reward_models",
    "envs",
    "envs.knowledge",
    "envs.sandbox",
    "envs.tasks",
    "envs.tools",
    "engines",
    "engines.endpoint",
    "engines.generation",
    "engines.guards",
    "engines.weight_sync",
    "runners",
    "runners.agent",
    "runners.reasoning",
    "runners.sft",
)


def face(module: ModuleType) -> list[str]:
    """One line for each public name: functions and classes with their parameters, other values by name."""
    names = [(name, getattr(module, name)) for name in dir(module)]  # `dir` also has what a package loads lazily
    return [describe(name, value) for name, value in names if is_public(name, value)]


def is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"


def describe(name: str, value: object) -> str:
    kind = "class" if inspect.isclass(value) else "def" if callable(value) else "value"
    if kind == "value":
        return f"value {name}"
    if isinstance(value, EnumType):  # the parameters of its call differ from one Python to the next
        return f"class {name}: {', '.join(value.__members__)}"
    try:
        parameters = [*inspect.signature(value).parameters.values()]  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return f"{kind} {name}"
    if isinstance(value, type) and depth(value, "__init__") < depth(value, "__new__") < len(value.__mro__) - 1:
        # The first Pythons 3.11 read a `__new__` though a nearer class has an `__init__`.
        parameters = [*inspect.signature(value.__init__).parameters.values()][1:]
    return f"{kind} {name}({', '.join(map(parameter, parameters))})"


def depth(value: type, method: str) -> int:
    """How far up the bases of a class the one is that defines a method."""
    return next(i for i, base in enumerate(value.__mro__) if method in vars(base))


def parameter(p: inspect.Parameter) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    return f"{star}{p.name}{'=…' if p.default is not p.empty else ''}"


@pytest.mark.parametrize("part", PARTS)
def test_face(part: str, request: pytest.FixtureRequest) -> None:
    found = "\n".join(face(importlib.import_module(f"rlinf.{part}"))) + "\n"
    approved = FACES / f"{part}.txt"
    if request.config.getoption("--approve"):
        approved.write_text(found, encoding="utf-8")
    expected = approved.read_text(encoding="utf-8") if approved.exists() else ""
    new = sorted(set(found.splitlines()) - set(expected.splitlines()))
    gone = sorted(set(expected.splitlines()) - set(found.splitlines()))
    lines = [*(f"  + {line}" for line in new), *(f"  - {line}" for line in gone)]
    assert not lines, f"rlinf.{part} has other public names than approved. If you mean it: nox -s law -- --approve\n" + "\n".join(
        lines
    )
