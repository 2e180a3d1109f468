"""The engine over transformers: who is read when, what is shared, and what a fault does."""

import asyncio
import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from generation_toy import ToyWriter, noisy

from rlinf.core import Weights
from rlinf.core.capabilities import HasMemory
from rlinf.core.errors import ConfigError, NonFiniteError, RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.worker import Worker, WorkerContext, injected
from rlinf.engines.generation import HFGeneratorConfig
from rlinf.engines.generation.hf._generator import _device

PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [17, 18]]


class Passes:
    """The shapes of what the network's base model is given: what is read, and how many rows are written."""

    def __init__(self, policy):
        self.read, self.written = [], []
        policy.network.base_model.register_forward_pre_hook(self.note, with_kwargs=True)

    def note(self, module, args, kwargs):
        shape = tuple(kwargs["input_ids"].shape)
        if kwargs.get("attention_mask") is None:
            self.read.append(shape)
        else:
            self.written.append((shape[0], kwargs["attention_mask"].shape[-1]))


def build(policy, **changed):
    generator = HFGeneratorConfig(**changed).build(policy)
    return generator, Passes(policy)


async def write(generator, prompts, new=6, **sampling):
    asked = [generator.generate(p, SamplingConfig(max_new_tokens=new, **sampling), seed=i) for i, p in enumerate(prompts)]
    return await asyncio.gather(*asked)


def test_prompts_are_read_together_and_one_token_has_nothing_to_be_read():
    generator, passes = build(ToyWriter())
    asyncio.run(write(generator, PROMPTS))
    assert passes.read == [(4, 7)]
    assert [rows for rows, _ in passes.written] == [4] * 6
    assert {seen for _, seen in passes.written} == {16}


def test_reading_is_bounded_and_writing_goes_on_meanwhile():
    generator, passes = build(ToyWriter(), max_batch_tokens=14)
    asyncio.run(write(generator, PROMPTS))
    assert passes.read == [(2, 4), (2, 7)]
    assert [rows for rows, _ in passes.written] == [2, 4, 4, 4, 4, 4, 2]


def test_a_row_is_used_again_at_once():
    generator, passes = build(ToyWriter(), max_running_requests=2)

    async def go():
        lengths = [2, 5, 3, 4]
        asked = [generator.generate([5, 6], SamplingConfig(max_new_tokens=n), seed=n) for n in lengths]
        assert [len(c) for c in await asyncio.gather(*asked)] == lengths

    asyncio.run(go())
    assert [rows for rows, _ in passes.written] == [2] * 5 + [1] * 4


def test_one_prompt_is_read_once_for_all_its_completions():
    generator, passes = build(ToyWriter(), max_running_requests=6)
    found = asyncio.run(write(generator, [PROMPTS[0]] * 8 + [PROMPTS[2]]))
    assert passes.read == [(1, 4), (2, 7)]
    alone = asyncio.run(write(HFGeneratorConfig().build(ToyWriter()), [PROMPTS[0]] * 3))
    for one, other in zip(found, alone, strict=False):
        assert one.tokens.tolist() == other.tokens.tolist()
        torch.testing.assert_close(one.logprob, other.logprob, atol=1e-5, rtol=0)


def test_what_was_shared_is_dropped_with_the_weights():
    policy = ToyWriter()
    generator, passes = build(policy)
    other = noisy(policy.weights(), 1)

    async def go():
        first = asyncio.ensure_future(write(generator, [PROMPTS[0]] * 3, new=40))
        while not passes.written:
            await asyncio.sleep(0)
        await generator.load(other)
        return await first, await write(generator, [PROMPTS[0]], new=5, temperature=0.0)

    _, (after,) = asyncio.run(go())
    assert [rows for rows, _ in passes.read] == [1, 3, 1]
    oracle = ToyWriter()
    oracle.load(other)
    assert oracle.score(PROMPTS[0], after.tokens.tolist())[1].tolist() == after.tokens.tolist()


def test_gone_on_with_the_same_weights_and_seed_it_is_as_if_never_interrupted():
    generator, _ = build(ToyWriter())

    async def go():
        sampling = SamplingConfig(max_new_tokens=30)
        whole = await generator.generate(PROMPTS[0], sampling, seed=4)
        part = await generator.generate(PROMPTS[0], SamplingConfig(max_new_tokens=11), seed=4)
        return whole, await generator.generate(PROMPTS[0], sampling, seed=4, partial=part)

    whole, resumed = asyncio.run(go())
    assert whole.tokens.tolist() == resumed.tokens.tolist()
    torch.testing.assert_close(whole.logprob, resumed.logprob, atol=1e-5, rtol=0)


def test_a_whole_partial_comes_back_as_it_is():
    generator, passes = build(ToyWriter())

    async def go():
        part = await generator.generate([5], SamplingConfig(max_new_tokens=4), seed=0)
        stop = SamplingConfig(max_new_tokens=9, stop_token_ids=(int(part.tokens[-1]),))
        count = len(passes.written)
        ends = [
            await generator.generate([5], sampling, seed=0, partial=part) for sampling in (SamplingConfig(max_new_tokens=4), stop)
        ]
        assert len(passes.written) == count
        return [end.finish for end in ends]

    assert asyncio.run(go()) == ["length", "stop"]


def test_nothing_is_held_when_nothing_is_in_flight():
    generator, _ = build(ToyWriter())
    asyncio.run(write(generator, PROMPTS))
    assert generator.in_flight == generator.cached_tokens == 0
    assert all(layer.keys is None and layer.values is None for layer in generator._batch._cache.layers)


def test_memory_is_the_weights_and_the_largest_cache():
    policy = ToyWriter()
    generator, _ = build(policy, max_running_requests=3)
    asyncio.run(write(generator, PROMPTS))
    own = policy.network.config
    # Keys and values of 3 rows of 128 columns, and a mask of one number for each column; 4 bytes each.
    columns = 3 * min(128, own.max_position_embeddings)
    cache = 4 * columns * (2 * own.num_hidden_layers * own.num_key_value_heads * own.head_dim + 1)
    weights = sum(4 * each.numel() for each in policy.network.parameters())
    assert generator.memory() == {"parameters": weights, "cache": cache}
    assert generator.memory() == {"parameters": weights, "cache": 0}
    assert isinstance(generator, HasMemory)


def test_a_closed_generator_holds_no_weights_and_refuses_everything():
    policy = ToyWriter()
    generator, weights = HFGeneratorConfig().build(policy), policy.weights()
    network = weakref.ref(policy.network)
    asyncio.run(generator.close())
    del policy
    gc.collect()
    assert network() is None
    for call in (generator.generate([5], SamplingConfig(max_new_tokens=1), seed=0), generator.load(weights)):
        with pytest.raises(ConfigError, match="the generator is closed"):
            asyncio.run(call)


def test_a_long_response_widens_the_cache_and_says_the_same():
    oracle, (generator, passes) = ToyWriter(), build(ToyWriter())
    (found,) = asyncio.run(write(generator, [PROMPTS[0]], new=200, temperature=0.0))
    assert passes.written[-1][1] == 208
    logprob, best = oracle.score(PROMPTS[0], found.tokens.tolist())
    assert best.tolist() == found.tokens.tolist()
    torch.testing.assert_close(found.logprob, torch.from_numpy(logprob), atol=1e-4, rtol=0)


def test_a_fault_ends_all_that_wait_with_its_cause_and_later_requests_are_tried_anew():
    policy = ToyWriter()
    generator, passes = build(policy, max_running_requests=2)

    def fail(module, args):
        if len(passes.written) > 3:
            raise MemoryError("no room")

    async def go():
        hook = policy.network.register_forward_pre_hook(fail)
        asked = [generator.generate(p, SamplingConfig(max_new_tokens=9), seed=0) for p in PROMPTS]
        errors = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
        hook.remove()
        return errors, await generator.generate([5], SamplingConfig(max_new_tokens=3), seed=0)

    errors, later = asyncio.run(go())
    assert all(type(error) is RLinfError and isinstance(error.__cause__, MemoryError) for error in errors)
    assert "a pass for 4 requests failed: MemoryError: no room" in str(errors[0])
    assert len(later) == 3


def test_weights_that_are_not_numbers_are_named_and_good_ones_mend_it():
    policy = ToyWriter()
    generator, good = HFGeneratorConfig().build(policy), policy.weights()
    bad = Weights(tensors={name: tensor * float("nan") for name, tensor in good.tensors.items()}, version=1)

    async def go():
        await generator.load(bad)
        with pytest.raises(RLinfError, match="not finite at version 1") as raised:
            await generator.generate([5, 6], SamplingConfig(max_new_tokens=3), seed=0)
        assert isinstance(raised.value.__cause__, NonFiniteError)
        await generator.load(good)
        return await generator.generate([5, 6], SamplingConfig(max_new_tokens=3), seed=0)

    assert len(asyncio.run(go())) == 3


@pytest.mark.parametrize(("token", "ok"), [(63, True), (64, False), (-1, False)])
def test_a_token_that_the_network_does_not_know_is_refused(token, ok):
    generator = HFGeneratorConfig().build(ToyWriter())
    asked = generator.generate([token], SamplingConfig(max_new_tokens=1), seed=0)
    if ok:
        assert len(asyncio.run(asked)) == 1
    else:
        with pytest.raises(ConfigError, match=rf"expected tokens in \[0, 64\), found {token}"):
            asyncio.run(asked)


def test_logits_are_those_that_the_network_scales():
    sizes = {"logits_scaling": 4.0, "embedding_multiplier": 3.0}
    oracle, generator = ToyWriter("granite", **sizes), HFGeneratorConfig().build(ToyWriter("granite", **sizes))
    for prompt, found in zip(PROMPTS, asyncio.run(write(generator, PROMPTS)), strict=True):
        torch.testing.assert_close(
            found.logprob, torch.from_numpy(oracle.score(prompt, found.tokens.tolist())[0]), atol=1e-5, rtol=0
        )


def test_a_window_is_refused_unless_everything_fits_into_it():
    sizes = {"sliding_window": 32}
    with pytest.raises(ConfigError, match="last 32 tokens"):
        HFGeneratorConfig().build(ToyWriter("mistral", **sizes))
    oracle, generator = ToyWriter("mistral", **sizes), HFGeneratorConfig(max_model_len=32).build(ToyWriter("mistral", **sizes))
    (found,) = asyncio.run(write(generator, [PROMPTS[0]], new=27, temperature=0.0))
    assert oracle.score(PROMPTS[0], found.tokens.tolist())[1].tolist() == found.tokens.tolist()


def test_a_network_that_remembers_in_its_own_way_is_refused():
    def lose_position(module, args, kwargs):
        if kwargs.get("past_key_values") is not None:
            kwargs["position_ids"] = torch.zeros_like(kwargs["position_ids"])
        return args, kwargs

    policy = ToyWriter()
    policy.network.base_model.register_forward_pre_hook(lose_position, with_kwargs=True)
    with pytest.raises(ConfigError, match="'qwen3' remembers in a way of its own"):
        HFGeneratorConfig().build(policy)


def test_a_kernel_that_knows_no_such_mask_is_replaced():
    policy, oracle = ToyWriter(), ToyWriter()
    policy.network.set_attn_implementation("flex_attention")
    (found,) = asyncio.run(write(HFGeneratorConfig().build(policy), [PROMPTS[0]], temperature=0.0))
    assert policy.network.config._attn_implementation == "sdpa"
    assert oracle.score(PROMPTS[0], found.tokens.tolist())[1].tolist() == found.tokens.tolist()


class Rollout(Worker):
    """Whose code runs in a test."""


@pytest.mark.parametrize(("kind", "device"), [(None, "meta"), ("NV_GPU", "meta"), ("VIRTUAL", "cpu"), ("", "cpu")])
def test_it_computes_where_its_worker_was_placed(monkeypatch, kind, device):
    """On a machine with a GPU: a virtual accelerator stands for a core, and the trainer beside it computes on the CPU."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    with nullcontext() if kind is None else injected(WorkerContext(group="rollout", accelerator_type=kind)):
        _worker = None if kind is None else Rollout()
        assert _device(None, torch.device("cpu")).type == device
    assert _device("cuda:1", torch.device("cpu")) == torch.device("cuda:1")


def test_who_writes_no_text_is_refused():
    with pytest.raises(ConfigError, match="expected a policy that writes text, found Linear"):
        HFGeneratorConfig().build(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("changed", [{"max_running_requests": 0}, {"max_batch_tokens": 0}, {"max_model_len": 1}])
def test_sizes_that_make_no_sense_are_refused(changed):
    with pytest.raises(ConfigError, match=next(iter(changed))):
        HFGeneratorConfig(**changed)


def test_the_id_of_an_aborted_request_can_be_used_again_at_once():
    generator, _ = build(ToyWriter())

    async def go():
        first = asyncio.ensure_future(generator.generate(PROMPTS[0], SamplingConfig(max_new_tokens=30), seed=0, request_id="a"))
        await asyncio.sleep(0)
        generator.abort(["a"])
        second = generator.generate(PROMPTS[1], SamplingConfig(max_new_tokens=5), seed=0, request_id="a")
        return await asyncio.wait_for(asyncio.gather(first, second), 60)

    ended, whole = asyncio.run(go())
    assert (ended.finish, whole.finish, len(whole)) == ("abort", "length", 5)
    assert generator.in_flight == 0
