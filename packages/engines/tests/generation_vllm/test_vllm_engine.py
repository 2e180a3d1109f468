"""The engine over vLLM keeps the contract of generators, in this process and as a server; and what the contract does not ask."""

import asyncio

import psutil
import pytest
import torch
from generation_toy import ToyWriter, noisy

from rlinf.core import SamplingConfig
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import HFGeneratorConfig, VLLMGeneratorConfig

SMALL = {"max_running_requests": 32, "enforce_eager": True, "timeout_s": 120.0}
SIZES = {"head_dim": 32}  # the least that vLLM's kernels for CPUs take

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


@pytest.mark.parametrize(("mode", "tied"), [("in_process", True), ("server", False)])
def test_the_engine_keeps_the_contract(mode, tied):
    policy = ToyWriter("qwen3", tie_word_embeddings=tied, **SIZES)
    held = asyncio.run(contract(policy, VLLMGeneratorConfig(mode=mode, **SMALL)).run(report=print))
    assert len(held) == 15


def test_it_agrees_with_a_language_model_and_its_death_has_a_cause():
    language = pytest.importorskip("rlinf.models.language")

    def model(seed):
        overrides = {"head_dim": 32, "tie_word_embeddings": True}
        return language.CausalLMConfig(preset="tiny", overrides=overrides, temperature=0.7).build(seed=seed)

    sampling = SamplingConfig(max_new_tokens=24, temperature=0.7, top_k=40, top_p=0.9)
    prompts = [[5, 6, 7], [9] * 20, [3]]

    async def write(generator):
        return await asyncio.gather(*(generator.generate(p, sampling, seed=i) for i, p in enumerate(prompts)))

    async def run(generator, reference):
        before, expected = await write(generator), await write(reference)
        agree(before, expected, model(0))
        weights = model(1).weights()
        await generator.load(weights)
        await reference.load(weights)
        after = await write(generator)
        agree(after, await write(reference), model(1))
        assert [a.tokens.tolist() for a in after] != [b.tokens.tolist() for b in before]
        task = asyncio.create_task(generator.generate([1, 2], SamplingConfig(max_new_tokens=400), seed=0))
        await asyncio.sleep(0.1)
        for child in psutil.Process().children(recursive=True):
            if "EngineCore" in child.name() or "EngineCore" in " ".join(child.cmdline()):
                child.kill()
        with pytest.raises(RLinfError, match="the engine failed"):
            await task
        with pytest.raises(RLinfError, match="the engine failed"):
            await generator.generate([1, 2], SamplingConfig(max_new_tokens=4), seed=0)
        await generator.close()
        with pytest.raises(ConfigError, match="closed"):
            await generator.generate([1, 2], SamplingConfig(max_new_tokens=4), seed=0)

    def agree(found, expected, oracle):
        for one, other, prompt in zip(found, expected, prompts, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()  # drawn in the same way, from the same seeds
            torch.testing.assert_close(one.logprob, rescored(language, oracle, prompt, one.tokens.tolist()), atol=1e-5, rtol=0)

    asyncio.run(run(VLLMGeneratorConfig(**SMALL).build(model(0)), HFGeneratorConfig().build(model(0))))


def rescored(language, oracle, prompt, tokens):
    """What the policy's own forward pass says of a response."""
    made = language.token_batch([[(prompt, tokens)]])
    trajectory = type("T", (), {"context": made.context, "action": made.action, "mask": made.mask})
    with torch.no_grad():
        return oracle.default_forward(type("B", (), {"trajectory": trajectory})).logprob[made.mask]
