"""The contract on every registered policy, small, without a network."""

import pytest

from rlinf.core.registry import MODELS
from rlinf.models.commands import check_policy

LANGUAGE = {"causal_lm", "vlm"}
"""These decide tokens, not control steps; their tests are in `language/`."""

VARIANTS = {
    "mlp_policy": [[], ["num_action_chunks=3", "normalize_observations=true"]],
    "flow_policy": [[], ['sampling={"noise_method": "flow_noise", "joint_logprob": true}']],
    "dsrl": [[]],
    "pi0": [["preset=tiny"], ["preset=tiny", 'sampling={"noise_method": "flow_cps"}', "logprob_type=token_level"]],
    "openvla": [["preset=tiny"], ["preset=tiny", "temperature=1.6", "top_k=20"]],
}


def cases():
    for name in MODELS.names():
        if MODELS.owner(name).startswith("rlinf.models") and name not in LANGUAGE:
            for params in VARIANTS.get(name, [["preset=tiny"]]):
                yield pytest.param([name, *params], id=" ".join([name, *params]))


@pytest.mark.parametrize("args", list(cases()))
def test_contract(args, capsys):
    assert check_policy(args) == 0, capsys.readouterr().out


def test_language_models_say_that_they_are_no_robots():
    assert set(MODELS.names()) >= LANGUAGE
