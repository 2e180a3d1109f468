"""Trees of arrays: an array, or a mapping of trees. Observations and the context of a decision are trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from rlinf.core.data.arrays import Array, concatenate

X = TypeVar("X")
Y = TypeVar("Y")

Tree: TypeAlias = "X | Mapping[str, Tree[X]]"
"""An array, or a mapping of trees of arrays."""


def tree_map(function: Callable[[X], Y], tree: Tree[X]) -> Tree[Y]:
    """The tree with `function` applied to every leaf; keys keep their order."""
    if isinstance(tree, Mapping):
        branches = cast("Mapping[str, Tree[X]]", tree)
        return {key: tree_map(function, branch) for key, branch in branches.items()}
    return function(tree)


def tree_leaves(tree: Tree[X], path: str = "") -> Iterator[tuple[str, X]]:
    """Pairs of dotted path and leaf, in sorted order of keys."""
    if isinstance(tree, Mapping):
        branches = cast("Mapping[str, Tree[X]]", tree)
        for key in sorted(branches):
            yield from tree_leaves(branches[key], f"{path}.{key}" if path else key)
    else:
        yield path, tree


def tree_combine(function: Callable[[Sequence[X]], Y], trees: Sequence[Tree[X]]) -> Tree[Y]:
    """One tree from several of the same structure: `function` gets the corresponding leaves."""
    first = trees[0]
    if isinstance(first, Mapping):
        branches = cast("Sequence[Mapping[str, Tree[X]]]", trees)
        return {key: tree_combine(function, [b[key] for b in branches]) for key in branches[0]}
    return function(cast("Sequence[X]", trees))


def tree_concatenate(trees: Sequence[Tree[Any]]) -> Tree[Any]:
    """Joins trees of arrays along axis 0."""
    return tree_combine(concatenate, trees)


def tree_index(tree: Tree[Any], key: Any) -> Tree[Any]:
    """Every leaf indexed by the same key."""

    def pick(leaf: Array) -> Any:
        return leaf[key]

    return tree_map(pick, tree)
