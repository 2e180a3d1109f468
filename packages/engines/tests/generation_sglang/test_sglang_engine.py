"""The engine over SGLang keeps the contract of generators; and what the contract does not ask."""

import asyncio

import pytest
from engine_trials import agrees_until_it_dies, held
from generation_toy import ToyWriter

from rlinf.engines.generation import SGLangGeneratorConfig

CONFIG = SGLangGeneratorConfig(device="cpu", max_running_requests=32, timeout_s=600.0)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


def test_the_engine_keeps_the_contract():
    assert len(asyncio.run(held(ToyWriter("qwen3", tie_word_embeddings=True), CONFIG))) == 15


def test_an_engine_that_is_killed_fails_all_requests_with_the_cause():
    generator = CONFIG.build(ToyWriter("qwen3"))
    told = asyncio.run(agrees_until_it_dies(generator, ToyWriter("qwen3"), "sglang::scheduler"))
    assert all("the engine failed" in one for one in told)
