"""The engine over vLLM keeps the contract of generators, in this process and as a server; and what the contract does not ask."""

import asyncio

import pytest
import torch
from engine_trials import agrees_until_it_dies, dies_with_a_cause, held
from generation_toy import ToyWriter

from rlinf.core import SamplingConfig
from rlinf.core.errors import ConfigError
from rlinf.engines.generation import HFGeneratorConfig, VLLMGeneratorConfig

SMALL = {"max_running_requests": 32, "enforce_eager": True, "timeout_s": 600.0}
SIZES = {"head_dim": 32}  # the least that vLLM's kernels for CPUs take

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("mode", "tied"), [("in_process", True), ("server", False)])
def test_the_engine_keeps_the_contract(mode, tied):
    policy = ToyWriter("qwen3", tie_word_embeddings=tied, **SIZES)
    assert len(asyncio.run(held(policy, VLLMGeneratorConfig(mode=mode, **SMALL)))) == 15


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
        assert all("the engine failed" in told for told in await dies_with_a_cause(generator, "EngineCore"))
        await generator.close()
        with pytest.raises(ConfigError, match="closed"):
            await generator.generate([1, 2], SamplingConfig(max_new_tokens=4), seed=0)

    def agree(found, expected, oracle):
        for one, other, prompt in zip(found, expected, prompts, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()  # drawn in the same way, from the same seeds
            far = float((one.logprob - rescored(language, oracle, prompt, one.tokens.tolist())).abs().max())
            print(f"log-probabilities agree with the policy to {far:.1e}")
            assert far < 1e-5

    asyncio.run(run(VLLMGeneratorConfig(**SMALL).build(model(0)), HFGeneratorConfig().build(model(0))))


def test_a_server_whose_engine_is_killed_fails_all_requests_with_the_cause():
    policy = ToyWriter("qwen3", **SIZES)
    generator = VLLMGeneratorConfig(mode="server", **SMALL).build(policy)
    told = asyncio.run(agrees_until_it_dies(generator, ToyWriter("qwen3", **SIZES), "EngineCore"))
    assert all("EngineDeadError" in one or "the server is gone" in one or "exit status" in one for one in told)


def rescored(language, oracle, prompt, tokens):
    """What the policy's own forward pass says of a response."""
    made = language.token_batch([[(prompt, tokens)]])
    trajectory = type("T", (), {"context": made.context, "action": made.action, "mask": made.mask})
    with torch.no_grad():
        return oracle.default_forward(type("B", (), {"trajectory": trajectory})).logprob[made.mask]
