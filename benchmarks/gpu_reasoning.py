"""What the parts of a reasoning run take on one GPU, with random weights in the shapes of Qwen2.5; bfloat16, masters in float32.

    uv run benchmarks/gpu_reasoning.py [--models 0.5b 1.5b] [--out result.json] [--no-sync]
    uv run benchmarks/gpu_reasoning.py --device cpu --models tiny      # tries the program

Of each model: GB that trainer and optimizer take, beside what `rlinf plan --memory` reckons (`FSDPTrainerConfig.bytes_per_rank`)
and the most of a step; seconds of offload and onload; tokens per second of training (packed rows) and of the engine `hf` by rows
written at once. Then two workers on Ray that see the same GPU, one of which sends weights to the other: `bucket` by CUDA IPC,
`full` by shared memory of the host, and `bucket` with `cluster.route: socket`. Medians; the first of each kind does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlinf.algorithms.losses import PPOClip
from rlinf.core import Batch, Trajectory, Weights, gather
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.protocols import WeightSize
from rlinf.engines import BucketWeightSync, FSDPTrainerConfig, FullWeightSync, OptimConfig
from rlinf.engines.generation import HFGeneratorConfig
from rlinf.models.language import CausalLMConfig, token_batch
from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker

# hidden, layers, heads, heads of keys, width of the feed-forward layers, vocabulary
SHAPES = {
    "tiny": (64, 2, 4, 2, 128, 512),
    "0.5b": (896, 24, 14, 2, 4864, 151_936),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
}
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
GB = 1e9


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["0.5b", "1.5b"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu_reasoning.json"))
    parser.add_argument("--no-sync", action="store_true", help="without the workers on Ray")
    given = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "device": _name(given.device)}
    print(found["device"], "torch", found["torch"])
    for name in given.models:
        found[name] = {}
        for part in (training, generation):
            found[name] |= part(name, given.device)
            gc.collect()
            if given.device == "cuda":
                torch.cuda.empty_cache()
        for key, value in found[name].items():
            print(f"{name:>5}  {key:<36} {value:,.2f}")
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if not given.no_sync:
        found["sync"] = {route: synced(route, given.models, given.device) for route in ("auto", "socket")}
        for route, ways in found["sync"].items():
            for way, value in ways.items():
                print(f"route {route}: {way:<32} {value:,.3f}")
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def policy_of(name: str, device: str) -> Any:
    """A model with random weights, made where it stays."""
    sizes: dict[str, Any] = dict(zip(NAMES, SHAPES[name], strict=True))
    sizes |= {"initializer_range": 0.02, "max_position_embeddings": 4096, "tie_word_embeddings": True}
    with torch.device(device):
        config = CausalLMConfig(preset="tiny", architecture="qwen2", overrides=sizes, precision="bf16")
        return config.build(seed=0).to(device)


def training(name: str, device: str) -> dict[str, float]:
    """Memory by part, tokens per second, and how fast the trainer leaves and comes back."""
    start = Memory(device)
    policy = policy_of(name, device)
    sizes = [WeightSize(elements=p.numel(), bytes_each=p.element_size(), trained=True) for p in policy.parameters()]
    config = FSDPTrainerConfig(OptimConfig(lr=1e-6), max_tokens_per_mbs=8192)
    predicted = config.bytes_per_rank(sizes, 1)
    trainer: Any = config.build(policy, rank=0, world_size=1, rendezvous="")
    found = {"billion weights": sum(s.elements for s in sizes) / 1e9, "GB of the trainer, new": start.now()}
    start.reset()
    batch, tokens = text(name, rows=32)
    seconds = timed(lambda: trainer.step([batch], PPOClip()), device, repeats=3)
    parts = trainer.memory()
    for part, expected in zip(("parameters", "gradients", "optimizer"), predicted.values(), strict=True):
        found[f"GB {part}, it says"], found[f"GB {part}, predicted"] = parts[part] / GB, expected / GB
    found |= {"GB between steps": start.now(), "GB in a step at the most": start.peak(), "tokens/s of training": tokens / seconds}
    found["TFLOP/s of training"] = 6 * found["billion weights"] * tokens / seconds / 1e3
    found["tokens/s of scoring"] = tokens / timed(lambda: trainer.evaluate(batch), device, repeats=2)
    freed: list[int] = []
    away, left, back = [0.0] * 2, 0.0, [0.0] * 2
    for turn in range(2):
        away[turn] = timed(lambda: freed.append(trainer.offload()), device, repeats=0)
        left = start.now()
        back[turn] = timed(trainer.onload, device, repeats=0)
    found |= {"GB offloaded": freed[0] / GB, "GB left then": left}
    for way, each in (("offload", away), ("onload", back)):
        found |= {f"s of first {way}": each[0], f"s of {way}": each[1], f"GB/s of {way}": freed[0] / GB / each[1]}
    trainer.close()
    return found


def generation(name: str, device: str) -> dict[str, float]:
    """Tokens per second of the engine, by rows written at once."""
    policy = policy_of(name, device)
    found: dict[str, float] = {}
    new = 64 if device == "cuda" else 8
    for rows in (1, 16, 64, 256) if device == "cuda" else (1, 4):
        generator = HFGeneratorConfig(max_running_requests=rows, max_batch_tokens=16_384, device=device).build(policy)

        async def write(generator: Any = generator, rows: int = rows) -> None:
            sampling = SamplingConfig(max_new_tokens=new)
            prompts = [[3 + (7 * row + i) % 500 for i in range(128)] for row in range(rows)]
            await asyncio.gather(*(generator.generate(p, sampling, seed=i) for i, p in enumerate(prompts)))

        seconds = timed(lambda write=write: asyncio.run(write()), device, repeats=1)
        found[f"tokens/s of writing, {rows} rows"] = rows * new / seconds
        found[f"GB of the cache, {rows} rows"] = generator.memory()["cache"] / GB
    return found


def text(name: str, rows: int) -> tuple[Batch[Any], int]:
    """Rows of 256 to 1024 tokens of which all but 64 are responses, and how many tokens there are."""
    shortest, step = (256, 24) if name != "tiny" else (80, 1)
    lengths = [shortest + step * row for row in range(rows)]
    laid = token_batch([[([5] * 64, [3 + (row + i) % 500 for i in range(length - 64)])] for row, length in enumerate(lengths)])
    trajectory = Trajectory.of(
        context=laid.context,
        action=laid.action,
        logprob=torch.full(laid.mask.shape, -12.0),
        reward=torch.zeros(laid.mask.shape),
        mask=laid.mask,
    )
    return Batch.of(trajectory, torch.linspace(-1, 1, rows)[:, None].expand(laid.mask.shape).contiguous()), sum(lengths)


class Holder(Worker):
    """One of two workers with weights in the names and shapes of a model."""

    def hold(self, name: str, device: str) -> float:
        """Makes them; GB."""
        self.weights = {n: t.detach() for n, t in policy_of(name, device).state_dict().items()}
        return sum(tensor.nbytes for tensor in self.weights.values()) / GB

    def give(self, sync: Any, rounds: int) -> list[float]:
        """Seconds of each round, until the other has all of them."""
        seconds: list[float] = []
        for version in range(1, rounds + 1):
            self.recv("taker", 0, tag="ready")
            start = time.perf_counter()
            sync.send(self.messenger, Weights(tensors=self.weights, version=version), "taker", [0])
            seconds.append(time.perf_counter() - start)
        return seconds

    def take(self, sync: Any, rounds: int) -> None:
        """Receives them."""
        held = Weights(tensors=self.weights, version=0)
        for _ in range(rounds):
            self.send("ready", "giver", 0, tag="ready")
            held = sync.recv(self.messenger, held, "giver", 0)


def synced(route: str, models: list[str], device: str) -> dict[str, float]:
    """Seconds, and GB per second, of each way and model."""
    virtual: dict[str, Any] = {} if device == "cuda" else {"virtual_accelerators": {"count": 1}}
    syncs = {"bucket": BucketWeightSync(), "full": FullWeightSync()} if route == "auto" else {"bucket": BucketWeightSync()}
    found: dict[str, float] = {}
    with Cluster(cluster_cfg={"backend": "ray", "timeout_s": 120.0, "route": route, **virtual}) as cluster:
        giver, taker = (
            Holder.create_group().launch(cluster, name=name, placement_strategy=PackedPlacementStrategy(0, 0))
            for name in ("giver", "taker")
        )
        for name in models:
            (size,), _ = gather(giver.hold(name, device), taker.hold(name, device), timeout=120.0)
            for way, sync in syncs.items():
                (seconds,), _ = gather(giver.give(sync, 4), taker.take(sync, 4), timeout=300.0)
                found[f"{name} s of {way}"] = statistics.median(seconds[1:])
                found[f"{name} GB/s of {way}"] = size / found[f"{name} s of {way}"]
    return found


class Memory:
    """GB that torch has allocated on a GPU since; 0 on a CPU."""

    def __init__(self, device: str) -> None:
        self._gpu = device == "cuda"
        self._before = torch.cuda.memory_allocated() if self._gpu else 0

    def reset(self) -> None:
        """`peak` is that from now on."""
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()

    def now(self) -> float:
        """At this moment."""
        return (torch.cuda.memory_allocated() - self._before) / GB if self._gpu else 0.0

    def peak(self) -> float:
        """At the most."""
        return (torch.cuda.max_memory_allocated() - self._before) / GB if self._gpu else 0.0


def timed(run: Callable[[], Any], device: str, *, repeats: int) -> float:
    """Seconds until the device is done: the median of so many after one that does not count, or with 0 of that one."""
    taken: list[float] = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:] or taken)


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


if __name__ == "__main__":
    main()
