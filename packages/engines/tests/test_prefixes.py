"""Branches that begin alike, computed as a tree, give what they give one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engines_text import ToyWriter, sequence_loss, text_batch, token_loss
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.data import Batch
from rlinf.core.errors import ConfigError
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines.packing.prefixes import PrefixTree, prefix_trees, seen_until, tree_places
from rlinf.engines.packing.rows import packed_micro_batches

ROWS = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=8)


def keys(*texts: str) -> list[Any]:
    return [np.frombuffer(text.encode(), np.uint8).astype(np.int64) for text in texts]


def test_trees_by_hand() -> None:
    rows = keys("ppaab", "ppc", "q", "ppaac")
    assert prefix_trees(rows, 99) == [PrefixTree((0, 3, 1), (0, 4, 2), 5 + 1 + 1), PrefixTree((2,), (0,), 1)]
    assert prefix_trees(rows, 6) == [PrefixTree((0, 3), (0, 4), 6), PrefixTree((1,), (0,), 3), PrefixTree((2,), (0,), 1)]
    assert prefix_trees(keys("aaaa", "aaaa"), 2) == [PrefixTree((0,), (0,), 4), PrefixTree((1,), (0,), 4)], "longer ones go alone"
    assert prefix_trees(keys("aa", "aa", ""), 9) == [PrefixTree((2,), (0,), 0), PrefixTree((0, 1), (0, 2), 2)]
    assert prefix_trees([], 9) == []


def test_who_sees_whom_by_hand() -> None:
    """pp, of which go on aab (with a branch c behind aa) and c; then another tree, and a column of padding."""
    shared = (0, 4, 2, 0)
    places = tree_places([5, 5, 3, 1], shared)
    assert [place.tolist() for place in places] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 6], [7]]
    assert seen_until(places, shared, 9).tolist() == [7, 7, 6, 6, 5, 6, 7, 8, 9]


@given(ROWS, st.integers(1, 30))
@settings(max_examples=60)
def test_each_column_sees_its_own_row_up_to_itself(rows: list[list[int]], limit: int) -> None:
    found = [np.asarray(row, np.int64) for row in rows]
    trees = prefix_trees(found, limit)
    assert sorted(row for tree in trees for row in tree.rows) == list(range(len(rows)))
    lengths = [len(found[row]) for tree in trees for row in tree.rows]
    shared = [common for tree in trees for common in tree.shared]
    places = tree_places(lengths, shared)
    width = sum(tree.tokens for tree in trees) + 1
    until = seen_until(places, shared, width)
    order = [row for tree in trees for row in tree.rows]
    held: dict[int, int] = {}
    for row, place in zip(order, places, strict=True):
        held.update(zip(place.tolist(), found[row].tolist(), strict=True))
    assert len(held) == width - 1, "every column holds something, but the last one"
    for place, row in zip(places, order, strict=True):
        assert [held[int(column)] for column in place] == found[row].tolist()
        for depth, column in enumerate(place):
            seen = [j for j in range(column + 1) if column < until[j]]
            assert seen == place[: depth + 1].tolist()


def branching() -> Batch[Any]:
    """Three branches of one conversation, with turns in between that only the first of them is trained on, and two other rows."""
    batch = text_batch(((4, 9), (4, 9), (4, 6), (3, 4), (1, 9)))
    t = batch.trajectory
    ids, action, mask = t.context["input_ids"], t.action, t.mask
    for row, common in ((1, 9), (2, 6)):
        ids[row, :common], action[row, :common] = ids[0, :common], action[0, :common]
        mask[row, : common - 1] = False
    # What they decide next is another token, though they have read the same.
    ids[1, 9] = ids[0, 9]
    action[1, 9] = (action[0, 9] + 1) % 11
    return batch


def trainer(**config: Any) -> Any:
    made = FSDPTrainerConfig(OptimConfig(lr=1.0, adam_eps=1.0, clip_grad=None), **config)
    return made.build(ToyWriter(), rank=0, world_size=1, rendezvous="")


def test_columns_are_computed_once() -> None:
    (part,) = packed_micro_batches(branching(), 200, share_prefixes=True)
    assert part.packing is not None
    assert part.packing.saved == 9 + 6
    (apart,) = packed_micro_batches(branching(), 200)
    assert apart.packing is not None
    assert apart.packing.saved == 0


@pytest.mark.parametrize("limit", [16, 24, 200])
@pytest.mark.parametrize("loss", [token_loss, sequence_loss])
def test_a_tree_gives_the_loss_and_the_gradient_of_its_rows(loss: Any, limit: int) -> None:
    padded, shared, batch = trainer(), trainer(max_tokens_per_mbs=limit, share_prefixes=True), branching()
    for _ in range(2):
        expected, found = padded.step([batch], loss), shared.step([batch], loss)
        for name in ("loss", "grad_norm"):
            assert found[name].mean == pytest.approx(expected[name].mean, abs=1e-6)
    for name, tensor in padded.weights().tensors.items():
        torch.testing.assert_close(shared.weights().tensors[name], tensor, atol=1e-6, rtol=0)
    if limit == 200:
        assert found["shared_tokens"].mean == pytest.approx(15 / sum((13, 13, 10, 7, 10)))


def test_scores_come_back_to_their_rows() -> None:
    batch = branching()
    expected, found = trainer().evaluate(batch), trainer(max_tokens_per_mbs=200, share_prefixes=True).evaluate(batch)
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-6, rtol=0)
    assert not found.logprob[~batch.trajectory.mask].any(), "a branch says nothing of the turns that it inherits"
    real = batch.trajectory.context["segment_ids"] > 0
    torch.testing.assert_close(found.value[real], expected.value[real], atol=1e-6, rtol=0)


def test_rows_of_several_sequences_are_not_shared() -> None:
    batch = branching()
    batch.trajectory.context["segment_ids"][0, 5:] *= 2
    assert all(
        part.packing is not None and part.packing.shared is None for part in packed_micro_batches(batch, 99, share_prefixes=True)
    )
    expected, found = trainer().evaluate(batch), trainer(max_tokens_per_mbs=99, share_prefixes=True).evaluate(batch)
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-6, rtol=0)


def test_what_can_not_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="share_prefixes: expected max_tokens_per_mbs"):
        FSDPTrainerConfig(share_prefixes=True)
    blind = ToyWriter()
    blind.sees_trees = False
    config = replace(FSDPTrainerConfig(max_tokens_per_mbs=9), share_prefixes=True)
    with pytest.raises(ConfigError, match="attention of this ToyWriter can't be told"):
        config.build(blind, rank=0, world_size=1, rendezvous="")
