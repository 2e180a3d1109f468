"""Tokens per second of vLLM against the `hf` engine: same network, prompts, seeds and lengths, in one run; see `generation_hf`.

    python benchmarks/generation_vllm.py        # in the environment of requirements-vllm-cpu.txt, on one CPU thread each

Engines take turns; the median counts. CPU seconds are those of this process and of its children, wall seconds what a clock says,
which on a machine with other work means little. The first line of each engine is about few requests at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from generation_hf import Work, build, work_of
from rlinf.core.language.generation import Generator, SamplingConfig
from rlinf.engines.generation import HFGeneratorConfig, VLLMGeneratorConfig


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run took."""

    wall: float
    cpu: float


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64], help="rows at once")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    shape = argparse.Namespace(
        device="cpu", architecture="qwen3", hidden=192, layers=4, heads=6, vocabulary=64, groups=16, group_size=8
    )
    shape.prompt, shape.new = [8, 24], [8, 256]
    work = work_of(shape)
    print(f"{len(work.prompts)} responses, {sum(work.lengths)} tokens")
    asyncio.run(compare(shape, work, given.rows, given.repeats))


async def compare(shape: argparse.Namespace, work: Work, rows: list[int], repeats: int) -> None:
    """Prints a line for each engine and number of rows."""
    vllm = VLLMGeneratorConfig(max_running_requests=max(rows), enforce_eager=True).build(build(shape))
    for count in rows:
        engines: dict[str, Generator] = {"hf": HFGeneratorConfig(max_running_requests=count).build(build(shape)), "vllm": vllm}
        spent: dict[str, list[Spent]] = {name: [] for name in engines}
        for turn in range(repeats + 1):
            for name, engine in engines.items():
                found = await write(engine, work, count)
                if turn:
                    spent[name].append(found)
        for name, runs in spent.items():
            wall, cpu = (sum(work.lengths) / statistics.median(getattr(run, kind) for run in runs) for kind in ("wall", "cpu"))
            print(f"{count:4d} rows  {name:6s} {wall:9,.0f} tokens/s by the clock  {cpu:9,.0f} by CPU seconds")
    await vllm.close()


async def write(engine: Generator, work: Work, rows: int) -> Spent:
    """All responses, so many at a time."""
    room = asyncio.Semaphore(rows)

    async def one(seed: int) -> None:
        async with room:
            sampling = SamplingConfig(max_new_tokens=work.lengths[seed])
            completion = await engine.generate(work.prompts[seed], sampling, seed=seed)
            if len(completion) != work.lengths[seed]:
                raise RuntimeError("the engine lost tokens")

    wall, cpu = time.perf_counter(), cpu_seconds()
    await asyncio.gather(*(one(seed) for seed in range(len(work.prompts))))
    return Spent(time.perf_counter() - wall, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Of this process and its children."""
    here = psutil.Process()
    times: list[Any] = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(t.user + t.system for t in times)


if __name__ == "__main__":
    main()
