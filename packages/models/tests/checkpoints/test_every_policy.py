"""Every registered policy that builds offline, to disk and back."""

import pytest
import torch

from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ConfigError
from rlinf.core.models import build_model
from rlinf.core.protocols import LanguageModelConfig
from rlinf.core.registry import MODELS
from rlinf.core.testing import PolicyContract
from rlinf.models.checkpoints import load_policy, save_policy
from rlinf.models.commands import TEXT, TINY

# What scores texts or states decides nothing.
JUDGES = ("recap_value_model", "steam_value_model", "sequence_reward")
NAMES = [name for name in MODELS.names() if MODELS.owner(name).startswith("rlinf.models.") and name not in JUDGES]


def configuration(name):
    try:
        return MODELS.build(name, {}, place=name)
    except ConfigError:
        return MODELS.build(name, {"preset": "tiny"}, place=name)


@pytest.mark.parametrize("name", NAMES)
def test_it_comes_back(name, tmp_path):
    config = configuration(name)
    spec = TEXT if isinstance(config, LanguageModelConfig) else TINY
    policy = build_model(config, spec, seed=3, place=name)
    save_policy(policy, config, tmp_path / name)
    found = load_policy(tmp_path / name, None if spec is TEXT else spec, seed=4)
    assert found.weights().tensors.keys() == policy.weights().tensors.keys()
    for path, tensor in policy.weights().tensors.items():
        assert torch.equal(found.weights().tensors[path], tensor), path
    contracts = [
        PolicyContract(policy=p, spec=spec, as_array=torch.as_tensor, generator=lambda seed: torch.Generator().manual_seed(seed))
        for p in (policy, found)
    ]
    observation = contracts[0].observation(2)
    for train in (True, False):
        one, other = (contract.decide(observation, train=train) for contract in contracts)
        assert torch.equal(one.action, other.action)
        assert torch.equal(one.logprob, other.logprob)
        assert [path for path, _ in tree_leaves(one.context)] == [path for path, _ in tree_leaves(other.context)]
