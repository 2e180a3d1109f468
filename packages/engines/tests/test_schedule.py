"""Learning rates over the steps, and who is trained with which."""

import math

import pytest
import torch
from engines_text import ToyWriter, text_batch, token_loss
from engines_toy import ToyPolicy, toy_batch, toy_loss

from rlinf.core.errors import ConfigError
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines.optim.optimizer import adamw


def built(optim: OptimConfig, policy=None):
    return FSDPTrainerConfig(optim).build(policy or ToyPolicy(), rank=0, world_size=1, rendezvous="")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr_warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1, 1]),
        ({"lr_scheduler": "linear", "total_training_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0]),
        (
            {"lr_scheduler": "linear", "total_training_steps": 6, "lr_warmup_steps": 2, "min_lr_factor": 0.2},
            [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2],
        ),
        (
            {"lr_scheduler": "cosine", "total_training_steps": 4},
            [1, 0.5 + 0.25 * math.sqrt(2), 0.5, 0.5 - 0.25 * math.sqrt(2), 0, 0, 0],
        ),
        ({"lr_scheduler": "cosine", "total_training_steps": 2, "min_lr_factor": 0.5}, [1, 0.75, 0.5, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_factors_by_hand(config, expected) -> None:
    optim = OptimConfig(**config)
    assert [optim.factor(step) for step in range(7)] == pytest.approx(expected)


def test_cosine_needs_its_end() -> None:
    with pytest.raises(ConfigError, match=r"total_training_steps: expected the number of steps for lr_scheduler 'cosine'"):
        built(OptimConfig(lr_scheduler="cosine"))
    for config in ({"min_lr_factor": 1.5}, {"lr_warmup_steps": -1}, {"critic_warmup_steps": -1}, {"weight_decay": -0.1}):
        with pytest.raises(ConfigError, match=next(iter(config))):
            OptimConfig(**config)


def test_only_matrices_decay() -> None:
    trainer = built(OptimConfig(lr=0.5, weight_decay=0.1, clip_grad=None))

    def nothing(batch, evaluation):
        output = toy_loss(batch, evaluation)
        return type(output)(total=output.total * 0.0, weight=output.weight)

    before = ToyPolicy().state_dict()
    trainer.step([toy_batch()], nothing)
    after = trainer.weights().tensors
    torch.testing.assert_close(after["actor.0.weight"], 0.95 * before["actor.0.weight"])
    assert torch.equal(after["actor.0.bias"], before["actor.0.bias"])


def test_gradients_are_clipped_in_each_optimizer_for_itself() -> None:
    """Two optimizers of torch over the same loss, each with its own clip."""
    optim = OptimConfig(lr=0.1, value_lr=0.2, clip_grad=0.3, adam_eps=1.0)
    trainer, reference, batch = built(optim), ToyPolicy(), toy_batch()
    parts = {"": (reference.actor, 0.1), "critic_": (reference.critic, 0.2)}
    optimizers = {name: torch.optim.Adam(part.parameters(), lr=lr, eps=1.0) for name, (part, lr) in parts.items()}
    output = toy_loss(batch, reference.default_forward(batch))
    (output.total / output.weight).backward()
    metrics = trainer.step([batch], toy_loss)
    for name, (part, lr) in parts.items():
        norm = torch.nn.utils.clip_grad_norm_(part.parameters(), 0.3)
        assert norm > 0.3
        assert metrics[f"{name}grad_norm"].mean == pytest.approx(norm.item(), rel=1e-5)
        assert metrics[f"{name}lr"].mean == lr
        optimizers[name].step()
    for name, tensor in reference.state_dict().items():
        torch.testing.assert_close(trainer.weights().tensors[name], tensor, atol=1e-6, rtol=0)


def test_the_critic_learns_first() -> None:
    trainer = built(OptimConfig(lr=0.1, critic_warmup_steps=2))
    before = ToyPolicy().state_dict()
    rates = [trainer.step([toy_batch(seed=seed)], toy_loss) for seed in (5, 6)]
    assert [rate["lr"].mean for rate in rates] == [0.0, 0.0]
    weights = trainer.weights().tensors
    assert torch.equal(weights["actor.0.weight"], before["actor.0.weight"])
    assert not torch.equal(weights["critic.weight"], before["critic.weight"])
    trainer.step([toy_batch()], toy_loss)
    moved = (trainer.weights().tensors["actor.0.weight"] - before["actor.0.weight"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.1), atol=1e-4, rtol=0, msg="Adam's first step is as long as lr")
    with pytest.raises(ConfigError, match="critic_warmup_steps: expected parameters below"):
        built(OptimConfig(critic_warmup_steps=1), torch.nn.Linear(2, 1))


def test_frozen_weights_belong_to_no_optimizer(tmp_path) -> None:
    trainer = built(OptimConfig(lr=0.1, weight_decay=0.1), ToyWriter(frozen=True))
    trainer.step([text_batch()], token_loss)
    before, after = ToyWriter().state_dict(), trainer.weights().tensors
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"adapter.weight", "value_head.weight", "value_head.bias"}
    with pytest.raises(ConfigError, match="every parameter is frozen"):
        built(OptimConfig(), ToyPolicy().requires_grad_(False))


def test_the_optimizer_is_torchs_own_to_the_bit() -> None:
    config = OptimConfig(lr=1e-2, weight_decay=0.1)
    pairs = [[torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)), torch.nn.Parameter(torch.ones(3))] for _ in range(2)]
    ours = adamw(pairs[0], config.lr, config)
    betas, decays = (config.adam_beta1, config.adam_beta2), (0.1, 0.0)
    groups = [{"params": [held], "weight_decay": decay} for held, decay in zip(pairs[1], decays, strict=True)]
    theirs = torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)
    for step in range(3):
        for optimizer, (matrix, vector) in zip((ours, theirs), pairs, strict=True):
            ((matrix * vector).square().sum() * (step + 1)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            optimizer.load_state_dict(optimizer.state_dict())
    for mine, other in zip(*pairs, strict=True):
        assert torch.equal(mine, other)
