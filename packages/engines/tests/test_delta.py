"""Patches: positions, bits, and what goes over the wire."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_sync_toy import ToyNetwork, exchange_at

from rlinf.core import Weights
from rlinf.core.errors import WeightSyncError
from rlinf.engines.weight_sync import PatchWeightSync
from rlinf.engines.weight_sync.delta import Delta, apply, changed_positions, decode_positions, delta, encode_positions
from rlinf.engines.weight_sync.messages import Part
from rlinf.engines.weights.checksum import checksum, checksums

KINDS = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.float8_e4m3fn, torch.complex128]


@pytest.mark.parametrize(
    ("positions", "codes"),
    [
        ([], []),
        ([0, 1, 5], [0, 0, 3]),
        ([254], [254]),
        ([255], [255, 0]),
        ([256], [255, 1]),
        ([0, 510], [0, 255, 254]),
        ([*range(4), 769], [0, 0, 0, 0, 255, 255, 255, 0]),
    ],
)
def test_gaps_by_hand(positions, codes):
    found = encode_positions(np.array(positions, np.int64))
    assert found.dtype == np.uint8
    assert found.tolist() == codes
    assert decode_positions(found).tolist() == positions


def test_the_smallest_type():
    far = np.arange(1, 60) * 3000
    assert encode_positions(far).dtype == np.uint16
    assert encode_positions(far * 10**6).dtype == np.uint32
    near = np.concatenate([np.arange(5000), [8000]])  # one long gap is cheaper as eleven bytes than all as two each
    assert encode_positions(near).dtype == np.uint8
    assert encode_positions(near).size == 5001 + 11


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2**36), unique=True, max_size=50))
def test_positions_come_back(positions):
    positions = np.array(sorted(positions), np.int64)
    step = max(1, int(positions[-1]) // 10**6) if positions.size else 1  # not millions of codes
    positions = np.unique(positions // step)
    assert np.array_equal(decode_positions(encode_positions(positions)), positions)


@settings(max_examples=200)
@given(st.sampled_from(KINDS), st.binary(max_size=40), st.data())
def test_patches_come_back_to_the_bit(kind, raw, data):
    """Any bits, so infinities, NaNs with payloads and both zeros too."""
    size = kind.itemsize
    count = len(raw) // size
    old = torch.tensor(list(raw[: count * size]), dtype=torch.uint8).view(kind)
    new = old.clone()
    for place in data.draw(st.lists(st.integers(0, count - 1), max_size=4)) if count else []:
        bits = data.draw(st.binary(min_size=size, max_size=size))
        new[place] = torch.tensor(list(bits), dtype=torch.uint8).view(kind)[0]
    before = checksum(old)
    assert checksum(apply(delta(old, new), old, "here")) == checksum(new)
    assert checksum(old) == before


def test_positions_are_those_that_numpy_finds():
    """What a GPU looks for by torch, seen on the CPU."""
    before, after = torch.tensor([3, 0, -1, 7, 7]), torch.tensor([3, 1, -1, 7, 8])
    assert changed_positions(before, after).tolist() == np.flatnonzero(before.numpy() != after.numpy()).tolist() == [1, 4]
    assert changed_positions(before, before).tolist() == []


def test_zeros_and_nans():
    old = torch.tensor([0.0, float("nan"), 1.0])
    new = torch.tensor([-0.0, float("nan"), 1.0])
    change = delta(old, new)
    assert decode_positions(change.codes).tolist() == [0]
    assert change.values.tolist() == [torch.iinfo(torch.int32).min]


def test_a_patch_of_another_tensor_is_refused():
    for change in (delta(torch.zeros(9), torch.ones(9)), Delta(np.zeros(2, np.uint8), torch.zeros(1, dtype=torch.int32))):
        with pytest.raises(WeightSyncError, match=r"here: a patch of . positions does not fit"):
            apply(change, torch.zeros(4), "here")
    with pytest.raises(WeightSyncError):
        apply(delta(torch.zeros(4, dtype=torch.int16), torch.ones(4, dtype=torch.int16)), torch.zeros(4), "here")


class Wire:
    """One sender and receivers that go on, and what was said."""

    def __init__(self, sync, receivers=1):
        self.sync, self.network, self.parts = sync, ToyNetwork(), []
        self.network.spoil = self.see
        self.sender = self.network.at("actor", 0)
        self.messengers = [self.network.at("rollout", rank) for rank in range(receivers)]

    def see(self, item):
        if isinstance(item, Part) and item.content is not None:
            self.parts.append(item.content)
        return item

    def __call__(self, tensors, *held, version=1):
        self.parts.clear()
        weights = Weights(tensors=tensors, version=version)
        sender, *received = exchange_at(
            self.sync, self.sender, weights, self.messengers, [Weights(tensors=h, version=0) for h in held]
        )
        assert sender is None, sender
        return [weights.tensors for weights in received]

    @property
    def kinds(self):
        """By name, how tensors went in the last exchange."""
        return {name: type(change).__name__ for batch in self.parts for name, change in batch.items()}


def weights(seed=0, **changes):
    g = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(100, generator=g), "b": torch.randn(50, generator=g)} | changes


def test_only_what_changed_goes():
    wire, first = Wire(PatchWeightSync(timeout_s=10)), weights()
    (held,) = wire(first, weights(seed=1))
    assert wire.kinds == {"a": "Tensor", "b": "Tensor"}
    (held,) = wire(first, held)
    assert wire.parts == []
    second = weights(a=first["a"].clone())
    second["a"][[3, 40]] += 1
    (again,) = wire(second, held)
    assert wire.kinds == {"a": "Delta"}
    change = wire.parts[0]["a"]
    assert (change.codes.tolist(), change.nbytes) == ([3, 36], 2 + 2 * 4)
    assert checksums(again) == checksums(second)
    assert again["b"] is held["b"]


def test_a_tensor_of_which_most_has_changed_goes_whole():
    wire = Wire(PatchWeightSync(timeout_s=10))
    (held,) = wire(weights(), weights(seed=1))
    wire(weights(seed=2), held)
    assert wire.kinds == {"a": "Tensor", "b": "Tensor"}


def test_who_has_another_base_gets_it_whole():
    """A receiver that missed a version, was loaded from elsewhere, or is new; a tensor that it does hold goes as a patch."""
    wire = Wire(PatchWeightSync(timeout_s=10), receivers=2)
    first = weights()
    one, two = wire(first, weights(seed=1), weights(seed=1))
    next_one = {name: tensor.clone() for name, tensor in first.items()}
    next_one["a"][0] += 1
    next_one["b"][0] += 1
    received = wire(next_one, one, {**two, "b": torch.zeros(50)})
    assert wire.kinds == {"a": "Delta", "b": "Tensor"}
    assert [checksums(tensors) for tensors in received] == [checksums(next_one)] * 2


def test_who_holds_the_weights_already_gets_nothing():
    wire = Wire(PatchWeightSync(timeout_s=10))
    wire(weights(), weights())
    assert wire.parts == []


def test_the_comparison_is_after_the_cast_to_the_receivers_type():
    """In bfloat16 1 and 1.001 are one number; the sender's float32 has moved, the receiver's weights have not."""
    wire = Wire(PatchWeightSync(timeout_s=10, cast=True, verify=True))
    old, g = torch.ones(300), torch.Generator().manual_seed(0)
    (held,) = wire({"w": old}, {"w": torch.randn(300, generator=g).bfloat16()})
    assert held["w"].dtype == torch.bfloat16
    new = old * 1.001
    new[7] = 2.0
    (held,) = wire({"w": new}, held)
    assert decode_positions(wire.parts[0]["w"].codes).tolist() == [7]
    assert torch.equal(held["w"], new.bfloat16())
    with pytest.raises(WeightSyncError, match=r"w: expected torch.bfloat16\[300\], found torch.float32\[300\]"):
        raise exchange_at(
            PatchWeightSync(timeout_s=5),
            wire.sender,
            Weights(tensors={"w": new}, version=1),
            wire.messengers,
            [Weights(tensors=held, version=1)],
        )[1]
    with pytest.raises(WeightSyncError, match=r"w: expected torch.int8\[300\], found torch.float32\[300\]"):
        raise exchange_at(
            wire.sync,
            wire.sender,
            Weights(tensors={"w": new}, version=1),
            wire.messengers,
            [Weights(tensors={"w": new.to(torch.int8)}, version=1)],
        )[1]


def test_a_step_of_adam_at_a_small_rate_changes_little_in_bf16():
    """What makes patches worthwhile: the first step moves each weight by 1e-6, which is below the resolution of most."""
    g = torch.Generator().manual_seed(0)
    master = 0.02 * torch.randn(20000, generator=g)
    before = master.bfloat16()
    after = (master - 1e-6 * torch.randn(20000, generator=g).sign()).bfloat16()
    change = delta(before, after)
    assert 0.003 < len(change.values) / 20000 < 0.05
    assert change.nbytes < 0.1 * before.nbytes
    assert torch.equal(apply(change, before, ""), after)
