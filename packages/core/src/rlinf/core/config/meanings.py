"""What the fields of a configuration mean, as their docstrings say: for errors, for `--explain` and for the pages of keys."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from typing import Any, cast


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """A field as it is written: its annotation, and the docstring below it in one line ("" for none)."""

    annotation: str
    meaning: str


@functools.cache
def attributes(cls: type[Any]) -> dict[str, Attribute]:
    """The fields of a dataclass, those that it inherits too, by their names; none where its source is not at hand."""
    # A copy: what is remembered of a class is shared by all that inherit from it.
    found = dict(attributes(cls.__mro__[1])) if dataclasses.is_dataclass(cls.__mro__[1]) else {}
    try:
        node = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0])
    except (OSError, TypeError, SyntaxError):  # A class of a notebook or of `exec`; code without its source.
        return found
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(cast("Any", after).value.value) if documented else ""
            name = statement.target.id
            before = found.get(name)
            meaning = " ".join(text.split()) or (before.meaning if before else "")
            found[name] = Attribute(ast.unparse(statement.annotation), meaning)
    return found


def summary(cls: type[Any], name: str) -> str:
    """The first sentence of what a field means; "" if it says nothing."""
    attribute = attributes(cls).get(name)
    return re.split(r"(?<=\.)\s", attribute.meaning, maxsplit=1)[0] if attribute else ""
