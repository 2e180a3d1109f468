"""What a configuration says of its policy is what the policy does."""

import inspect
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters
from typing_extensions import get_protocol_members

from rlinf.core.capabilities import LanguageModelPolicy, RealTimeChunkingPolicy, RecurrentPolicy
from rlinf.core.data.tree import tree_concatenate
from rlinf.core.declarations import traits_of
from rlinf.core.models import build_model
from rlinf.core.protocols import CompiledPolicy
from rlinf.core.random import RowGenerators
from rlinf.core.registry import MODELS
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.commands import TEXT, TINY

JUDGES = ("recap_value_model", "steam_value_model", "sequence_reward")
"""What scores texts or states is no policy."""
VARIANTS = {
    "mlp_policy": [{}, {"add_value_head": False, "distribution": "tanh_gaussian"}, {"num_q_heads": 2}],
    "flow_policy": [{}, {"add_value_head": False}, {"num_q_heads": 2}],
    "causal_lm": [{"preset": "tiny"}, {"preset": "tiny", "add_value_head": True, "temperature": 0.7}],
    "dsrl": [{}],
    "rlt": [{}],
}
CASES = [
    (name, params)
    for name in MODELS.names()
    if MODELS.owner(name).startswith("rlinf.models.") and name not in JUDGES
    for params in VARIANTS.get(name, [{"preset": "tiny"}])
]


@pytest.mark.parametrize(("name", "params"), CASES)
def test_traits(name, params):
    config = MODELS.build(name, params, place="model")
    traits = traits_of(config)
    spec = TEXT if traits.language else TINY
    policy = build_model(config, spec, seed=0, place="model")
    contract = PolicyContract(
        policy=policy, spec=spec, as_array=torch.as_tensor, generator=lambda seed: torch.Generator().manual_seed(seed)
    )
    decision = contract.decide(contract.observation(2), train=True)
    if traits.critic is not None:
        assert (decision.value is not None) == traits.critic
    assert _is(policy, RecurrentPolicy) == bool(traits.recurrent)
    assert _is(policy, LanguageModelPolicy) == bool(traits.language)
    assert _is(policy, RealTimeChunkingPolicy) == bool(traits.real_time_chunking)
    assert _is(policy, CompiledPolicy) == bool(traits.compiled)
    if traits.blocks is False:
        assert not any(isinstance(module, torch.nn.ModuleList) for module in policy.modules())
    if traits.row_generators:
        _draws_alone(contract, policy)
    if traits.temperature is not None:
        assert policy.temperature == traits.temperature
    if traits.entropy is not None:
        evaluation = policy.default_forward(contract.batch([decision]))
        assert (evaluation.entropy is not None) == traits.entropy


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("gr00t", "eager"),
        ("pi0", "eager"),
        *(pytest.param(name, "inductor", marks=pytest.mark.slow) for name in ("gr00t", "pi0", "pi05")),
    ],
)
def test_what_is_compiled_decides_as_before_and_follows_new_weights(name, backend, monkeypatch):
    """`eager` only traces, in seconds: what can't be traced fails there, and so would weights that were taken for constants."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend, fullgraph=True))
    plain, compiled, other = (
        build_model(MODELS.build(name, {"preset": "tiny"}, place="model"), TINY, seed=seed, place="model") for seed in (0, 0, 1)
    )
    contract = PolicyContract(policy=plain, spec=TINY, as_array=torch.as_tensor, generator=torch.Generator().manual_seed)
    observation = contract.observation(3)
    counters.clear()
    compiled.enable_torch_compile()
    for policy in (plain, other):
        compiled.load(policy.weights())
        found = compiled.predict_action_batch(observation, generator=torch.Generator().manual_seed(5))
        expected = policy.predict_action_batch(observation, generator=torch.Generator().manual_seed(5))
        torch.testing.assert_close(found.action, expected.action, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.logprob, expected.logprob, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"


def _is(policy, protocol):
    """What `isinstance` says on every Python: from 3.12 on it does not see what `__getattr__` finds, such as submodules."""
    absent = object()
    there = all(inspect.getattr_static(policy, member, absent) is not absent for member in get_protocol_members(protocol))
    assert isinstance(policy, protocol) == there
    return there


def _draws_alone(contract, policy):
    """Rows that are decided for together draw what they would draw alone, in both modes."""
    seeds = {11: 2, 12: 1, 13: 20}
    parts = [(contract.observation(rows), rows, seed) for seed, rows in seeds.items()]
    if isinstance(policy, RecurrentPolicy):
        parts = [({**obs, **policy.initial_state(rows)}, rows, seed) for obs, rows, seed in parts]
    together = RowGenerators(tuple((rows, torch.Generator().manual_seed(seed)) for _, rows, seed in parts))
    for mode in ("train", "eval"):
        alone = [policy.predict_action_batch(obs, mode, generator=torch.Generator().manual_seed(seed)) for obs, _, seed in parts]
        joined = policy.predict_action_batch(tree_concatenate([obs for obs, _, _ in parts]), mode, generator=together)
        torch.testing.assert_close(joined.action, torch.cat([decision.action for decision in alone]), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(joined.logprob, torch.cat([decision.logprob for decision in alone]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["flow_policy", "pi0", "gr00t"])
def test_a_policy_with_learned_noise_can_be_steered(name):
    config = MODELS.build(name, {"preset": "tiny"} if name != "flow_policy" else {}, place="model")
    config = replace(config, sampling=replace(config.sampling, noise_method="flow_noise"))
    policy = config.build(TINY, seed=0)
    contract = PolicyContract(
        policy=policy, spec=TINY, as_array=torch.as_tensor, generator=lambda seed: torch.Generator().manual_seed(seed)
    )
    action = policy.steer(contract.observation(2), torch.zeros(2, *policy.noise_shape))
    assert action.isfinite().all()


def test_a_policy_with_a_memory_says_what_off_policy_algorithms_ask():
    traits = traits_of(MODELS.build("cma", {"num_q_heads": 2, "num_action_chunks": 3}, place="model"))
    assert (traits.q_functions, traits.chunk, traits.recurrent) == (True, 3, True)
