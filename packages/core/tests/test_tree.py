"""Trees of arrays, with NumPy and, where it is installed, torch."""

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.data.arrays import Array, as_numpy, concatenate, is_tensor
from rlinf.core.data.tree import tree_combine, tree_concatenate, tree_index, tree_leaves, tree_map

LEAVES = st.integers(-5, 5)
TREES: Any = st.recursive(LEAVES, lambda children: st.dictionaries(st.sampled_from("abcd"), children, min_size=1), max_leaves=8)

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_map_keeps_structure() -> None:
    assert tree_map(lambda x: x + 1, {"b": 1, "a": {"c": 2}}) == {"b": 2, "a": {"c": 3}}
    assert list(tree_map(lambda x: x, {"b": 1, "a": 2})) == ["b", "a"]
    assert tree_map(lambda x: x + 1, 3) == 4


def test_leaves_have_dotted_paths_in_sorted_order() -> None:
    assert list(tree_leaves({"b": 1, "a": {"d": 2, "c": 3}})) == [("a.c", 3), ("a.d", 2), ("b", 1)]
    assert list(tree_leaves(7)) == [("", 7)]


def test_combine_gives_corresponding_leaves() -> None:
    assert tree_combine(sum, [{"a": 1, "b": {"c": 2}}, {"b": {"c": 20}, "a": 10}]) == {"a": 11, "b": {"c": 22}}


@given(TREES)
def test_map_of_identity_is_identity(tree: Any) -> None:
    assert tree_map(lambda x: x, tree) == tree


@given(TREES)
def test_map_and_leaves_agree(tree: Any) -> None:
    doubled = tree_map(lambda x: 2 * x, tree)
    assert list(tree_leaves(doubled)) == [(path, 2 * leaf) for path, leaf in tree_leaves(tree)]


def test_concatenate_and_index_are_inverse() -> None:
    first = {"states": np.arange(6.0).reshape(3, 2), "deep": {"x": np.arange(3)}}
    second = {"states": np.ones((1, 2)), "deep": {"x": np.array([9])}}
    joined: Any = tree_concatenate([first, second])
    assert joined["states"].shape == (4, 2)
    assert joined["deep"]["x"].tolist() == [0, 1, 2, 9]
    back: Any = tree_index(joined, slice(0, 3))
    np.testing.assert_array_equal(back["states"], first["states"])


def test_numpy_is_an_array_and_no_tensor() -> None:
    assert isinstance(np.zeros(2), Array)
    assert not is_tensor(np.zeros(2))
    assert as_numpy([1, 2]).tolist() == [1, 2]


@needs_torch
def test_tensors_stay_tensors() -> None:
    import torch

    joined = concatenate([torch.zeros(1, 2), torch.ones(2, 2, requires_grad=True)])
    assert is_tensor(joined)
    assert joined.requires_grad
    assert as_numpy(joined).tolist() == [[0, 0], [1, 1], [1, 1]]
