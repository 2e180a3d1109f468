"""A group of two by hand, column by column, and what happens to it on its way through the trainer."""

from typing import Any

import numpy as np
import pytest
import torch

from rlinf.core.data import Batch, Completion, Credit, Trajectory
from rlinf.core.errors import ShapeError
from rlinf.core.language.problems import ShownPrompt
from rlinf.runners.reasoning.actor_worker import with_values
from rlinf.runners.reasoning.rows import group_rows
from rlinf.runners.reasoning.scoring import pieces, trimmed, widths
from rlinf.runners.training.tensors import to_torch


def completion(tokens: list[int], finish: Any = "stop", version: int = 4) -> Completion[Any]:
    logprob = -0.1 * np.asarray(tokens, np.float32)
    return Completion(tokens=np.asarray(tokens), logprob=logprob, version=np.full(len(tokens), version), finish=finish)


def text(*tokens: int) -> ShownPrompt:
    return ShownPrompt(tokens=tokens, at=np.zeros(0, np.int64), shown={})


@pytest.fixture
def rows() -> Trajectory[Any]:
    return group_rows(text(7, 8), [completion([5, 2]), completion([6, 6, 6], "length")], [1.0, 0.5], group=11, pad_id=0)


def test_a_column_has_seen_what_came_before_and_decides_what_comes_next(rows: Trajectory[Any]) -> None:
    context: Any = rows.context
    assert context["input_ids"].tolist() == [[7, 8, 5, 0], [7, 8, 6, 6]]
    assert context["segment_ids"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert rows.action[..., 0, 0].tolist() == [[8, 5, 2, 0], [8, 6, 6, 6]]
    assert rows.mask.tolist() == [[False, True, True, False], [False, True, True, True]]
    assert rows.logprob == pytest.approx(np.array([[0, -0.5, -0.2, 0], [0, -0.6, -0.6, -0.6]]))
    assert rows.version.tolist() == [[0, 4, 4, 0], [0, 4, 4, 4]]
    assert rows.reward.tolist() == [[0, 0, 1.0, 0], [0, 0, 0, 0.5]]
    assert rows.terminated.tolist() == [[False, False, True, False], [False] * 4]
    assert rows.truncated.tolist() == [[False] * 4, [False, False, False, True]]
    assert rows.group.tolist() == [11, 11]


def test_a_response_without_tokens_decides_nothing() -> None:
    rows = group_rows(text(7), [completion([], "abort"), completion([3])], [1.0, 0.0], group=0, pad_id=0)
    assert rows.mask.tolist() == [[False], [True]]
    assert rows.reward.tolist() == [[0.0], [0.0]]


def test_what_a_prompt_shows_stands_at_its_columns() -> None:
    patches = np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)
    prompt = ShownPrompt(tokens=(7, 3, 3, 8), at=np.array([1, 2]), shown={"patches": patches})
    rows = group_rows(prompt, [completion([5]), completion([6, 6])], [1.0, 0.5], group=0, pad_id=0)
    context: Any = rows.context
    expected = [[0, 0], [1.5, 2.5], [3.5, 4.5], [0, 0], [0, 0]]
    assert context["patches"].tolist() == [expected, expected]
    assert context["patches"].dtype == np.float32
    batch = Batch(trajectory=rows.map(to_torch), credit=Credit(advantage=torch.zeros(2, 5)))
    part: Any = trimmed(batch, np.array([0]), widths(batch.trajectory)).trajectory
    assert part.context["patches"].tolist() == [expected[:4]]


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ShapeError, match="1 completions and 0 rewards"):
        group_rows(text(7), [completion([3])], [], group=0, pad_id=0)
    with pytest.raises(ShapeError, match="a prompt of 0 tokens"):
        group_rows(text(), [completion([3])], [1.0], group=0, pad_id=0)


def test_a_critic_values_what_each_column_has_seen_and_nothing_after_the_end(rows: Trajectory[Any]) -> None:
    value = torch.arange(8.0).view(2, 4) + 1
    found = with_values(rows.map(to_torch), value)
    assert found.value is not None
    assert found.value.tolist() == [[0, 2, 3, 0, 0], [0, 6, 7, 8, 0]]


def test_pieces_hold_rows_of_like_width_and_no_more_than_allowed() -> None:
    width = np.array([5, 1, 9, 3, 3, 20])
    everything = np.arange(6)
    assert [p.tolist() for p in pieces(everything, width, size=2, tokens=None)] == [[1, 3], [4, 0], [2, 5]]
    assert [p.tolist() for p in pieces(everything, width, size=None, tokens=10)] == [[1, 3, 4], [0], [2], [5]]
    assert [p.tolist() for p in pieces(np.array([5, 0]), width, size=None, tokens=None)] == [[0, 5]]


def test_a_piece_keeps_its_rows_and_loses_only_padding(rows: Trajectory[Any]) -> None:
    tensors = with_values(rows.map(to_torch), torch.ones(2, 4))
    batch = Batch(trajectory=tensors, credit=Credit(advantage=torch.arange(8.0).view(2, 4)))
    assert widths(tensors).tolist() == [3, 4]
    part = trimmed(batch, np.array([0]), widths(tensors))
    assert part.trajectory.mask.tolist() == [[False, True, True]]
    assert part.trajectory.value is not None
    assert part.trajectory.value.shape == (1, 4)
    assert part.credit.advantage.tolist() == [[0, 1, 2]]
    assert int(part.trajectory.mask.sum()) == int(tensors.mask[0].sum())
