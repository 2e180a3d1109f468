import pickle
from dataclasses import replace

import pytest
import torch
from weight_sync_toy import ToyNetwork, exchange, model

from rlinf.core import Weights
from rlinf.core.errors import ConfigError, DeadlineExceeded, WeightSyncError
from rlinf.core.registry import WEIGHT_SYNCS
from rlinf.engines import FullWeightSync, Manifest
from rlinf.engines.weight_sync.messages import Announcement, End, Refusal


def test_everything_arrives_to_the_bit():
    published = model(version=9)
    sender, *received = exchange(published, model(), model())
    assert sender is None
    for weights in received:
        assert (weights.version, weights.extra) == (9, {"scale": 2})
        assert list(weights.tensors) == sorted(published.tensors)
        for name, tensor in published.tensors.items():
            assert weights.tensors[name].dtype == tensor.dtype
            assert torch.equal(weights.tensors[name], tensor)


@pytest.mark.parametrize("receivers", [1, 2, 3])
def test_parts_go_to_several_receivers_in_one_broadcast(receivers):
    network = ToyNetwork()
    exchange(model(), *(model() for _ in range(receivers)), network=network)
    assert any(to is None for _, to, _ in network.sent) == (receivers > 1)


def test_what_was_received_is_the_receivers_own():
    published = model()
    _, received = exchange(published, model())
    before = published.tensors["b.weight"].clone()
    received.tensors["b.weight"].zero_()
    assert torch.equal(published.tensors["b.weight"], before)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"b.weight": torch.zeros(2, 3)}, r"b\.weight: expected torch.float32\[2, 3\], found torch.float32\[3, 2\]"),
        ({"a.bias": torch.zeros(4)}, r"a\.bias: expected torch.float32\[4\], found torch.bfloat16\[4\]"),
        ({"a.bias": None}, r"a\.bias: expected no such tensor, found torch.bfloat16\[4\]"),
        ({"aa": torch.zeros(1)}, r"aa: expected torch.float32\[1\], found no such tensor"),
    ],
)
def test_a_mismatch_is_an_error_on_every_side(change, difference):
    """Also where only one of two receivers differs: the other gets nothing, and does not wait."""
    results = exchange(model(), model(), model(**change))
    assert all(isinstance(result, WeightSyncError) for result in results)
    for result in results:
        with pytest.raises(WeightSyncError, match=difference):
            raise result
    assert "weights to rollout[1]" in str(results[0])


def test_nothing_is_transferred_before_the_comparison():
    network, sync = ToyNetwork(), FullWeightSync(timeout_s=0.05)
    with pytest.raises(DeadlineExceeded):
        sync.send(network.at("actor", 0), model(), "rollout", [0])
    sent = [pickle.loads(data) for queue in network.queues.values() for data in list(queue.queue)]
    assert [type(message) for message in sent] == [Announcement, Refusal]


def test_a_receiver_that_never_asks_ends_the_wait_of_all():
    sender, other = exchange(model(), None, model(), timeout_s=0.3)
    assert isinstance(sender, DeadlineExceeded)
    assert isinstance(other, (WeightSyncError, DeadlineExceeded))


def test_manifests():
    one, same = Manifest.of(model().tensors), Manifest.of(dict(reversed(model().tensors.items())))
    assert one.digest == same.digest
    assert one.difference(same) is None
    assert [entry.name for entry in one.entries] == sorted(model().tensors)
    digests = {Manifest.of(model(**{"b.weight": x}).tensors).digest for x in (None, torch.zeros(3), torch.zeros(3, 2).int())}
    assert one.digest not in digests
    assert len(digests) == 3


def test_by_name():
    assert WEIGHT_SYNCS.build("full", {"timeout_s": 5}, place="weight_syncer") == FullWeightSync(timeout_s=5.0)
    with pytest.raises(ConfigError, match=r"weight_syncer\.timeout_s"):
        WEIGHT_SYNCS.build("full", {"timeout_s": 0}, place="weight_syncer")


def test_a_part_that_does_not_fit_is_refused_by_all():
    network = ToyNetwork()
    network.spoil = lambda item: replace(item, content={"a.bias": item.content["a.bias"]}) if isinstance(item, End) else item
    results = exchange(model(), model(), model(), network=network)
    assert all(isinstance(result, WeightSyncError) for result in results)
    assert "b.weight came with 0 bytes, expected 24" in " ".join(map(str, results))


def test_a_subset_and_checksums():
    """What is left out stays; what has changed on the way is found."""
    sync, held = FullWeightSync(only=("a.*",), verify=True, timeout_s=20.0), model()
    published = Weights(tensors={**held.tensors, "a.bias": held.tensors["a.bias"] + 1}, version=3)
    _, received = exchange(published, held, sync=sync)
    assert torch.equal(received.tensors["a.bias"], published.tensors["a.bias"])
    assert torch.equal(received.tensors["b.weight"], held.tensors["b.weight"])
    assert isinstance(exchange(model(), held, sync=sync)[0], WeightSyncError)
