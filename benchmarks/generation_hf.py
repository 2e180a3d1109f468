"""Tokens per second of the `hf` engine against `generate` of transformers, same network, prompts and lengths, in one run.

    uv run benchmarks/generation_hf.py                                            # a few million weights, on one CPU thread
    uv run benchmarks/generation_hf.py --device cuda --hidden 896 --layers 24 --vocabulary 151936 --heads 14 --new 16 1024

Responses have lengths of their own, log-uniform between two bounds, as in a rollout whose answers end where they end. `generate`
gets left-padded batches and a criterion that ends each row at its length: batches of as many rows as the engine runs at once, and
one batch of everything; a batch is done when its longest row is. Prompts come in groups, as GRPO wants them. Only tokens of
responses count. Variants take turns; the median counts. On the CPU seconds are those of the process, so that others who use the
machine don't count. The engine also gives log-probabilities and draws each row from a seed of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.generation import HFGeneratorConfig
from rlinf.models.language import CausalLMConfig, LanguageModel

_hf: Any = import_module("transformers")


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be written."""

    prompts: list[list[int]]
    lengths: list[int]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--architecture", default="qwen3")
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=64)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, nargs=2, default=[8, 24], help="shortest and longest prompt")
    parser.add_argument("--new", type=int, nargs=2, default=[8, 256], help="shortest and longest response")
    parser.add_argument("--rows", type=int, default=32, help="rows at once")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    policy, work = build(given), work_of(given)
    size = sum(p.numel() for p in policy.parameters()) / 1e6
    print(f"{size:.1f} M weights, {len(work.prompts)} responses, {sum(work.lengths)} tokens")
    variants: dict[str, Callable[[Work], None]] = {
        "engine": engine(policy, given.rows),
        f"generate, batches of {given.rows}": lambda asked: generate(policy, asked, given.rows),
        "generate, one batch": lambda asked: generate(policy, asked, len(asked.prompts)),
    }
    seconds = medians(variants, work, given.repeats, given.device)
    speeds = {name: sum(work.lengths) / taken for name, taken in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:28s} {speed:9,.0f} tokens/s")
    print(f"engine / the faster generate  {speeds['engine'] / max(s for n, s in speeds.items() if n != 'engine'):.2f}")


def build(given: argparse.Namespace) -> LanguageModel:
    """A network with random weights."""
    sizes = {
        "hidden_size": given.hidden,
        "intermediate_size": 3 * given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.heads,
        "num_key_value_heads": max(given.heads // 2, 1),
        "head_dim": given.hidden // given.heads,
        "vocab_size": given.vocabulary,
        "max_position_embeddings": given.prompt[1] + given.new[1] + 1,
    }
    precision = "fp32" if given.device == "cpu" else "bf16"
    config = CausalLMConfig(preset="tiny", architecture=given.architecture, overrides=sizes, precision=precision)
    return config.build(seed=0).to(given.device)


def work_of(given: argparse.Namespace) -> Work:
    """Prompts in groups, and the length of each response."""
    random = cast("Any", np.random.default_rng(0))
    prompts: list[list[int]] = []
    for _ in range(given.groups):
        size = int(random.integers(given.prompt[0], given.prompt[1] + 1))
        prompts.extend([[int(random.integers(3, given.vocabulary)) for _ in range(size)]] * given.group_size)
    low, high = np.log(given.new[0]), np.log(given.new[1])
    lengths = np.exp(random.uniform(low, high, size=len(prompts))).astype(int).tolist()
    return Work(prompts, lengths)


def engine(policy: LanguageModel, rows: int) -> Callable[[Work], None]:
    """All requests at once, to one engine."""
    generator = HFGeneratorConfig(max_running_requests=rows, device=str(policy.network.device)).build(policy)

    async def write(work: Work) -> None:
        asked = [
            generator.generate(prompt, SamplingConfig(max_new_tokens=length), seed=seed)
            for seed, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
        ]
        found = await asyncio.gather(*asked)
        if [len(completion) for completion in found] != work.lengths:
            raise RuntimeError("the engine lost tokens")

    return lambda work: asyncio.run(write(work))


class Lengths(_hf.StoppingCriteria):
    """Ends each row at a length of its own."""

    def __init__(self, lengths: torch.Tensor, start: int) -> None:
        self.ends = lengths + start

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """`[B]`, which rows are done."""
        return input_ids.shape[1] >= self.ends


@torch.inference_mode()
def generate(policy: LanguageModel, work: Work, rows: int) -> None:
    """Padded batches, one after the other."""
    network = cast("Any", policy.network)
    network.generation_config.eos_token_id = None  # generate falls back to it, and lengths are given
    for first in range(0, len(work.prompts), rows):
        prompts, lengths = work.prompts[first : first + rows], work.lengths[first : first + rows]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=network.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=network.device)
        written = network.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=_hf.GenerationConfig(
                do_sample=True, top_k=0, max_new_tokens=max(lengths), pad_token_id=0, eos_token_id=None
            ),
            stopping_criteria=_hf.StoppingCriteriaList([Lengths(torch.tensor(lengths, device=network.device), width)]),
        )
        if written.shape[1] != width + max(lengths):
            raise RuntimeError(f"generate stopped after {written.shape[1] - width} of {max(lengths)} tokens")


def medians(variants: dict[str, Callable[[Work], None]], work: Work, repeats: int, device: str) -> dict[str, float]:
    """Seconds of each, in turns, after a small one that doesn't count."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    clock = time.process_time if device == "cpu" else time.perf_counter
    for asked in [Work(work.prompts[:4], [3] * 4), *[work] * repeats]:
        for name, run in variants.items():
            start = clock()
            run(asked)
            if device == "cuda":
                torch.cuda.synchronize()
            if asked is work:
                seconds[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
