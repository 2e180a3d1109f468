"""The engine over SGLang keeps the contract of generators."""

import asyncio

import pytest
from generation_toy import ToyWriter, noisy

from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import SGLangGeneratorConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def contract(policy, config):
    def oracle(weights):
        made = ToyWriter(policy.architecture, **policy.sizes)
        made.load(weights)
        return made.score

    def update(version):
        weights = noisy(policy.weights(), version)
        return weights, oracle(weights)

    score = oracle(policy.weights())
    return GeneratorContract(
        generator=config.build(policy), score=score, update=update, vocabulary=64, max_model_len=256, deadline_s=300.0
    )


def test_the_engine_keeps_the_contract(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    policy = ToyWriter("qwen3", tie_word_embeddings=True)
    config = SGLangGeneratorConfig(device="cpu", max_running_requests=32, timeout_s=120.0)
    held = asyncio.run(contract(policy, config).run(report=print))
    assert len(held) == 15
