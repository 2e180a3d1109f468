"""The engine over transformers with prompts that show pictures."""

import asyncio
from functools import partial

import pytest
import torch
from generation_toy import ToyWriter
from seeing_toy import IMAGE, Picturing, SeeingWriter, shown

from rlinf.core.capabilities import HasImages
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import ShownPrompt
from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import HFGeneratorConfig


@pytest.mark.parametrize("architecture", ["qwen3_vl", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)])
def test_the_engine_keeps_the_contract_with_pictures_beside_text(architecture):
    policy = SeeingWriter(architecture)
    generator = HFGeneratorConfig(max_running_requests=6, max_batch_tokens=96, max_model_len=255).build(policy)
    contract = GeneratorContract(
        generator=Picturing(generator),
        score=policy.again().score,
        update=partial(policy.updated, scale=0.1),
        vocabulary=61,
        max_model_len=248,
        deadline_s=60.0,
    )
    assert len(asyncio.run(contract.run())) == 15


class Reads:
    """How many rows and pixels the network reads at a time."""

    def __init__(self, policy):
        self.found = []
        policy.network.base_model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module, args, kwargs):
        if kwargs.get("attention_mask") is None:
            pixels = kwargs.get("pixel_values")
            self.found.append((kwargs["input_ids"].shape[0], 0 if pixels is None else len(pixels)))


def write(generator, prompts, new=4):
    async def together():
        asked = [generator.generate_with_images(p, SamplingConfig(max_new_tokens=new), seed=i) for i, p in enumerate(prompts)]
        return await asyncio.gather(*asked)

    return asyncio.run(together())


def test_one_picture_is_read_once_and_another_with_the_same_words_for_itself():
    policy = SeeingWriter("qwen3_vl")
    generator = HFGeneratorConfig().build(policy)
    reads = Reads(policy)
    one, other = shown([5, 6, 8, 9]), shown([5, 6, 8, 9], picture=77)
    assert one.tokens == other.tokens
    together = write(generator, [one, one, other, one])
    assert reads.found == [(2, 32)]
    alone = [write(generator, [prompt] * 4)[i] for i, prompt in enumerate([one, one, other, one])]
    for left, right in zip(together, alone, strict=True):
        assert left.tokens.tolist() == right.tokens.tolist()
        torch.testing.assert_close(left.logprob, right.logprob, atol=1e-5, rtol=0)


def test_text_alone_is_read_as_ever():
    policy = SeeingWriter("qwen3_vl")
    generator = HFGeneratorConfig().build(policy)
    reads = Reads(policy)
    found = write(generator, [shown([5, 6, 8])])[0]
    assert reads.found == [(1, 0)]
    plain = asyncio.run(generator.generate([5, 6, 8], SamplingConfig(max_new_tokens=4), seed=0))
    assert found.logprob.tolist() == plain.logprob.tolist()


def test_pictures_are_refused_where_nobody_looks_at_them_or_nothing_follows():
    generator = HFGeneratorConfig().build(ToyWriter())
    assert isinstance(generator, HasImages)
    with pytest.raises(ConfigError, match="a prompt with pictures for ToyWriter, which can't look at them"):
        write(generator, [shown([5])])
    last = shown([5])
    last = ShownPrompt(tokens=last.tokens[:-1], at=last.at, shown=last.shown)
    assert last.tokens[-1] == IMAGE
    with pytest.raises(ConfigError, match="the last token shows a picture"):
        write(HFGeneratorConfig().build(SeeingWriter("qwen3_vl")), [last])
