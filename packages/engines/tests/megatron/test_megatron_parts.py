"""What needs no Megatron: sizes, the conversion of weights, scores over a divided vocabulary, float32 weights of bfloat16 ones."""

import math
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from megatron_text import CONFIGS, MIXTURE, SIZES, Writer
from transformers import MistralConfig, Qwen2Config, Qwen3MoeConfig

from rlinf.core.declarations import ModelParallel
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import TrainerConfig
from rlinf.engines import OptimConfig
from rlinf.engines.megatron import MegatronTrainerConfig
from rlinf.engines.megatron.attention import TorchNorm
from rlinf.engines.megatron.mapping import Cut, Gated, Grouped, Shape, Whole
from rlinf.engines.megatron.masters import Masters
from rlinf.engines.megatron.scoring import score_divided


def test_ranks_are_numbered_tensor_context_data_pipeline() -> None:
    """Of 16 ranks with tensor 2, context 2 and pipeline 2, two copies: pairs of four are neighbours, stages eight apart."""
    config: TrainerConfig = MegatronTrainerConfig(
        tensor_model_parallel_size=2, context_parallel_size=2, pipeline_model_parallel_size=2
    )
    assert isinstance(config, ModelParallel)
    assert [config.data_rank(rank, 16)[0] for rank in range(16)] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert config.data_rank(5, 16) == (1, 2)
    assert MegatronTrainerConfig().data_rank(3, 4) == (3, 4)
    experts = MegatronTrainerConfig(expert_model_parallel_size=4, pipeline_model_parallel_size=2)
    assert [experts.data_rank(rank, 8)[0] for rank in range(8)] == [0, 1, 2, 3] * 2
    with pytest.raises(ConfigError, match=r"the 6 ranks that hold the same layers can't be parted into groups of 4"):
        experts.data_rank(0, 12)
    with pytest.raises(ConfigError, match=r"12 ranks can't hold copies of tensor 2 × pipeline 2 × context 2.*a multiple of 8"):
        config.data_rank(0, 12)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tensor_model_parallel_size": 0}, "tensor_model_parallel_size"),
        ({"pipeline_model_parallel_size": -1}, "pipeline_model_parallel_size"),
        ({"logit_chunk": 0}, "logit_chunk"),
        ({"max_tokens_per_mbs": 0}, "max_tokens_per_mbs"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"expert_model_parallel_size": 0}, "expert_model_parallel_size"),
        ({"sequence_parallel": True}, "sequence_parallel"),
        ({"optim": OptimConfig(value_lr=1e-4)}, "no critic"),
    ],
)
def test_what_can_not_be(fields, place) -> None:
    with pytest.raises(ConfigError, match=place):
        MegatronTrainerConfig(**fields)


def test_groups_of_queries_are_interleaved_with_their_keys_and_values() -> None:
    """Four heads of one row each in two groups: q0 q1 k0 v0 | q2 q3 k1 v1."""
    q, k, v = torch.tensor([[0.0], [1], [2], [3]]), torch.tensor([[10.0], [11]]), torch.tensor([[20.0], [21]])
    parts = Grouped(groups=2, queries=2, width=1).split([q, k, v], 2)
    assert [part.flatten().tolist() for part in parts] == [[0, 1, 10, 20], [2, 3, 11, 21]]


def test_gate_and_up_are_joined_within_a_rank() -> None:
    gate, up = torch.arange(4.0)[:, None], torch.arange(10.0, 14)[:, None]
    assert [part.flatten().tolist() for part in Gated().split([gate, up], 2)] == [[0, 1, 10, 11], [2, 3, 12, 13]]


def test_a_vocabulary_is_filled_up_with_zeros() -> None:
    parts = Cut(0, 3).split([torch.tensor([[1.0], [2], [3]])], 2)
    assert [part.flatten().tolist() for part in parts] == [[1, 2], [3, 0]]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_division_comes_back_to_the_bit(ranks) -> None:
    g = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(*shape, generator=g)

    cases = [
        (Whole(), [noise(5)]),
        (Cut(0, 7), [noise(7, 3)]),
        (Cut(1, 8), [noise(3, 8)]),
        (Gated(), [noise(8, 3), noise(8, 3)]),
        (Grouped(4, 3, 5), [noise(60, 2), noise(20, 2), noise(20, 2)]),
        (Grouped(4, 1, 5), [noise(20), noise(20), noise(20)]),
    ]
    for division, sources in cases:
        merged = division.merge(division.split(sources, ranks))
        assert all(torch.equal(one, other) for one, other in zip(merged, sources, strict=True)), division


@pytest.mark.parametrize("family", CONFIGS)
def test_every_weight_has_one_place(family) -> None:
    shape = Shape.of(CONFIGS[family]())
    names = Writer(family).network.state_dict().keys()
    shape.expect(names)
    for stages in (1, 2):
        entries = list(shape.entries(stages))
        assert len({(entry.stage, entry.name) for entry in entries}) == len(entries)
        sources = [source for entry in entries if not entry.repeats for source in entry.sources]
        assert len(set(sources)) == len(sources)
        assert set(sources) | ({"lm_head.weight"} if shape.tied else set()) == set(names)
    with pytest.raises(ConfigError, match=r"1 weights are not those.*lora_A"):
        shape.expect([*names, "model.layers.0.self_attn.q_proj.lora_A.weight"])
    with pytest.raises(ConfigError, match=r"2 heads of keys and values can't be divided over 4 ranks"):
        shape.check(4, 1)
    with pytest.raises(ConfigError, match=r"2 layers can't be divided over 3 ranks"):
        shape.check(1, 3)


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected an architecture of llama, qwen2, qwen3, qwen3_moe, found 'mistral'"):
        Shape.of(MistralConfig())
    sliding = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(ConfigError, match="sliding windows"):
        Shape.of(sliding)
    for mixed in ({"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}):
        with pytest.raises(ConfigError, match="layers without experts among those with experts"):
            Shape.of(Qwen3MoeConfig(**MIXTURE, **mixed))
    with pytest.raises(ConfigError, match="sliding windows"):
        Shape.of(Qwen3MoeConfig(**MIXTURE, use_sliding_window=True, sliding_window=4))
    with pytest.raises(ConfigError, match="expected a language model, found Linear"):
        MegatronTrainerConfig().build(torch.nn.Linear(2, 2), rank=0, world_size=1, rendezvous="")
    with pytest.raises(ConfigError, match=r"1 ranks can't hold copies"):
        MegatronTrainerConfig(tensor_model_parallel_size=2).build(Writer(), rank=0, world_size=1, rendezvous="")
    with pytest.raises(ConfigError, match="found 2 for a model without experts"):
        MegatronTrainerConfig(expert_model_parallel_size=2).build(Writer(), rank=0, world_size=2, rendezvous="")


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("qwen3", (2, 1, False), r"expert_model_parallel_size: found 2 for a model without experts"),
        ("qwen3_moe", (3, 1, False), r"expert_model_parallel_size: 8 experts can't be divided over 3 ranks"),
        ("qwen3_moe", (1, 2, False), r"sequence_parallel: 2 tensor ranks would send the same tokens"),
    ],
)
def test_what_experts_can_not_be(family, sizes, message) -> None:
    experts, tensor, sequence = sizes
    with pytest.raises(ConfigError, match=message):
        Shape.of(CONFIGS[family]()).check_experts(experts, tensor, sequence_parallel=sequence)
    Shape.of(CONFIGS["qwen3_moe"]()).check_experts(4, 2, sequence_parallel=True)


def scored(rank: int, folder: Path, dtype: torch.dtype) -> None:
    """One of two ranks scores with its part of a head of 7 rows, the 8th of which does not exist."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    hidden, weight, tokens, by = problem(dtype)
    own = torch.cat([weight, torch.full((1, 3), 9.0, dtype=dtype)]).chunk(2)[rank].clone().requires_grad_()
    hidden.requires_grad_()
    found = score_divided(hidden, own, tokens, group=dist.group.WORLD, vocabulary=7, temperature=0.7, chunk=2)
    sum((x * w).sum() for x, w in zip(found[:2], by, strict=True)).backward()
    torch.save([x.detach() for x in (*found, hidden.grad, own.grad)], folder / f"{rank}.pt")
    os._exit(0)


def problem(dtype: torch.dtype):
    g = torch.Generator().manual_seed(2)
    hidden, weight = torch.randn(5, 3, generator=g).to(dtype), torch.randn(7, 3, generator=g).to(dtype)
    return hidden, weight, torch.tensor([0, 6, 3, 4, 2]), torch.randn(2, 5, generator=g)


def test_a_divided_vocabulary_scores_as_a_whole_one(tmp_path) -> None:
    """Values of log-probability, entropy and Σ π², gradients of the first two, against log_softmax and autograd."""
    forks = multiprocessing.get_context("fork")
    ranks = [forks.Process(target=scored, args=(rank, tmp_path, torch.float64)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(100)
        assert one.exitcode == 0
    hidden, weight, tokens, by = problem(torch.float64)
    hidden.requires_grad_()
    weight.requires_grad_()
    log = (hidden @ weight.T / 0.7).log_softmax(-1)
    expected = log.gather(-1, tokens[:, None]).squeeze(-1), -(log.exp() * log).sum(-1)
    sum((x * w).sum() for x, w in zip(expected, by, strict=True)).backward()
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for found in (one, other):
        torch.testing.assert_close(found[0], expected[0].detach())
        torch.testing.assert_close(found[1], expected[1].detach())
        torch.testing.assert_close(found[2], log.detach().exp().square().sum(-1))
        torch.testing.assert_close(found[3], hidden.grad)
    torch.testing.assert_close(torch.cat([one[4], other[4]])[:7], weight.grad)
    assert not other[4][-1].any()


def test_a_step_too_small_for_bfloat16_is_kept() -> None:
    """1 + 2⁻¹⁰ is 1 in bfloat16; four such steps are 1 + 2⁻⁸, which it has."""
    weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    masters = Masters({"a.b": weight})
    for step in range(1, 5):
        (weight.float().sum() * 1.0).backward()
        (weight.float().sum() * 2.0).backward()
        assert weight.grad is None
        (gradient,) = masters.take(masters.gradients())
        assert gradient.dtype == torch.float32
        assert gradient.tolist() == [[3.0, 3.0], [3.0, 3.0]]
        with torch.no_grad():
            masters.held["a.b"].add_(2.0**-9)
        masters.publish()
        masters.drop()
        assert masters.held["a.b"][0, 0].item() == 1 + step * 2.0**-9
    assert weight[0, 0].item() == 1 + 2.0**-7


def test_the_norm_is_that_of_the_formula() -> None:
    config = type("Config", (), {"use_cpu_initialization": True, "params_dtype": torch.float32})()
    found = TorchNorm(config, 2, eps=0.5)(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(found[0], torch.tensor([3.0, 4.0]) / math.sqrt(13.0))
