"""Packed rows give the loss and the gradient of padded ones."""

import itertools

import numpy as np
import pytest
import torch
from engines_text import ROWS, ToyWriter, sequence_loss, text_batch, token_loss
from engines_toy import ToyPolicy, toy_batch, toy_loss
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ShapeError
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines.packing.rows import PacksRows, pack, packed_micro_batches, plan_packing, token_lengths

LENGTHS = st.lists(st.integers(0, 40), max_size=30)


def test_first_fit_decreasing_by_hand() -> None:
    assert plan_packing([8, 3, 2, 2], 16) == [PacksRows(8, ((0,), (1, 2, 3)))]
    assert plan_packing([8, 3, 2, 2], 8) == [PacksRows(8, ((0,),)), PacksRows(3, ((1,), (2,))), PacksRows(2, ((3,),))]
    assert plan_packing([0, 0], 4) == [PacksRows(1, ((0, 1),))]
    assert plan_packing([], 4) == []
    assert plan_packing([3, 9, 2], 5) == [PacksRows(9, ((1,),)), PacksRows(3, ((0,),)), PacksRows(2, ((2,),))]


@given(LENGTHS, st.integers(40, 120))
@settings(max_examples=60)
def test_every_row_is_packed_once_and_nothing_overflows(lengths, limit) -> None:
    plans = plan_packing(lengths, limit)
    assert sorted(row for plan in plans for row in plan.members) == list(range(len(lengths)))
    for plan in plans:
        assert plan.tokens <= limit
        assert all(sum(lengths[row] for row in one) <= plan.width for one in plan.bins)
    assert plans == plan_packing(lengths, limit)


def test_only_text_is_packed() -> None:
    with pytest.raises(ShapeError, match=r"expected a context with 'input_ids', found \['states'\]"):
        FSDPTrainerConfig(max_tokens_per_mbs=8).build(ToyPolicy(), rank=0, world_size=1, rendezvous="").step(
            [toy_batch()], toy_loss
        )


def test_what_a_packed_row_holds() -> None:
    batch = text_batch(((2, 3), (1, 1), (1, 2)))
    assert token_lengths(batch) == [5, 2, 3]
    packed = pack(batch, PacksRows(5, ((0,), (2, 1))))
    ids, segments = (packed.batch.trajectory.context[name] for name in ("input_ids", "segment_ids"))
    rows = batch.trajectory.context["input_ids"]
    assert ids[1].tolist() == [*rows[2, :3].tolist(), *rows[1, :2].tolist()]
    assert len(set(segments[1].tolist())) == 2
    assert packed.batch.trajectory.mask[1].tolist() == [False, True, True, False, True]
    back = packed.unpack(packed.batch.trajectory.reward)
    real = batch.trajectory.context["segment_ids"] > 0
    assert torch.equal(back, torch.where(real, batch.trajectory.reward, 0.0))


def test_rows_of_several_sequences_stay_apart_beside_each_other() -> None:
    batch = text_batch(((2, 3), (1, 4)))
    batch.trajectory.context["segment_ids"][:] = torch.tensor([[1, 1, 2, 2, 2], [1, 2, 2, 3, 3]])
    packed = pack(batch, PacksRows(10, ((0, 1),)))
    (segments,) = packed.batch.trajectory.context["segment_ids"].tolist()
    assert [len(list(run)) for _, run in itertools.groupby(segments)] == [2, 3, 1, 2, 2]
    assert len(set(segments)) == 5, "a sequence is seen by none of the other row"
    deep = torch.randn(1, 10, 3)
    assert torch.equal(packed.unpack(deep), deep.view(2, 5, 3)), "other axes stay as they are"


def trainer(limit: int | None, clip: float | None = None):
    config = FSDPTrainerConfig(OptimConfig(lr=1.0, adam_eps=1.0, clip_grad=clip), max_tokens_per_mbs=limit)
    return config.build(ToyWriter(), rank=0, world_size=1, rendezvous="")


@pytest.mark.parametrize("loss", [token_loss, sequence_loss])
@pytest.mark.parametrize(("limit", "left"), [(11, False), (24, False), (200, False), (24, True)])
def test_packed_is_padded(loss, limit, left) -> None:
    """The same loss, gradient norm and weights, whatever the limit; with losses of tokens and of whole rows."""
    padded, packed, batch = trainer(None), trainer(limit), text_batch(left=left)
    for _ in range(2):
        expected, found = padded.step([batch], loss), packed.step([batch], loss)
        for name in ("loss", "grad_norm"):
            assert found[name].mean == pytest.approx(expected[name].mean, rel=2e-6, abs=1e-6)
        assert found["loss"].weight == expected["loss"].weight
    for name, tensor in padded.weights().tensors.items():
        torch.testing.assert_close(packed.weights().tensors[name], tensor, atol=1e-6, rtol=0)


def test_evaluations_come_back_in_order() -> None:
    batch = text_batch()
    expected, found = trainer(None).evaluate(batch), trainer(11).evaluate(batch)
    real = batch.trajectory.context["segment_ids"] > 0
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.sum_pi_squared, expected.sum_pi_squared, atol=1e-6, rtol=0)
    assert bool(((found.sum_pi_squared > 0) == batch.trajectory.mask).all())
    torch.testing.assert_close(found.value[real], expected.value[real], atol=1e-6, rtol=0)


def test_a_row_of_several_sequences_and_numpy() -> None:
    batch = text_batch()
    segments = batch.trajectory.context["segment_ids"]
    segments[1, 4:10] = 2
    as_numpy = type(batch)(
        trajectory=batch.trajectory.map(np.asarray),
        credit=type(batch.credit)(advantage=batch.credit.advantage.numpy(), target=batch.credit.target.numpy()),
    )
    expected, found = trainer(None).evaluate(batch), trainer(12).evaluate(as_numpy)
    torch.testing.assert_close(found.logprob, expected.logprob, atol=1e-6, rtol=0)


def test_packing_computes_less() -> None:
    batch = text_batch()
    parts = packed_micro_batches(batch, 22)
    assert sum(part.packing.tokens for part in parts if part.packing) < 0.7 * len(ROWS) * batch.trajectory.horizon
