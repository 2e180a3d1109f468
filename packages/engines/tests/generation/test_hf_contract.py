"""The engine over transformers keeps the contract of generators, for several architectures."""

import asyncio

import pytest
from generation_toy import MIXTURE, ToyWriter

from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import HFGeneratorConfig


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("qwen3", {}),
        ("llama", {"tie_word_embeddings": True}),
        pytest.param("qwen2", {}, marks=pytest.mark.slow),
        ("qwen3_moe", MIXTURE),
    ],
    ids=["qwen3", "llama", "qwen2", "qwen3_moe"],
)
def test_the_engine_keeps_the_contract(architecture, sizes):
    policy = ToyWriter(architecture, **sizes)
    generator = HFGeneratorConfig(max_running_requests=6, max_batch_tokens=64).build(policy)
    sizes = {"vocabulary": 64, "max_model_len": 256, "deadline_s": 60.0}
    contract = GeneratorContract(generator=generator, score=policy.again().score, update=policy.updated, **sizes)
    asyncio.run(contract.run())
