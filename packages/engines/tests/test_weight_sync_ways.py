"""What bucket, patch and disk have in common."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from weight_sync_toy import Killed, ToyNetwork, exchange, exchange_at, model, together

from rlinf.core import Weights
from rlinf.core.errors import ConfigError, DeadlineExceeded, WeightSyncError
from rlinf.core.registry import WEIGHT_SYNCS
from rlinf.engines.weight_sync import BucketWeightSync, DiskWeightSync, FullWeightSync, PatchWeightSync
from rlinf.engines.weight_sync.messages import Part
from rlinf.engines.weights.checksum import checksums


@pytest.fixture(params=["full", "bucket", "patch", "disk"])
def make(request, tmp_path):
    def made(**changes):
        common = {"timeout_s": 20.0, **changes}
        if request.param == "disk":
            return DiskWeightSync(str(tmp_path / "shared"), shard_size=30, **common)
        if request.param == "full":
            return FullWeightSync(**common)
        kind = BucketWeightSync if request.param == "bucket" else PatchWeightSync
        return kind(bucket_size=7, **common)

    return made


def many(version: int = 0, seed: int = 0) -> Weights:
    """Every type, a view, a scalar, an empty tensor and a NaN."""
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (48,), dtype=torch.uint8, generator=g)
    kinds = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int64, torch.uint8]
    kinds += [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64]
    tensors = {str(kind): bits.roll(i).view(kind).clone() for i, kind in enumerate(kinds)}
    tensors |= {"bool": bits > 127, "scalar": torch.tensor(float("nan")), "empty": torch.zeros(0, 3)}
    tensors["turned"] = torch.randn(4, 5, generator=g).T
    return Weights(tensors=tensors, version=version, extra={"scale": 2})


def same(found: Weights, expected: Weights) -> bool:
    """To the bit; NaNs too."""
    kinds = {name: t.dtype for name, t in found.tensors.items()} == {name: t.dtype for name, t in expected.tensors.items()}
    shapes = all(t.shape == expected.tensors[name].shape for name, t in found.tensors.items())
    return kinds and shapes and found.version == expected.version and checksums(found.tensors) == checksums(expected.tensors)


@pytest.mark.parametrize("receivers", [1, 2])
@pytest.mark.parametrize("verify", [False, True])
def test_every_type_arrives_to_the_bit(make, receivers, verify):
    published = many(version=9, seed=1)
    sender, *received = exchange(published, *[many(seed=2) for _ in range(receivers)], sync=make(verify=verify))
    assert sender is None
    assert [same(weights, published) for weights in received] == [True] * receivers
    assert received[0].extra == {"scale": 2}
    assert list(received[0].tensors) == sorted(published.tensors)


def test_what_was_received_is_the_receivers_own(make):
    """Apart from a tensor that did not change, which a patch leaves as it is."""
    published, held = many(seed=1), many(seed=2)
    held.tensors["scalar"].fill_(3)
    _, received = exchange(published, held, sync=make())
    before = checksums(published.tensors), checksums(held.tensors)
    for tensor in received.tensors.values():
        tensor.zero_()
    assert (checksums(published.tensors), checksums(held.tensors)) == before


@pytest.mark.parametrize("changes", [{"b.weight": torch.zeros(2, 3)}, {"a.bias": torch.zeros(4)}, {"a.bias": None}])
def test_a_mismatch_is_an_error_on_every_side_before_anything_moves(make, changes):
    network = ToyNetwork()
    results = exchange(model(), model(), model(**changes), sync=make(), network=network)
    name = next(iter(changes)).replace(".", r"\.")
    for result in results:
        with pytest.raises(WeightSyncError, match=rf"differs at {name}: expected .*, found .*"):
            raise result
    assert {tag for _, _, tag in network.sent} == {"weights/down", "weights/up"}


def test_versions_never_go_back(make):
    results = exchange(model(version=3), model(version=4), sync=make())
    for result in results:
        with pytest.raises(WeightSyncError, match="expected version 4 or newer, found 3"):
            raise result
    assert exchange(model(version=4), model(version=4), sync=make())[0] is None


def test_both_sides_need_the_same_parameters(make):
    network, other = ToyNetwork(), make(verify=True)
    results = together(
        lambda: make().send(network.at("actor", 0), model(), "rollout", [0]),
        lambda: other.recv(network.at("rollout", 0), model(), "actor", 0),
    )
    for result in results:
        with pytest.raises(WeightSyncError, match="Give both the same weight_syncer"):
            raise result


def test_a_receiver_that_never_asks_ends_the_wait_of_all(make):
    sender, other = exchange(model(), None, model(), sync=make(timeout_s=0.3))
    assert isinstance(sender, DeadlineExceeded)
    assert isinstance(other, (WeightSyncError, DeadlineExceeded))


@pytest.mark.parametrize("messages", range(3, 14, 2))
def test_a_receiver_that_dies_leaves_the_other_with_its_old_weights(make, messages):
    """It dies before the first part, between parts, or before it could say that all is well; no one hands over."""
    sync, network, held = make(), ToyNetwork(), many(seed=2)
    before = checksums(held.tensors)
    messengers = [network.at("rollout", 0), network.at("rollout", 1, dies_after=messages)]
    sender, survivor, dead = exchange_at(sync, network.at("actor", 0), many(version=1, seed=1), messengers, [held, many(seed=2)])
    if not isinstance(dead, Killed):  # the whole conversation is shorter
        assert sender is None
    assert checksums(held.tensors) == before
    if sender is None:  # it died when all was said, before it heard that all may hand over
        assert same(survivor, many(version=1, seed=1))
    else:
        assert isinstance(sender, DeadlineExceeded)
        assert isinstance(survivor, (WeightSyncError, DeadlineExceeded))


def test_what_an_interrupted_sync_has_left_does_not_disturb_the_next(make):
    sync, network, held = make(), ToyNetwork(), many(seed=2)
    messenger = network.at("rollout", 0, dies_after=4)
    sender = network.at("actor", 0)
    first = exchange_at(sync, sender, many(version=1, seed=1), [messenger], [held])
    assert isinstance(first[0], DeadlineExceeded)
    again = network.at("rollout", 0)
    for version in (2, 3):
        published = many(version=version, seed=version)
        sent, received = exchange_at(sync, sender, published, [again], [held])
        assert sent is None
        assert same(received, published)
        held = received


def flip(part):
    """One bit of what a part carries."""
    if not isinstance(part, Part) or part.content is None:
        return part
    content = part.content
    if isinstance(content, str):  # a folder
        path = sorted(Path(content).glob("*.safetensors"))[0]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        if not (path.parent / "flipped").exists():  # it goes to two receivers
            path.write_bytes(data)
            (path.parent / "flipped").touch()
        return part
    name, data = ("", content) if isinstance(content, torch.Tensor) else next((n, d) for n, d in content.items() if len(d))
    copy = data.copy() if isinstance(data, np.ndarray) else data.clone()
    copy[0] ^= 1
    return replace(part, content=copy if isinstance(content, torch.Tensor) else {**content, name: copy})


def test_a_bit_that_flips_on_the_way_is_seen_if_asked_for(make):
    for verify in (True, False):
        network, held = ToyNetwork(), many(seed=2)
        network.spoil = flip
        results = exchange(many(seed=1), held, many(seed=2), sync=make(verify=verify), network=network)
        if not verify:
            assert results[0] is None  # so it was a bit that nothing else notices
            continue
        for result in results:
            with pytest.raises(WeightSyncError, match=r"has checksum .* the sender's has"):
                raise result


def test_only_what_is_asked_for(make):
    """The rest of what the receiver holds is kept; to verify, it must be the sender's."""
    held, published = model(), model(version=1)
    sync = make(only=("*.weight", "step"))
    sender, received = exchange(published, held, sync=sync)
    assert sender is None
    expected = {**held.tensors, "b.weight": published.tensors["b.weight"], "step": published.tensors["step"]}
    assert checksums(received.tensors) == checksums(expected)
    sender, received = exchange(published, held, sync=make(only=("*.weight", "step"), verify=True))
    with pytest.raises(WeightSyncError, match=r"a\.bias has checksum"):
        raise received
    with pytest.raises(WeightSyncError, match=r"a\.bias has checksum"):
        raise sender
    shared = {**held.tensors, "b.weight": published.tensors["b.weight"]}
    assert exchange(Weights(tensors=shared, version=1), held, sync=make(only=("*.weight",), verify=True))[0] is None


def test_only_must_name_something(make):
    with pytest.raises(ConfigError, match=r"only.*\['\*lora\*'\] matches none of 5 tensors, such as a\.bias"):
        make(only=("*lora*",)).send(ToyNetwork().at("actor", 0), model(), "rollout", [0])


def test_by_name(tmp_path):
    for name, fields in (("bucket", {"bucket_size": 5}), ("patch", {"cast": True}), ("disk", {"folder": "x", "keep": 2})):
        sync = WEIGHT_SYNCS.build(name, {"timeout_s": 5, "only": ["*.w"], **fields}, place="weight_syncer")
        assert (sync.timeout_s, sync.only) == (5.0, ("*.w",))
        for wrong in ({"timeout_s": 0}, {"keep": 0} if name == "disk" else {"bucket_size": 0}):
            with pytest.raises(ConfigError, match=rf"weight_syncer\.{next(iter(wrong))}"):
                WEIGHT_SYNCS.build(name, {**fields, **wrong}, place="weight_syncer")


@pytest.mark.parametrize("way", ["full", "bucket", "patch", "disk"])
def test_weights_are_cast_to_the_type_of_the_receivers(way, tmp_path):
    """Asked for by whoever knows that both sides differ; what travels is as small as what is held."""
    syncs = {"full": FullWeightSync, "bucket": BucketWeightSync, "patch": PatchWeightSync, "disk": DiskWeightSync}
    where = {"folder": str(tmp_path)} if way == "disk" else {}
    plain = syncs[way](timeout_s=5, **where)
    g = torch.Generator().manual_seed(0)
    published = Weights(tensors={"w": torch.randn(7, generator=g), "n": torch.arange(3)}, version=3)
    held = [Weights(tensors={"w": torch.zeros(7, dtype=torch.bfloat16), "n": torch.zeros(3).long()}, version=0) for _ in range(2)]
    assert all(isinstance(found, WeightSyncError) for found in exchange(published, *held, sync=plain))
    sender, *received = exchange(published, *held, sync=plain.casting())
    assert sender is None
    for found in received:
        assert torch.equal(found.tensors["w"], published.tensors["w"].bfloat16())
        assert found.tensors["w"].dtype == torch.bfloat16
        assert torch.equal(found.tensors["n"], published.tensors["n"])
    different = [held[0], Weights(tensors={**held[1].tensors, "w": torch.zeros(7).half()}, version=0)]
    assert isinstance(exchange(published, *different, sync=plain.casting())[0], WeightSyncError)
    whole = [Weights(tensors={"w": torch.zeros(7).int(), "n": torch.zeros(3).long()}, version=0)]
    assert isinstance(exchange(published, *whole, sync=plain.casting())[0], WeightSyncError)


def test_files_begin_with_a_tensor_of_no_elements(tmp_path):
    weights = Weights(tensors={"a": torch.zeros(0, 3), "b": torch.ones(20), "c": torch.zeros(0)}, version=1)
    sync = DiskWeightSync(str(tmp_path), shard_size=30, timeout_s=20)
    network, held = ToyNetwork(), Weights(tensors={name: torch.zeros_like(t) for name, t in weights.tensors.items()}, version=0)
    _, got = exchange_at(sync, network.at("actor", 0), weights, [network.at("rollout", 0)], [held])
    assert same(got, weights)
