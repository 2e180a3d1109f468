"""What is the same for every policy: refusals of observations, and types of weights."""

import dataclasses

import numpy as np
import pytest
import torch

from rlinf.core.data.tree import tree_map
from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError
from rlinf.core.registry import MODELS
from rlinf.core.testing import PolicyContract
from rlinf.models import get_model
from rlinf.models.commands import TINY
from rlinf.models.observations.reading import refuse_not_finite

SMALL = {"mlp_policy": {}, "flow_policy": {}, "dsrl": {}}
LARGE = {name: {"preset": "tiny"} for name in ("cnn_policy", "cma", "pi0", "pi05", "openvla", "openvla_oft", "gr00t")}
L1 = {"preset": "tiny", "action_head": "l1", "use_film": True, "use_proprio": True}
POLICIES = [*SMALL.items(), *LARGE.items(), ("openvla_oft", L1), ("flow_policy", {"sampling": {"noise_method": "flow_noise"}})]


def build(name, params):
    return MODELS.build(name, params, place=name).build(TINY, seed=0)


def examine(policy):
    return PolicyContract(policy=policy, spec=TINY, as_array=torch.as_tensor, generator=torch.Generator().manual_seed)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(tensor, value):
    policy = build("mlp_policy", {})
    states = np.ones((4, 7), np.float32)
    states[2, 5] = value
    observation = {"task_descriptions": ["a"] * 4, "states": torch.as_tensor(states) if tensor else states}
    with pytest.raises(NonFiniteError, match=r"predict_action_batch\(env_obs\.states\): .* at \[2, 5\], 1 such in rows \[2\]"):
        policy.predict_action_batch(observation)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_large_numbers_are_finite(dtype):
    most = np.finfo(dtype).max
    refuse_not_finite({"a": {"b": np.full((2, 3), most)}, "c": torch.from_numpy(np.full((2, 3), most))})
    with pytest.raises(NonFiniteError, match=r"env_obs\.a\.b"):
        refuse_not_finite({"a": {"b": np.array([[most, np.nan]])}})
    with pytest.raises(NonFiniteError, match="inf"):
        refuse_not_finite(torch.tensor([[1.0], [torch.inf]], dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["mlp_policy", "flow_policy", "dsrl", "cnn_policy", "cma", "pi0", "pi05", "gr00t"])
def test_states_of_another_size_are_refused(name):
    policy = build(name, {**SMALL, **LARGE}[name])
    observation = {**examine(policy).observation(2), "states": np.ones((2, 9), np.float32)}
    with pytest.raises(ShapeError, match=rf"{name}\(env_obs\)\.states: expected \[B, 7\].* found \(2, 9\)\. Use the environment"):
        policy.predict_action_batch(observation)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("name", "params"), POLICIES)
def test_any_type_of_weights(name, params, dtype):
    policy = build(name, params).to(dtype)
    contract = examine(policy)
    for train in (True, False):
        decision = contract.decide(contract.observation(3), train=train)
        assert decision.logprob.dtype in (torch.float32, torch.float64)
        assert torch.isfinite(decision.logprob).all()
        # What a batch holds is at most float32, for NumPy knows no bfloat16.
        plain = {f.name: getattr(decision, f.name) for f in dataclasses.fields(decision)}
        plain |= {name: plain[name] if plain[name] is None else widened(plain[name]) for name in ("action", "logprob", "value")}
        plain["context"] = tree_map(widened, decision.context)
        scores = policy.default_forward(contract.batch([type(decision)(**plain)]))
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(scores.logprob[:, 0], decision.logprob, rtol=1e-4, atol=tolerance, check_dtype=False)


def widened(leaf):
    return leaf.float() if leaf.dtype == torch.bfloat16 else leaf


def test_no_rows_leave_a_graph_without_gradients():
    policy = build("pi0", {"preset": "tiny"})
    contract = examine(policy)
    scores = policy.default_forward(contract.batch([contract.decide(contract.observation(0))]))
    (scores.logprob.sum() + scores.value.sum()).backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients
    assert all(not gradient.any() for gradient in gradients)


def test_a_misspelt_mode_does_not_sample():
    policy = build("mlp_policy", {})
    with pytest.raises(
        ConfigError, match=r"predict_action_batch\(mode\): no mode 'evl'\. Did you mean 'eval'\? Modes: eval, train"
    ):
        policy.predict_action_batch(examine(policy).observation(1), mode="evl")


def test_a_name_where_a_section_belongs():
    with pytest.raises(ConfigError, match="model: expected a section, found 'mlp_policy'"):
        get_model("mlp_policy", TINY)
