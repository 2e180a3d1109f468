"""Heads of OpenVLA-OFT against `torch.distributions` and by hand."""

from __future__ import annotations

import torch

from rlinf.models.openvla_oft.heads import (
    ProprioProjector,
    RegressionHead,
    ResidualBlock,
    normal_entropy,
    normal_logprob,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_normal_agrees_with_torch() -> None:
    mean, log_std = torch.randn(4, 8, 3, generator=generator()), torch.tensor([-1.5, 0.0, 0.7])
    expected = torch.distributions.Normal(mean, log_std.exp())
    x = mean + torch.randn(mean.shape, generator=generator(1))
    assert torch.allclose(normal_logprob(x, mean, log_std), expected.log_prob(x), atol=1e-5)
    assert torch.allclose(normal_entropy(log_std).expand_as(mean), expected.entropy(), atol=1e-6)


def test_a_residual_block_by_hand() -> None:
    block = ResidualBlock(2)
    torch.nn.init.eye_(block.ffn[1].weight)
    torch.nn.init.zeros_(block.ffn[1].bias)
    # LayerNorm makes ∓1 of (2, 4), ReLU drops the negative one, and x is added.
    assert torch.allclose(block(torch.tensor([[2.0, 4.0]])), torch.tensor([[2.0, 5.0]]), atol=1e-4)


def test_the_regression_head_answers_each_step_from_its_own_slots() -> None:
    torch.manual_seed(0)
    head = RegressionHead(6, 3)
    hidden = torch.randn(2, 4 * 3, 6)
    whole = head(hidden)
    assert whole.shape == (2, 4, 3)
    changed = hidden.clone()
    changed[:, 3:6, :2] += 1.0
    moved = (head(changed) - whole).abs().amax((0, 2)) > 1e-4
    assert moved.tolist() == [False, True, False, False]


def test_a_state_becomes_one_token() -> None:
    assert ProprioProjector(5, 8)(torch.randn(3, 5)).shape == (3, 1, 8)
