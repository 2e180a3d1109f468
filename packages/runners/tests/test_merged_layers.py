"""Layers of recipes are merged by hand where none refers to another value: as OmegaConf does, which Hydra merges them with."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf.runners.config import composition

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["", "x", "???"]))
KEYS = st.sampled_from("abc")
LAYERS = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3), lambda sections: st.dictionaries(KEYS, st.one_of(LEAVES, sections), max_size=3)
)


@given(LAYERS, LAYERS)
def test_as_omegaconf_merges(under: Mapping[str, Any], over: Mapping[str, Any]) -> None:
    assert composition._merged_over(under, over) == OmegaConf.to_container(OmegaConf.merge(under, over))


def test_a_list_is_replaced_and_no_layer_is_changed() -> None:
    under, over = {"a": {"b": [1, 2], "c": 1}}, {"a": {"b": [3]}}
    assert composition._merged_over(under, over) == {"a": {"b": [3], "c": 1}}
    assert (under, over) == ({"a": {"b": [1, 2], "c": 1}}, {"a": {"b": [3]}})
