"""What it costs to bring weights from one worker to another: GB/s of each way beside `memcpy` in one run, and bytes of a patch.

    uv run benchmarks/weight_sync.py [--mib 256] [--rounds 5] [--bucket-mib 32] [--receivers 1] [--steps 1 10 100]

Workers of the `ray` back-end on one node, one of which sends, weights in bfloat16. All ways take turns; the first round does not
count. Between rounds every master weight, in float32, moves by 1e-6, which is the first step of Adam. `copy` is torch's `copy_` of
the same tensors into memory that exists. GB/s are bytes of all weights over the time until all receivers have them.
Then, in one process, AdamW with noisy gradients of one direction: the share of weights in bfloat16 that the n-th step changes, and
the bytes of the patch for it over those of all weights; and the share since the start.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlinf.core import Weights, gather
from rlinf.engines.weight_sync import BucketWeightSync, FullWeightSync, PatchWeightSync
from rlinf.engines.weight_sync.delta import delta
from rlinf.engines.weights.checksum import checksum
from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

WAYS = ("copy", "full", "bucket", "bucket, verified", "patch", "patch, 0 steps")
SHAPE = (1024, 1024)
SCALE = 0.02
"""The size of weights of language models at initialisation."""


def syncs(bucket: int) -> dict[str, FullWeightSync | BucketWeightSync | PatchWeightSync]:
    """By way."""
    patch = PatchWeightSync(bucket_size=bucket)
    return {
        "full": FullWeightSync(),
        "bucket": BucketWeightSync(bucket_size=bucket),
        "bucket, verified": BucketWeightSync(bucket_size=bucket, verify=True),
        "patch": patch,
        "patch, 0 steps": patch,
    }


def masters(mib: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights in float32, of which the bfloat16 copies have so many MiB."""
    generator = torch.Generator().manual_seed(seed)
    count = (mib << 20) // (2 * SHAPE[0] * SHAPE[1])
    return {f"layers.{i:03}.weight": SCALE * torch.randn(SHAPE, generator=generator) for i in range(count)}


def rounded(master: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that are sent."""
    return {name: tensor.bfloat16() for name, tensor in master.items()}


class Part(Worker):
    """Rank 0 sends, the others receive."""

    def send_all(self, mib: int, rounds: int, bucket: int) -> dict[str, list[float]]:
        """Seconds of each way and round."""
        torch.set_num_threads(1)
        master, found = masters(mib), {way: list[float]() for way in WAYS}
        spare = rounded(master)
        others = range(1, self.world_size)
        generator = torch.Generator().manual_seed(1)
        for turn in range(rounds + 1):
            for tensor in master.values():  # the first step of Adam, which moves every weight by the learning rate
                tensor.sub_(1e-6 * torch.randn(SHAPE, generator=generator).sign_())
            weights = Weights(tensors=rounded(master), version=turn)
            for way in WAYS:
                for rank in others if way != "copy" else ():
                    self.recv(self.group_name, rank, tag="ready")
                start = time.perf_counter()
                if way == "copy":
                    for name, tensor in weights.tensors.items():
                        spare[name].copy_(tensor)
                else:
                    syncs(bucket)[way].send(self.messenger, weights, self.group_name, others)
                    for rank in others:
                        self.recv(self.group_name, rank, tag="done")
                if turn:
                    found[way].append(time.perf_counter() - start)
        return found

    def receive_all(self, mib: int, rounds: int, bucket: int) -> None:
        """What the others do."""
        torch.set_num_threads(1)
        held = {way: Weights(tensors=rounded(masters(mib, seed=9)), version=0) for way in ("patch", "other")}
        for _ in range(rounds + 1):
            for way in WAYS[1:]:
                kind = "patch" if way.startswith("patch") else "other"
                self.send("ready", self.group_name, 0, tag="ready")
                held[kind] = syncs(bucket)[way].recv(self.messenger, held[kind], self.group_name, 0)
                self.send("done", self.group_name, 0, tag="done")
        if {n: checksum(t) for n, t in held["patch"].tensors.items()} != {n: checksum(t) for n, t in held["other"].tensors.items()}:
            raise SystemExit("patches and buckets brought different weights")


def changed_shares(steps: Sequence[int], lr: float) -> Iterator[tuple[int, float, float, float]]:
    """A step of AdamW, the share of weights in bfloat16 that it changes, its patch over all bytes, and the share so far."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(SCALE * torch.randn(SHAPE, generator=generator))
    optimizer = torch.optim.AdamW([parameter], lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    direction = torch.randn(SHAPE, generator=generator)
    start = parameter.detach().bfloat16()
    for step in range(1, max(steps) + 1):
        before = parameter.detach().bfloat16()
        parameter.grad = 0.1 * direction + torch.randn(SHAPE, generator=generator)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        if step in steps:
            after = parameter.detach().bfloat16()
            change = delta(before, after)
            share = float((after != start).float().mean())
            yield step, change.values.numel() / before.numel(), change.nbytes / before.nbytes, share


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description="What it costs to bring weights from one worker to another.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket-mib", type=int, default=32)
    parser.add_argument("--receivers", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--lr", type=float, default=1e-6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cluster = Cluster(num_nodes=1)
    try:
        group = Part.create_group().launch(
            cluster, name="part", placement_strategy=NodePlacementStrategy([0] * (1 + args.receivers))
        )
        fields = (args.mib, args.rounds, args.bucket_mib << 20)
        sent = group.execute_on(0).send_all(*fields)
        others = list(range(1, 1 + args.receivers))
        (found,), _ = gather(sent, group.execute_on(others).receive_all(*fields), timeout=1200)
    finally:
        cluster.shutdown()
    size = args.mib * 2**20 / 1e9
    what = f"{args.mib} MiB in bfloat16 to {args.receivers}, medians of {args.rounds} rounds"
    print(f"{what}\n{'way':>18} {'ms':>8} {'GB/s':>7} {'of copy':>8}")
    for way in WAYS:
        ratio = statistics.median(c / s for c, s in zip(found["copy"], found[way], strict=True))
        seconds = statistics.median(found[way])
        print(f"{way:>18} {1e3 * seconds:>8.0f} {size / seconds:>7.2f} {ratio:>8.2f}")
    print(f"\nAdamW at lr {args.lr:g}\n{'step':>6} {'changes':>8} {'bytes of patch':>15} {'since the start':>16}")
    for step, share, patch, total in changed_shares(args.steps, args.lr):
        print(f"{step:>6} {share:>8.2%} {patch:>15.2%} {total:>16.2%}")


if __name__ == "__main__":
    main()
