"""Trajectories and batches: shapes, groups, padding, decisions; with NumPy and, where it is installed, torch."""

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core import Batch, Credit, Decision, Trajectory
from rlinf.core.data.arrays import as_numpy, is_tensor
from rlinf.core.errors import ShapeError

Convert = Callable[[Any], Any]


def torch_tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


HAS_TORCH = importlib.util.find_spec("torch") is not None
KINDS = [
    pytest.param(np.asarray, id="numpy"),
    pytest.param(torch_tensor, id="torch", marks=pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")),
]


def make(group: Sequence[int], horizon: int = 3, *, value: bool = True, seed: int = 0) -> Trajectory[Any]:
    """A trajectory whose arrays are all different, so that a mixed-up field or row shows."""
    rng = np.random.default_rng(seed)
    rows = len(group)
    return Trajectory(
        context={"states": rng.normal(size=(rows, horizon, 4)), "images": {"main": rng.integers(0, 255, (rows, horizon, 2, 2))}},
        action=rng.normal(size=(rows, horizon, 2, 3)),
        logprob=rng.normal(size=(rows, horizon)),
        reward=rng.normal(size=(rows, horizon)),
        terminated=rng.random((rows, horizon)) < 0.2,
        truncated=rng.random((rows, horizon)) < 0.2,
        mask=np.ones((rows, horizon), dtype=bool),
        version=rng.integers(0, 9, (rows, horizon)),
        group=np.asarray(group, dtype=np.int64),
        task=np.arange(rows),
        value=rng.normal(size=(rows, horizon + 1)) if value else None,
        observation=rng.integers(0, 255, (rows, horizon + 1, 2)) if value else None,
        baseline=rng.normal(size=rows) if value else None,
    )


def same(a: Trajectory[Any], b: Trajectory[Any]) -> None:
    """Asserts that two trajectories hold the same numbers."""
    for field in dataclasses.fields(Trajectory):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "context":
            np.testing.assert_array_equal(as_numpy(left["states"]), as_numpy(right["states"]))
            np.testing.assert_array_equal(as_numpy(left["images"]["main"]), as_numpy(right["images"]["main"]))
        elif left is None:
            assert right is None
        else:
            np.testing.assert_array_equal(as_numpy(left), as_numpy(right))


def test_sizes() -> None:
    trajectory = make([0, 0, 1], horizon=5)
    assert len(trajectory) == 3
    assert trajectory.horizon == 5


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("terminated", (2, 4)),
        ("truncated", (3, 3)),
        ("mask", (2,)),
        ("version", (3, 2)),
        ("action", (2, 4, 2, 3)),
        ("logprob", (3, 3)),
        ("group", (3,)),
        ("task", (1,)),
        ("baseline", (2, 3)),
        ("sum_pi_squared", (2,)),
    ],
)
def test_a_field_of_another_shape_is_named(field: str, shape: tuple[int, ...]) -> None:
    good = make([0, 1], horizon=3)
    with pytest.raises(ShapeError, match=rf"^Trajectory\.{field}: expected"):
        dataclasses.replace(good, **{field: np.zeros(shape)})


@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (3, 4)])
def test_value_has_one_column_more(shape: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match=r"Trajectory\.value: expected \[B, T \+ 1\] = \(2, 4\)"):
        dataclasses.replace(make([0, 1]), value=np.zeros(shape))


def test_a_context_of_another_shape_is_named_by_its_path() -> None:
    with pytest.raises(ShapeError, match=r"Trajectory\.context\.images\.main"):
        dataclasses.replace(make([0, 1]), context={"images": {"main": np.zeros((2, 2, 8))}})


@pytest.mark.parametrize("kind", KINDS)
def test_rows(kind: Convert) -> None:
    trajectory = make([4, 5, 6]).map(kind)
    picked = trajectory.rows(np.array([2, 0]))
    assert as_numpy(picked.group).tolist() == [6, 4]
    np.testing.assert_array_equal(as_numpy(picked.context["images"]["main"])[0], as_numpy(trajectory.context["images"]["main"])[2])
    assert is_tensor(picked.reward) == is_tensor(trajectory.reward)


@pytest.mark.parametrize("kind", KINDS)
def test_split_by_hand(kind: Convert) -> None:
    parts = make([7, 3, 7, 1, 3]).map(kind).split(2)
    assert [as_numpy(part.group).tolist() for part in parts] == [[7, 3, 7, 3], [1]]
    assert [as_numpy(part.task).tolist() for part in parts] == [[0, 1, 2, 4], [3]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 6))
def test_split_loses_nothing_and_parts_no_group(group: list[int], parts: int) -> None:
    trajectory = make(group, horizon=2)
    pieces = trajectory.split(parts)
    assert len(pieces) == parts
    assert sorted(task for piece in pieces for task in piece.task.tolist()) == list(range(len(group)))
    owners = [set(piece.group.tolist()) for piece in pieces]
    assert sum(len(owner) for owner in owners) == len(set(group))
    sizes = [len(owner) for owner in owners]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [True, False])
def test_concat_undoes_rows(kind: Convert, value: bool) -> None:
    trajectory = make([0, 1, 2, 3], value=value).map(kind)
    same(Trajectory.concat([trajectory.rows(slice(0, 1)), trajectory.rows(slice(1, 4))]), trajectory)


@pytest.mark.parametrize("kind", KINDS)
def test_concat_pads_a_shorter_horizon_with_masked_columns(kind: Convert) -> None:
    short, long = make([0], horizon=1).map(kind), make([1], horizon=3, seed=1).map(kind)
    joined = Trajectory.concat([short, long])
    assert joined.horizon == 3
    assert as_numpy(joined.mask).tolist() == [[True, False, False], [True, True, True]]
    assert as_numpy(joined.reward)[0, 1:].tolist() == [0.0, 0.0]
    assert not as_numpy(joined.terminated)[0, 1:].any()
    for name in ("value", "observation"):
        wide = as_numpy(getattr(joined, name))
        np.testing.assert_array_equal(wide[0, :2], as_numpy(getattr(short, name))[0])
        assert wide.shape[:2] == (2, 4)
    same(joined.rows(slice(1, 2)), long)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_zero_whatever_it_follows(kind: Convert) -> None:
    short = make([0], horizon=1)
    short = dataclasses.replace(short, reward=np.full((1, 1), np.inf), logprob=np.full((1, 1), -np.inf, np.float32)).map(kind)
    joined = Trajectory.concat([short, make([1], horizon=3, seed=1).map(kind)])
    assert as_numpy(joined.reward)[0].tolist() == [np.inf, 0.0, 0.0]
    assert as_numpy(joined.logprob)[0].tolist() == [-np.inf, 0.0, 0.0]


def test_concat_of_nothing_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected at least one trajectory"):
        Trajectory.concat([])


def batch(group: Sequence[int], horizon: int = 3) -> Batch[Any]:
    trajectory = make(group, horizon)
    return Batch(trajectory=trajectory, credit=Credit(advantage=trajectory.reward * 2, target=trajectory.reward * 3))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_micro_batches_cover_all_rows_in_order(size: int) -> None:
    whole = batch(range(5))
    parts = list(whole.micro_batches(size))
    assert all(0 < len(part) <= size for part in parts)
    assert [task for part in parts for task in part.trajectory.task.tolist()] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(np.concatenate([part.credit.target for part in parts]), whole.credit.target)


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_by_hand(kind: Convert) -> None:
    trajectory = make([5, 6], horizon=2)
    trajectory = dataclasses.replace(trajectory, mask=np.array([[True, False], [True, True]])).map(kind)
    flat = Batch(trajectory=trajectory, credit=Credit(advantage=trajectory.reward)).decisions()
    t = flat.trajectory
    assert (len(flat), t.horizon) == (3, 1)
    assert as_numpy(t.group).tolist() == [5, 6, 6]
    reward, value = as_numpy(trajectory.reward), as_numpy(trajectory.value)
    assert as_numpy(t.reward)[:, 0].tolist() == [reward[0, 0], reward[1, 0], reward[1, 1]]
    assert as_numpy(t.value).tolist() == [value[0, 0:2].tolist(), value[1, 0:2].tolist(), value[1, 1:3].tolist()]
    np.testing.assert_array_equal(as_numpy(flat.credit.advantage), as_numpy(t.reward))
    assert flat.credit.target is None
    assert as_numpy(t.context["states"]).shape == (3, 1, 4)
    assert as_numpy(t.mask).all()


def test_decisions_of_a_masked_batch_are_none() -> None:
    whole = batch([0, 1])
    hidden = dataclasses.replace(whole.trajectory, mask=np.zeros((2, 3), dtype=bool))
    assert len(Batch(trajectory=hidden, credit=whole.credit).decisions()) == 0


def test_map_does_not_touch_its_input() -> None:
    trajectory = make([0, 1])
    before = trajectory.reward.copy()
    trajectory.map(lambda array: array * 0)
    np.testing.assert_array_equal(trajectory.reward, before)


@pytest.mark.parametrize("as_array", KINDS)
def test_what_is_given_is_there(as_array: Any) -> None:
    """Every field can be given."""
    given = {name: as_array(field) if isinstance(field, np.ndarray) else field for name, field in _all_fields().items()}
    found = Trajectory.of(**given)
    assert all(getattr(found, name) is field for name, field in given.items())


def _all_fields() -> dict[str, Any]:
    whole = make([0, 1])
    held = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    flags, numbers = np.ones(whole.reward.shape, bool), np.ones(whole.reward.shape, np.float32)
    return held | {
        "intervened": flags,
        "reference": numbers,
        "proximal": numbers,
        "sum_pi_squared": numbers,
        "episode": whole.group,
        "baseline": numbers[:, 0],
        "context": {},
        "observation": {},
    }


@pytest.mark.parametrize("as_array", KINDS)
def test_what_is_not_given_is_nothing(as_array: Any) -> None:
    trajectory = Trajectory.of(
        context={"states": as_array(np.ones((2, 3, 4)))},
        action=as_array(np.ones((2, 3, 1, 1))),
        logprob=as_array(np.ones((2, 3))),
        group=as_array(np.array([7, 7])),
    )
    assert type(trajectory.task) is type(trajectory.mask) is type(trajectory.action)
    assert as_numpy(trajectory.mask).all()
    assert not as_numpy(trajectory.terminated | trajectory.truncated).any()
    assert as_numpy(trajectory.group).tolist() == [7, 7]
    assert trajectory.value is None


@pytest.mark.parametrize("as_array", KINDS)
def test_decisions_in_a_row_become_columns(as_array: Any) -> None:
    decisions = [
        Decision(
            action=as_array(np.full((2, 1, 1), float(step))),
            logprob=as_array(np.full(2, -float(step))),
            context={"a": {"b": as_array(np.full((2, 3), step))}},
            version=step,
        )
        for step in range(3)
    ]
    trajectory = Trajectory.of_decisions(decisions)
    assert as_numpy(trajectory.action)[1, :, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert as_numpy(trajectory.version).tolist() == [[0, 1, 2]] * 2
    context: Any = trajectory.context
    assert context["a"]["b"].shape == (2, 3, 3)


def test_columns_keep_the_value_after_the_last() -> None:
    whole = make([0, 1], horizon=3)
    cut = Batch.of(whole, whole.reward, whole.reward).columns(2)
    assert cut.trajectory.horizon == 2
    np.testing.assert_array_equal(as_numpy(cut.trajectory.value), as_numpy(whole.value)[:, :3])
    np.testing.assert_array_equal(as_numpy(cut.credit.target), as_numpy(whole.reward)[:, :2])
    assert not as_numpy(Batch.of(whole).credit.advantage).any()
