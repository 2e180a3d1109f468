"""What packing and fused log-probabilities buy: `uv run --group bench benchmarks/trainer_packing.py`.

1. Response tokens that one rank trains on in a second, at mixed lengths, packed (`max_tokens_per_mbs`) against padded micro-batches
   of as many columns. A small random Qwen3; the two take turns, so that a busy machine disturbs both alike; the median counts. The
   losses of both are compared first.
2. Memory that scoring takes at its peak, above what was there before, forward and backward: logits of a few tokens at a time
   (`score_tokens`) against logits of all. Each in a process of its own (`--peak`), by the operating system's count.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from rlinf.algorithms.losses import PPOClip
from rlinf.core import Batch, Trajectory
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines.packing.rows import packed_micro_batches, token_lengths
from rlinf.models.language import CausalLMConfig, score_tokens, token_batch

VOCABULARY = 512
CHUNK = CausalLMConfig(preset="tiny").logit_chunk


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--longest", type=int, default=256, help="tokens of the longest response")
    parser.add_argument("--max-tokens", type=int, default=1024, help="columns of a micro-batch")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", nargs=4, metavar=("WAY", "TOKENS", "WIDTH", "VOCABULARY"), help="used by the second part")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peak:
        way, *sizes = given.peak
        sys.stdout.write(f"{peak(way == 'fused', *map(int, sizes))}\n")
        return
    throughput(given)
    memory(tokens=2048, width=256, vocabulary=32768)


def throughput(given: argparse.Namespace) -> None:
    """Packed against padded, in turns."""
    batch = mixed_batch(given.rows, given.longest)
    longest = batch.trajectory.horizon
    padded = list(batch.micro_batches(max(1, given.max_tokens // longest)))
    ways = {"padded": (trainer(given, None), padded), "packed": (trainer(given, given.max_tokens), [batch])}
    loss = PPOClip()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.repeats + 1):
        losses: list[float] = []
        for name, (built, micro_batches) in ways.items():
            start = time.perf_counter()
            losses.append(built.step(micro_batches, loss)["loss"].mean)
            seconds[name].append(time.perf_counter() - start)
        if abs(losses[0] - losses[1]) > 1e-5:
            raise SystemExit(f"packed and padded differ: {losses}")
    real = sum(token_lengths(batch))
    passes = {"padded": len(padded), "packed": len(packed_micro_batches(batch, given.max_tokens))}
    columns = {
        "padded": len(batch) * longest,
        "packed": sum(part.packing.tokens for part in packed_micro_batches(batch, given.max_tokens) if part.packing),
    }
    median = {name: statistics.median(found[1:]) for name, found in seconds.items()}
    sys.stdout.write(f"{given.rows} rows of {min(token_lengths(batch))} to {longest} tokens, {real} in all, ")
    sys.stdout.write(f"{given.layers} layers of {given.hidden}, micro-batches of {given.max_tokens} columns\n")
    for name in ways:
        rate = real / median[name]
        sys.stdout.write(f"{name}: {passes[name]:3d} passes {columns[name]:6d} columns {rate:8.0f} tokens/s\n")
    sys.stdout.write(f"packed is {median['padded'] / median['packed']:.2f} times as fast\n")


def trainer(given: argparse.Namespace, limit: int | None) -> Any:
    """A trainer of a random Qwen3."""
    sizes = {"hidden_size": given.hidden, "intermediate_size": 3 * given.hidden, "num_hidden_layers": given.layers}
    more = {"vocab_size": VOCABULARY, "max_position_embeddings": 4 * given.longest}
    policy = CausalLMConfig(preset="tiny", architecture="qwen3", overrides={**sizes, **more}).build(seed=0)
    config = FSDPTrainerConfig(OptimConfig(lr=1e-4), max_tokens_per_mbs=limit)
    return config.build(policy, rank=0, world_size=1, rendezvous="")


def mixed_batch(rows: int, longest: int) -> Batch[Any]:
    """Prompts of 16 tokens; responses whose lengths are log-normal, as those of reasoning are, one of them the longest."""
    generator = np.random.default_rng(0)
    lengths = np.clip(np.exp(generator.normal(np.log(longest / 5), 0.8, rows)), 4, longest).astype(int)
    lengths[0] = longest

    def tokens(count: int) -> list[int]:
        return [int(token) for token in generator.integers(VOCABULARY, size=count)]

    text = [[(tokens(16), tokens(int(count)))] for count in lengths]
    laid = token_batch(text)
    logprob = torch.full(laid.mask.shape, -6.2)
    trajectory = Trajectory.of(context=laid.context, action=laid.action, logprob=logprob, mask=laid.mask)
    advantage = torch.as_tensor(generator.normal(size=(rows, 1)), dtype=torch.float32).expand(logprob.shape)
    return Batch.of(trajectory, advantage)


def memory(*, tokens: int, width: int, vocabulary: int) -> None:
    """Peaks of both ways, each in a process of its own."""
    sizes = [str(size) for size in (tokens, width, vocabulary)]
    found = {
        way: float(
            subprocess.run([sys.executable, __file__, "--peak", way, *sizes], capture_output=True, check=True, text=True).stdout
        )
        for way in ("naive", "fused")
    }
    sys.stdout.write(f"scoring {tokens} tokens of a vocabulary of {vocabulary}, forward and backward, at the peak\n")
    for way, mebibytes in found.items():
        sys.stdout.write(f"{way}: {mebibytes:7.0f} MiB\n")
    sys.stdout.write(f"fused takes {found['naive'] / max(found['fused'], 1.0):.1f} times less\n")


def peak(fused: bool, tokens: int, width: int, vocabulary: int) -> float:
    """MiB that scoring added to the process at most."""
    hidden = torch.randn(tokens, width, requires_grad=True)
    head = torch.nn.Linear(width, vocabulary, bias=False)
    chosen = torch.randint(vocabulary, (tokens,))
    score_tokens(hidden[:8], chosen[:8], head, temperature=1.0, chunk=8)[0].sum().backward()  # pyright: ignore[reportUnknownMemberType]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if fused:
        logprob, entropy, _ = score_tokens(hidden, chosen, head, temperature=1.0, chunk=CHUNK)
    else:
        logprobs = torch.log_softmax(head(hidden), -1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        logprob = logprobs.gather(-1, chosen[:, None])
    (logprob.sum() + 0.01 * entropy.sum()).backward()  # pyright: ignore[reportUnknownMemberType]
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    main()
