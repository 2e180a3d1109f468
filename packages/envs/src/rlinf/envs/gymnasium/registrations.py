"""Which environments a package registers with Gymnasium, read from its source: importing it would load its simulator."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

Texts = Mapping[str, Sequence[str]]
"""What each name may stand for."""


@lru_cache
def registered_by(module: str) -> Mapping[str, int | None] | None:
    """The ids that a module registers where it calls `register`, and the step limit of each.

    Ids may be texts, or f-strings of names that stand for texts (`for version in ["v4", "v5"]`, `suffix = "Dense" if … else ""`).

    Args:
        module: its dotted name; parents are imported to find it.

    Returns:
        By id; the limit is None where the call names none, or an expression. None in place of all if there is no source, no such
        call, or one that can't be read: then only an import knows.
    """
    found = find_spec(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    ids: dict[str, int | None] = {}
    read = 0
    for call, texts in _calls(tree.body, {}):
        read += 1
        arguments = {item.arg: item.value for item in call.keywords}
        named = _values(arguments.get("id", call.args[0] if call.args else None), texts)
        if not named:
            return None
        limit = arguments.get("max_episode_steps")
        ids |= dict.fromkeys(named, limit.value if isinstance(limit, ast.Constant) and isinstance(limit.value, int) else None)
    # A call that was not read, as within an expression, may register more: then the list would not be all.
    return ids if read and read == sum(_registers(node) for node in ast.walk(tree)) else None


def _registers(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="register") | ast.Attribute(attr="register")):
            return True
        case _:
            return False


def _calls(statements: Sequence[ast.stmt], texts: Texts) -> Iterator[tuple[ast.Call, Texts]]:
    """The calls of `register` that are statements, each with what names stand for there."""
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Call() as call) if _registers(call):
                yield call, texts
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                texts = {**texts, name: _values(value, texts)}
            case ast.For(target=ast.Name(id=name), iter=ast.List(elts=items) | ast.Tuple(elts=items), body=body):
                values = [_values(item, texts) for item in items]
                yield from _calls(body, {**texts, name: [text for found in values for text in found] if all(values) else []})
            case ast.FunctionDef(body=body) | ast.For(body=body) | ast.With(body=body):
                yield from _calls(body, texts)
            case ast.If(body=body, orelse=other) | ast.Try(body=body, orelse=other):
                yield from _calls([*body, *other], texts)
            case _:
                pass


def _values(node: ast.expr | None, texts: Texts) -> Sequence[str]:
    """The texts that an expression may be; none of one that may be something else."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.IfExp(body=body, orelse=other):
            one, two = _values(body, texts), _values(other, texts)
            return [*one, *two] if one and two else []
        case ast.Name(id=name):
            return texts.get(name, [])
        case ast.FormattedValue(value=value):
            return _values(value, texts)
        case ast.JoinedStr(values=parts):
            return ["".join(chosen) for chosen in product(*(_values(part, texts) for part in parts))]
        case _:
            return []
