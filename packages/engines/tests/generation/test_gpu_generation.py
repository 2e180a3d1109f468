"""Writing text on a GPU: the tokens that the CPU writes, what the network says of them, and memory that is free afterwards."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
import torch
from generation_toy import ToyWriter, noisy

from rlinf.core.language.generation import SamplingConfig
from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import HFGeneratorConfig

pytestmark = pytest.mark.gpu
PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [17, 18]]


async def write(generator: Any, prompts: list[list[int]], new: int = 24, **sampling: Any) -> list[Any]:
    asked = [generator.generate(p, SamplingConfig(max_new_tokens=new, **sampling), seed=i) for i, p in enumerate(prompts)]
    return await asyncio.gather(*asked)


def test_the_contract_is_kept_there(device: torch.device) -> None:
    policy = ToyWriter().to(device)
    generator = HFGeneratorConfig(max_running_requests=6, max_batch_tokens=64, device=str(device)).build(policy)
    sizes = {"vocabulary": 64, "max_model_len": 256, "deadline_s": 60.0}
    contract = GeneratorContract(generator=generator, score=policy.again().to(device).score, update=policy.updated, **sizes)
    asyncio.run(contract.run())


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.9}], ids=str)
def test_it_writes_what_the_cpu_writes(device: torch.device, sampling: dict[str, Any]) -> None:
    """Of float32, as bfloat16 rounds in its own way on each: the likeliest tokens, and those of a seed."""
    here = HFGeneratorConfig(device="cpu").build(ToyWriter())
    there = HFGeneratorConfig(device=str(device)).build(ToyWriter())
    expected, found = (asyncio.run(write(generator, PROMPTS * 3, **sampling)) for generator in (here, there))
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        torch.testing.assert_close(one.logprob, other.logprob, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"])
def test_what_it_says_is_within_the_gate(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    """Written token by token from a cache, and scored in one pass; after other weights came in the midst of it, too."""
    policy = ToyWriter(hidden_size=64, initializer_range=0.1).to(device, dtype)
    generator = HFGeneratorConfig(device=str(device), max_running_requests=3).build(policy)
    oracle = policy.again().to(device, dtype)
    for version in (0, 1):
        if version:
            weights = noisy(policy.weights(), version, 0.01)
            oracle.load(weights)
            asyncio.run(generator.load(weights))
        for prompt, found in zip(PROMPTS, asyncio.run(write(generator, PROMPTS, new=60)), strict=True):
            said = torch.from_numpy(oracle.score(prompt, found.tokens.tolist())[0])
            assert float((found.logprob - said).exp().sub(1).abs().max()) < tolerance


def test_nothing_stays_on_the_device(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("torch counts the memory of GPUs alone")
    torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)  # cuBLAS keeps its room from the first product on
    gc.collect()
    before = torch.cuda.memory_allocated()
    policy = ToyWriter(hidden_size=256, num_hidden_layers=4).to(device)
    generator = HFGeneratorConfig(device=str(device), max_running_requests=64).build(policy)
    weights = torch.cuda.memory_allocated() - before
    asyncio.run(write(generator, PROMPTS * 16, new=100))
    assert generator.memory()["cache"] > weights / 10
    assert torch.cuda.memory_allocated() - before == pytest.approx(weights, rel=0.01), (
        "the cache is given back with the last request"
    )
    asyncio.run(generator.close())
    del policy, generator
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 1 << 20
