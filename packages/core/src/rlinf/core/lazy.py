"""Packages that load a name's module when the name is first asked for: one loss does not import all others."""

from __future__ import annotations

import ast
import gc
import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, whose names are those that its stub imports.

    The stub, `__init__.pyi`, is the one list of public names: type checkers read it as it is, and so does this function. It also
    becomes the package's `__all__`: without one, `from package import *` would give nothing, and say nothing.

    Args:
        package: the package's `__name__`.
        file: its `__file__`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {name.name: node.module or "" for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # so that Python asks only once
        return value

    vars(sys.modules[package])["__all__"] = sorted(modules)
    return load, lambda: sorted(modules)


def lazy_module(name: str) -> ModuleType:
    """A module that is imported when something of it is first asked for, such as `torch` by the arithmetic beside a configuration.

    Who holds it under its name holds the module itself from then on, so later calls cost nothing.

    Args:
        name: of a module without dots; importing it may take seconds.

    Raises:
        ImportError: at the first use, nobody has installed it.
    """
    return _LazyModule(name)


def import_held(module: str) -> None:
    """Imports what a module holds of `lazy_module`, where there is time for it before the first use.

    Args:
        module: its name; it is imported.
    """
    for value in list(vars(sys.modules[module]).values()):
        if isinstance(value, _LazyModule):
            import_heavy(value.__name__)


def import_heavy(name: str) -> ModuleType:
    """The module of a name, imported `without_collection`."""
    with without_collection():
        return importlib.import_module(name)


@contextmanager
def without_collection() -> Generator[None]:
    """Inside, Python looks for no garbage, for an import that takes seconds.

    Nearly all objects that an import makes stay, and Python looks at them again and again while they become more: 0.5 of 3.2 CPU-s
    for torch, and 0.3 of 1.7 for ManiSkill behind it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Of several threads that import, the first one that ends turns it on again.
        if enabled:
            gc.enable()


class _LazyModule(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        # The import system's lock makes another thread wait that asks meanwhile, so nobody sees half a module.
        module = import_heavy(self.__name__)
        # A copy, as other threads may import meanwhile.
        for holder in list(sys.modules.values()):
            if getattr(holder, "__dict__", {}).get(self.__name__) is self:
                setattr(holder, self.__name__, module)
        return getattr(module, attribute)
