"""The contract on every registered policy, small, without a network."""

import pytest
import torch

from rlinf.core.registry import MODELS
from rlinf.models.commands import check_policy

JUDGES = ("recap_value_model", "steam_value_model", "sequence_reward")
"""What scores texts or states is no policy."""
VARIANTS = {
    "mlp_policy": [[], ["num_action_chunks=3", "normalize_observations=true"]],
    "flow_policy": [
        [],
        ['sampling={"noise_method": "flow_noise", "joint_logprob": true}'],
        ['condition={"guidance_scale": 2.0}'],
    ],
    "dsrl": [[]],
    "rlt": [[], ["state_dependent_std=true"]],
    "pi0": [
        ["preset=tiny"],
        ["preset=tiny", 'sampling={"noise_method": "flow_cps"}', "logprob_type=token_level"],
        ["preset=tiny", 'condition={"guidance_scale": 2.0}', "max_token_length=48"],
    ],
    "causal_lm": [["preset=tiny", "temperature=0.7"], ["preset=tiny", "architecture=llama", "add_value_head=true"]],
    # The contract shows no pictures, so that nothing would reach a vision tower that is trained.
    "vlm": [["preset=tiny", "freeze_vision=true"]],
    "openvla": [["preset=tiny"], ["preset=tiny", "temperature=1.6", "top_k=20"]],
}

SHOWN_ELSEWHERE = [*VARIANTS["pi0"][1:], VARIANTS["openvla"][1]]
"""Another noise by test_flow_policy.py, a condition by test_pi0_condition.py, and a temperature by test_openvla_policy.py."""


def cases():
    for name in MODELS.names():
        if MODELS.owner(name).startswith("rlinf.models") and name not in JUDGES:
            for params in VARIANTS.get(name, [["preset=tiny"]]):
                marks = [pytest.mark.slow] if params in SHOWN_ELSEWHERE else []
                yield pytest.param([name, *params], id=" ".join([name, *params]), marks=marks)


@pytest.mark.parametrize("args", list(cases()))
def test_contract(args, capsys):
    assert check_policy(args) == 0, capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("args", list(cases()))
def test_contract_on_a_gpu(args, capsys):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    # float32 as it is, without TF32; a row is not summed in the same order whatever its neighbours are.
    assert check_policy([*args, "--device", "cuda", "--tolerance", "1e-4"]) == 0, capsys.readouterr().out
