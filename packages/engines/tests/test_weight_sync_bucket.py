"""Buckets, their overlap, their types, and weights that are put together one at a time."""

import copy
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from weight_sync_toy import ToyNetwork, exchange, exchange_at, together

from rlinf.core import Weights
from rlinf.core.errors import DeadlineExceeded, WeightSyncError
from rlinf.engines.weight_sync import BucketWeightSync, DiskWeightSync, PatchWeightSync
from rlinf.engines.weight_sync.bucket import Buckets, fill
from rlinf.engines.weight_sync.messages import Announcement, Part, Receipt
from rlinf.engines.weights.checksum import checksums
from rlinf.engines.weights.lazy_tensors import LazyTensors, TensorPass
from rlinf.engines.weights.manifest import Manifest


def weights(version=1, count=5, size=10, dtype=torch.float32, seed=0) -> Weights:
    g = torch.Generator().manual_seed(seed)
    return Weights(tensors={f"w{i}": torch.randn(size, generator=g).to(dtype) for i in range(count)}, version=version)


def spied(network: ToyNetwork, kind: type) -> list:
    seen: list = []

    def see(item):
        if isinstance(item, kind):
            seen.append(copy.deepcopy(item))
        return item

    network.spoil = see
    return seen


def test_buckets_are_of_one_size_and_cut_through_tensors():
    network = ToyNetwork()
    parts = spied(network, Part)
    sender, _received = exchange(weights(), weights(version=0, seed=1), sync=BucketWeightSync(bucket_size=64), network=network)
    assert sender is None
    assert [part.content.numel() for part in parts] == [64, 64, 64, 8]
    assert torch.equal(torch.cat([part.content for part in parts]).view(torch.float32), torch.cat([*weights().tensors.values()]))


def test_two_buckets_travel_and_no_third():
    """The sender fills the second while the first is read, and stops there until a receipt comes."""
    network = ToyNetwork()
    parts = spied(network, (Part, Announcement))
    sync = BucketWeightSync(bucket_size=16, timeout_s=20)
    messenger = network.at("rollout", 0, dies_after=3)  # announcement, consent, start
    sender, _ = exchange_at(sync, network.at("actor", 0), weights(), [messenger], [weights(version=0)])
    assert isinstance(sender, DeadlineExceeded)
    assert [type(part).__name__ for part in parts] == ["Announcement", "Part", "Part"]


def test_a_bucket_is_filled_again_only_when_it_was_read():
    """With a messenger that does not copy: what it carries is the sender's own memory."""
    rooms: list[int] = []
    posted: list[torch.Tensor] = []
    buckets = Buckets(4, torch.device("cpu"), lambda: rooms.append(len(posted)), posted.append)
    buckets.add(torch.arange(10, dtype=torch.uint8))
    assert rooms == [0, 1, 2]
    posted.append(buckets.rest())
    assert [len(bucket) for bucket in posted] == [4, 4, 2]
    assert posted[0].data_ptr() == posted[2].data_ptr() != posted[1].data_ptr()


def test_a_stream_that_ends_early_or_late():
    data = torch.arange(10, dtype=torch.uint8)
    for length, wrong in ((10, 0), (7, 3), (3, 7), (0, 10)):
        targets = [torch.zeros(4, dtype=torch.uint8), torch.zeros(0), torch.zeros(6, dtype=torch.uint8)]
        assert fill(targets, iter(data[:length].split(3)) if length else iter(())) == wrong
    assert fill([torch.zeros(4, dtype=torch.uint8)], iter(data.split(3))) == 6


def test_a_lost_part_is_seen():
    network, lost = ToyNetwork(), []

    def lose(item):
        if isinstance(item, Part) and item.number == 1:
            lost.append(item)
            return Part(session="another", number=1, content=item.content)
        return item

    network.spoil = lose
    results = exchange(weights(), weights(version=0), sync=BucketWeightSync(bucket_size=64, timeout_s=20), network=network)
    assert lost
    assert isinstance(results[1], WeightSyncError)
    assert "expected part 1, found 2" in str(results[1]) or isinstance(results[0], DeadlineExceeded)


@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
def test_weights_travel_in_a_smaller_type(held):
    network = ToyNetwork()
    parts = spied(network, Part)
    sync = BucketWeightSync(bucket_size=64, bucket_dtype="bfloat16", verify=True)
    published = Weights(tensors={**weights().tensors, "step": torch.tensor(3)}, version=1)
    current = Weights(tensors={**weights(dtype=held, seed=1).tensors, "step": torch.tensor(0)}, version=0)
    sender, received = exchange(published, current, sync=sync, network=network)
    assert sender is None
    assert sum(part.content.numel() for part in parts) == 5 * 10 * 2 + 8
    for name, tensor in published.tensors.items():
        expected = tensor.bfloat16().to(held) if name != "step" else tensor
        assert received.tensors[name].dtype == expected.dtype
        assert torch.equal(received.tensors[name], expected)


def test_a_receiver_that_would_lose_digits_is_refused():
    for travels, held in (("float32", torch.bfloat16), ("bfloat16", torch.float16)):
        results = exchange(weights(), weights(dtype=held, version=0), sync=BucketWeightSync(bucket_dtype=travels))
        for result in results:
            with pytest.raises(WeightSyncError, match=f"w0 travels as torch.{travels}, and the receiver's {held}.*bucket_dtype"):
                raise result


class Counted(LazyTensors):
    """Says how many of its tensors are alive at a time."""

    def __init__(self, state, breaks=None):
        self.state, self.breaks = state, breaks
        self.asked, self.made, self.most = [], [], 0

    def __getitem__(self, name):
        self.asked.append(name)
        if name == self.breaks:
            raise WeightSyncError("gather", "a rank is gone")
        whole = self.state[name].clone()
        self.made.append(weakref.ref(whole))
        self.most = max(self.most, sum(made() is not None for made in self.made))
        return whole

    def manifest(self):
        return Manifest.of(self.state)

    @property
    def device(self):
        return torch.device("cpu")


def syncs(tmp_path, **changes):
    common = {"timeout_s": 20.0, **changes}
    patch = PatchWeightSync(bucket_size=1, **common)
    return [BucketWeightSync(bucket_size=16, **common), patch, DiskWeightSync(str(tmp_path), shard_size=1, **common)]


@pytest.mark.parametrize("kind", range(3))
def test_lazy_tensors_are_put_together_once_and_one_at_a_time(tmp_path, kind):
    published = weights(count=12)
    lazy = Counted(published.tensors)
    sync = syncs(tmp_path, verify=True)[kind]
    sender, received = exchange(Weights(tensors=lazy, version=1), weights(0, count=12, seed=1), sync=sync)
    assert sender is None
    assert checksums(received.tensors) == checksums(published.tensors)
    assert lazy.asked == sorted(published.tensors)
    assert (
        lazy.most == 1 if kind != 1 else lazy.most <= 3
    )  # patches that go whole are the tensors themselves, two of them on their way


@pytest.mark.parametrize("kind", range(3))
def test_ranks_that_help_put_the_same_together_whatever_happens(tmp_path, kind):
    """A rank without receivers asks for the same tensors in the same order, also if the sender is refused, or interrupted."""
    only = ("w*",)
    published = {**weights(count=12).tensors, "a": torch.zeros(1), "z": torch.zeros(1)}
    held = Weights(tensors={**weights(0, count=12, seed=1).tensors, "a": torch.zeros(1), "z": torch.zeros(1)}, version=0)
    for current, verify, dies in ((held, False, None), (held, True, None), (weights(0, count=3), False, None), (held, True, 5)):
        sync, network = syncs(tmp_path, only=only, verify=verify)[kind], ToyNetwork()
        first, second = Counted(published), Counted(published)
        messenger = network.at("rollout", 0, dies_after=dies)
        together(
            lambda d=messenger, s=sync, c=current: s.recv(d, c, "actor", 0),
            lambda s=sync, f=first, p=network: s.send(p.at("actor", 0), Weights(tensors=f, version=1), "rollout", [0]),
            lambda s=sync, x=second, p=network: s.send(p.at("actor", 1), Weights(tensors=x, version=1), "rollout", []),
        )
        assert first.asked == second.asked == [f"w{i}" for i in sorted(map(str, range(12)))] + (["a", "z"] if verify else [])


def test_a_gathering_that_breaks_is_not_gone_on_with():
    lazy = Counted(weights().tensors, breaks="w2")
    sender, receiver = exchange(Weights(tensors=lazy, version=1), weights(0), sync=BucketWeightSync(bucket_size=16, timeout_s=20))
    assert "a rank is gone" in str(sender)
    assert "a rank is gone" in str(receiver)
    assert lazy.asked == ["w0", "w1", "w2"]
    with pytest.raises(WeightSyncError), TensorPass(lazy, ["w2", "w0"]) as walk:
        list(walk)


def test_receipts_are_for_parts_and_for_all():
    """The last part comes with the end, and has the receipt for all."""
    network = ToyNetwork()
    receipts = spied(network, Receipt)
    exchange(weights(), weights(0), sync=BucketWeightSync(bucket_size=64), network=network)
    assert [receipt.number for receipt in receipts] == [0, 1, 2, -1]


def test_a_version_on_disk(tmp_path):
    """Whole files with the names that others read; earlier versions go, also what an interrupted sync has left."""
    folder = tmp_path / "shared"
    sync = DiskWeightSync(str(folder), keep=2, shard_size=80, timeout_s=20)
    (folder / "version_9_01234567.partial").mkdir(parents=True)
    (folder / "mine").mkdir()
    held, kept = weights(0), []
    for version in (1, 2, 3):
        published = weights(version, seed=version)
        sender, held = exchange(published, held, sync=sync)
        assert sender is None
        assert checksums(held.tensors) == checksums(published.tensors)
        found = sorted(path.name for path in folder.iterdir() if path.name != "mine")
        assert [name[:9] for name in found] == [f"version_{v}" for v in (version - 1, version) if v]
        assert found[:-1] == kept[-1:]
        kept = found
    newest = folder / kept[-1]
    index = json.loads((newest / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(path.name for path in newest.glob("*.safetensors")) == sorted(set(index.values()))
    assert index["w4"] == "model-00003-of-00003.safetensors"
    read = {name: load_file(newest / file)[name] for name, file in index.items()}
    assert checksums(read) == checksums(weights(3, seed=3).tensors)
    assert (folder / "mine").is_dir()


def test_one_file_needs_no_index(tmp_path):
    sync = DiskWeightSync(str(tmp_path), timeout_s=20)
    assert exchange(weights(), weights(0), sync=sync)[0] is None
    (version,) = tmp_path.iterdir()
    assert [path.name for path in version.iterdir()] == ["model.safetensors"]


def test_an_interrupted_version_leaves_no_files(tmp_path):
    sync = DiskWeightSync(str(tmp_path), timeout_s=20)
    lazy = Counted(weights().tensors, breaks="w2")
    exchange(Weights(tensors=lazy, version=1), weights(0), sync=sync)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_ranks_send_as_one(tmp_path):
    """Real shards: each rank holds a part of each tensor, one of them sends, and neither holds more than one whole at a time."""
    script = Path(__file__).parent / "gathered_ranks.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    meeting = tmp_path / "meeting"
    command = [sys.executable, str(script), str(meeting)]
    ranks = [subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        said = [json.loads(rank.communicate(timeout=150)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said[0] == said[1] | {"arrived": True}
    assert said[0]["placements"] == "(Shard(dim=0),)"
    assert said[0]["asked"] == 4
