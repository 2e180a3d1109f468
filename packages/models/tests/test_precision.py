"""Policies in bfloat16: what may be rounded, and what may not."""

import pytest
import torch

from rlinf.core.registry import MODELS
from rlinf.models.commands import TEXT, TINY
from rlinf.models.registry import build_model

NAMES = ["openvla", "openvla_oft", "pi0", "pi05", "gr00t", "causal_lm"]


def frequencies(name, precision):
    params = {"preset": "tiny", "precision": precision}
    if name == "causal_lm":
        params["architecture"] = "llama"
    policy = build_model(MODELS.build(name, params, place=name), TEXT if name == "causal_lm" else TINY, seed=0, place=name)
    assert any(p.dtype == torch.bfloat16 for p in policy.parameters()) == (precision == "bf16")
    return {key: buffer for key, buffer in policy.named_buffers() if "inv_freq" in key}


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_rounds_no_frequency_of_a_rotary_embedding(name):
    plain, rounded = frequencies(name, "fp32"), frequencies(name, "bf16")
    assert plain.keys() == rounded.keys() != set()
    for key, angles in plain.items():
        assert rounded[key].dtype == torch.float32, key
        assert torch.equal(rounded[key], angles), key
