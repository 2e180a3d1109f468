"""Packages that load a name's module when the name is first asked for: one loss does not import all others."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, whose names are those that its stub imports.

    The stub, `__init__.pyi`, is the one list of public names: type checkers read it as it is, and so does this function.

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

    return load, lambda: sorted(modules)
