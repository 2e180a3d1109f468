"""The engine over transformers keeps the contract of generators, for several architectures."""

import asyncio

import pytest
from generation_toy import MIXTURE, ToyWriter, noisy

from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import HFGeneratorConfig


def contract(policy, config, **changed):
    def update(version):
        weights = noisy(policy.weights(), version)
        oracle = ToyWriter(policy.architecture, **policy.sizes)
        oracle.load(weights)
        return weights, oracle.score

    oracle = ToyWriter(policy.architecture, **policy.sizes)
    fields = {"score": oracle.score, "update": update, "vocabulary": 64, "max_model_len": 256, "deadline_s": 60.0}
    return GeneratorContract(generator=config.build(policy), **{**fields, **changed})


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [("qwen3", {}), ("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3_moe", MIXTURE)],
    ids=["qwen3", "llama", "qwen2", "qwen3_moe"],
)
def test_the_engine_keeps_the_contract(architecture, sizes):
    policy = ToyWriter(architecture, **sizes)
    asyncio.run(contract(policy, HFGeneratorConfig(max_running_requests=6, max_batch_tokens=64)).run())
