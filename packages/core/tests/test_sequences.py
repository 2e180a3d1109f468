"""Sequences: bins and granularity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.data.sequences import at_granularity, first_fit_decreasing
from rlinf.core.errors import ConfigError


def test_each_goes_into_the_first_bin_with_room():
    assert first_fit_decreasing([4, 8, 1, 4, 2, 1], 10) == [[1, 4], [0, 3, 2, 5]]


def test_what_fits_nowhere_is_left_out_only_where_bins_are_limited():
    assert first_fit_decreasing([3, 3, 3], 6, bins=1) == [[0, 1]]
    assert first_fit_decreasing([9, 3], 6) == [[0], [1]]


@given(st.lists(st.integers(0, 20)), st.integers(20, 40))
def test_every_item_lies_in_one_bin_and_none_is_overfull(lengths, capacity):
    bins = first_fit_decreasing(lengths, capacity)
    assert sorted(item for one in bins for item in one) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in one) <= capacity for one in bins)


@pytest.mark.parametrize(("level", "shape"), [("token_level", (2, 3, 4, 5)), ("action_level", (2, 3, 4)), ("chunk_level", (2, 3))])
def test_parts_of_a_decision_add_up(level, shape):
    assert at_granularity(np.ones((2, 3, 4, 5)), level, axes=2).shape == shape
    assert at_granularity(np.ones((3, 4, 5)), level, axes=1).shape == shape[1:]
    assert at_granularity(np.ones((2, 3)), level, axes=2).shape == (2, 3)


def test_an_unknown_granularity_names_the_nearest():
    with pytest.raises(ConfigError, match="chunk_level"):
        at_granularity(np.ones((2, 3)), "chunks_level", axes=2)
