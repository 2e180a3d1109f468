"""The trainer of off-policy algorithms, with an objective of two parts and a free parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_threads import in_each
from torch import nn

from rlinf.core.data import ArraySpec, EnvSpec, LossOutput
from rlinf.core.errors import CheckpointError, ConfigError, ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.off_policy import TrainsOffPolicy
from rlinf.core.replay import Transitions
from rlinf.engines.fsdp.config import FSDPConfig
from rlinf.engines.fsdp.trainer import FSDPTrainerConfig
from rlinf.engines.off_policy._trainer import TorchOffPolicyTrainer
from rlinf.engines.optim.config import OptimConfig

SPEC = EnvSpec(observation={}, action=ArraySpec(shape=(1,), dtype="float32"), max_episode_steps=1)


class Two(nn.Module):
    """Two numbers of each part."""

    version = 0

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.actor = nn.Parameter(torch.full((2,), start))
        self.critic = nn.Parameter(torch.full((2,), start))


class Pulls:
    """The critic is pulled to the target network's actor plus the reward, the actor to the critic; a free number goes down."""

    judges = "q_functions"

    def __init__(self, tau: float = 0.5) -> None:
        self.tau = tau
        self.moves: list[int] = []
        self.found: list[int] = []

    def parameters(self) -> Mapping[str, float]:
        return {"free": 3.0}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return {"critic": ["critic"], "actor": ["actor"]}

    def due(self, update: int) -> Sequence[str]:
        return ("critic", "actor", "free") if update % 2 == 0 else ("critic",)

    def loss(self, part: str, learner: Any, batch: Any, *, generator: Any) -> LossOutput[Any]:
        if part == "critic":
            self.found.append(len(learner.shared))
        learner.shared[part, id(batch)] = part
        if part == "free":
            rows = learner.parameters["free"] * torch.ones(len(batch))
        elif part == "critic":
            rows = 0.5 * (learner.policy.critic.sum() - learner.target.actor.sum() - batch.reward).square()
        else:
            rows = 0.5 * (learner.policy.actor.sum() - learner.policy.critic.sum()).square() * torch.ones(len(batch))
        drawn = torch.rand((), generator=generator).item()
        return LossOutput(total=rows.sum(), weight=torch.tensor(float(len(batch))), metrics={f"{part}_drawn": Metric(drawn)})

    def moved(self, target: Any, online: Any, update: int) -> Mapping[str, Any] | None:
        self.moves.append(update)
        return {name: (1 - self.tau) * target[name] + self.tau * online[name] for name in target}


def transitions(rows: int = 4) -> Transitions[Any]:
    zeros = np.zeros((rows, 1), np.float32)
    return Transitions(
        observation={"states": zeros},
        action=zeros[:, None],
        reward=np.arange(rows, dtype=np.float32),
        observation_next={"states": zeros},
        terminated=np.zeros(rows, bool),
        discount=np.ones(rows, np.float32),
    )


def made(
    policy: Any = None, objective: Any = None, seed: int = 5, rank: int = 0, world_size: int = 1, **optim: Any
) -> TorchOffPolicyTrainer:
    config = FSDPTrainerConfig(optim=OptimConfig(**{"lr": 0.1, "value_lr": 0.01, "clip_grad": None, **optim}))
    assert isinstance(config, TrainsOffPolicy)
    ranks = {"rank": rank, "world_size": world_size, "rendezvous": ""}
    return config.build_off_policy(policy or Two(), objective or Pulls(), SPEC, seed=seed, **ranks)


def test_each_part_has_a_step_of_its_own_at_its_rate() -> None:
    policy = Two()
    trainer = made(policy)
    first = trainer.update([transitions()])
    # Adam's first step is the rate: the critic is below its target, 2 + 1.5.
    torch.testing.assert_close(policy.critic.data, torch.full((2,), 1.01))
    torch.testing.assert_close(policy.actor.data, torch.full((2,), 1.0))
    assert "actor_grad_norm" not in first
    assert first["critic_grad_norm"].mean == pytest.approx(1.5 * 2**0.5)
    trainer.update([transitions()])
    # The actor follows the critic as its step left it, 1.02, and nothing of its loss reaches the critic.
    torch.testing.assert_close(policy.critic.data, torch.full((2,), 1.02), atol=1e-4, rtol=0)
    torch.testing.assert_close(policy.actor.data, torch.full((2,), 1.1))
    assert trainer._state()["free/free"] == pytest.approx(2.9)
    assert trainer.version == policy.version == 2


def test_the_target_follows_at_its_own_pace() -> None:
    policy = Two()
    trainer = made(policy, Pulls(tau=0.25))
    with torch.no_grad():
        policy.actor.fill_(5.0)
    trainer.update([transitions()])
    torch.testing.assert_close(trainer._state()["target/actor"], torch.full((2,), 2.0))
    assert not any(parameter.requires_grad for parameter in trainer._target.parameters())


def test_updates_are_counted_from_one_and_share_nothing() -> None:
    objective = Pulls()
    trainer = made(objective=objective)
    for _ in range(3):
        trainer.update([transitions()])
    assert objective.moves == [1, 2, 3]
    assert objective.found == [0, 0, 0]


def test_frozen_weights_are_neither_copied_nor_moved() -> None:
    policy = Two()
    # τ θ + (1 − τ) θ is not θ to the bit.
    policy.base = nn.Parameter(torch.full((2,), 0.1), requires_grad=False)
    trainer = made(policy, Pulls(tau=0.3))
    for _ in range(3):
        trainer.update([transitions()])
    assert trainer._target.base is policy.base
    assert trainer._target.actor is not policy.actor
    assert torch.equal(policy.base, torch.full((2,), 0.1))
    assert "target/base" not in trainer._state()
    assert "base" in trainer.weights().tensors


def test_weights_to_be_sent_are_those_that_are_trained_and_weights_to_be_kept_are_not() -> None:
    policy = Two()
    trainer = made(policy)
    sent, kept = trainer.lazy_weights(), trainer.weights()
    assert list(sent.tensors) == list(kept.tensors)
    for name, parameter in policy.named_parameters():
        assert sent.tensors[name].data_ptr() == parameter.data_ptr()
        assert not sent.tensors[name].requires_grad
        assert kept.tensors[name].data_ptr() != parameter.data_ptr()
    trainer.update([transitions()])
    assert torch.equal(sent.tensors["critic"], policy.critic)
    assert not torch.equal(kept.tensors["critic"], policy.critic)


def test_micro_batches_make_the_same_step() -> None:
    whole, parted = Two(), Two()
    one, other = made(whole), made(parted)
    batch = transitions(6)
    for _ in range(4):
        expected = one.update([batch])
        found = other.update([batch.rows(slice(0, 1)), batch.rows(slice(1, 6))])
        # A step of Adam hardly tells the size of a gradient.
        for name in (name for name in expected if name.endswith("_grad_norm")):
            assert found[name].mean == pytest.approx(expected[name].mean), name
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parted.state_dict()[name], tensor)


def test_ranks_make_the_step_of_one_with_all_their_rows() -> None:
    """Five rows and one: neither the gradient nor the weight of a rank alone would do."""
    batch = transitions(6)

    def call(rank: int) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        policy = Two()
        trainer = made(policy, rank=rank, world_size=2)
        metrics = {}
        for _ in range(4):
            metrics = trainer.update([batch.rows(slice(0, 5) if rank else slice(5, 6))])
        return policy.state_dict(), {name: metric.mean for name, metric in metrics.items()}

    whole = Two()
    one = made(whole)
    for _ in range(4):
        expected = one.update([batch])
    (first, seen), (second, seen_too) = in_each(2, call)
    assert seen == seen_too
    for name in ("critic_grad_norm", "actor_grad_norm"):
        assert seen[name] == pytest.approx(expected[name].mean)
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(first[name], tensor)
        assert torch.equal(first[name], second[name])


def test_all_ranks_begin_with_the_weights_of_the_first() -> None:
    def call(rank: int) -> torch.Tensor:
        policy = Two(1.0 + rank)
        made(policy, rank=rank, world_size=2)
        return policy.actor.detach()

    first, second = in_each(2, call)
    assert first.tolist() == second.tolist() == [1.0, 1.0]


def test_the_rate_follows_its_schedule() -> None:
    policy = Two()
    trainer = made(policy, lr_scheduler="linear", total_training_steps=4)
    # Adam moves by the rate while a gradient keeps its sign: 0.01 times 1, 3/4 and 1/2.
    for expected in (1.01, 1.0175, 1.0225):
        trainer.update([transitions()])
        torch.testing.assert_close(policy.critic.data, torch.full((2,), expected), atol=1e-4, rtol=0)


def test_it_tells_the_error_of_each_row_in_order() -> None:
    class Compares(Pulls):
        def loss(self, part: str, learner: Any, batch: Any, *, generator: Any) -> LossOutput[Any]:
            output = super().loss(part, learner, batch, generator=generator)
            error = learner.policy.critic.sum().detach() + batch.reward
            return replace(output, td_error=error) if part == "critic" else output

    trainer, batch = made(objective=Compares()), transitions(6)
    assert trainer.td_error is None
    trainer.update([batch.rows(slice(0, 1)), batch.rows(slice(1, 6))])
    np.testing.assert_allclose(trainer.td_error, 2.0 + np.arange(6))
    trainer.update([batch.rows(slice(0, 2))])
    np.testing.assert_allclose(trainer.td_error, 2.02 + np.arange(2), rtol=1e-4)
    plain = made()
    plain.update([batch])
    assert plain.td_error is None


def test_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole, other = Two(), Two(7.0)
    trainer, again = made(whole), made(other)
    for _ in range(3):
        trainer.update([transitions()])
    trainer.save(tmp_path)
    again.load(tmp_path)
    assert again.version == other.version == 3
    for _ in range(3):
        assert trainer.update([transitions()]) == again.update([transitions()])
    for name, tensor in trainer._state().items():
        assert torch.equal(again._state()[name], tensor), name
    assert all(torch.equal(tensor, again.weights().tensors[name]) for name, tensor in trainer.weights().tensors.items())


class Layers(nn.Module):
    """A matrix, which decays, and vectors, which don't; one of them is in no loss."""

    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Linear(2, 1)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))
        with torch.no_grad():
            self.critic.weight.copy_(torch.tensor([[1.0, -2.0]]))
            self.critic.bias.fill_(0.5)


class Fits(Pulls):
    """The critic fits rewards."""

    def parameters(self) -> Mapping[str, float]:
        return {}

    def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
        return {"critic": ["critic.bias", "unused", "critic.weight"]}

    def due(self, update: int) -> Sequence[str]:
        return ("critic",)

    def loss(self, part: str, learner: Any, batch: Any, *, generator: Any) -> LossOutput[Any]:
        rows = 0.5 * (learner.policy.critic(torch.ones(len(batch), 2)).squeeze(-1) - batch.reward).square()
        learner.policy.seen += 1.0
        return LossOutput(total=rows.sum(), weight=torch.tensor(float(len(batch))), metrics={})


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_parameters_of_a_part_move_as_each_would_alone(decay: float, tmp_path: Path) -> None:
    policy, alone = Layers(), Layers()
    trainer, batch = made(policy, Fits(tau=0.25), weight_decay=decay, value_lr=None), transitions()
    groups = [{"params": [alone.critic.weight], "weight_decay": decay}, {"params": [alone.critic.bias], "weight_decay": 0.0}]
    config = OptimConfig()
    optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps)
    target = 1.0
    for _ in range(3):
        trainer.update([batch])
        optimizer.zero_grad()
        (0.5 * (alone.critic(torch.ones(4, 2)).squeeze(-1) - torch.as_tensor(batch.reward)).square()).mean().backward()
        optimizer.step()
        target = 0.75 * target + 0.25 * alone.critic.weight[0, 0].item()
    for name, tensor in alone.state_dict().items():
        if name != "seen":
            torch.testing.assert_close(policy.state_dict()[name], tensor)
    state = trainer._state()
    assert state["target/critic.weight"][0, 0].item() == pytest.approx(target, rel=1e-5)
    # What no part trains, such as a statistic, goes along: 1, 2 and 3, a quarter of the way each time.
    assert state["target/seen"].item() == pytest.approx(0.25 * (0.75**2 * 1 + 0.75 * 2 + 3))
    # By parameters, matrices first, as an optimizer of each would have it.
    moments = optimizer.state[alone.critic.weight]
    torch.testing.assert_close(state["optimizer/critic/0/exp_avg"], moments["exp_avg"])
    assert state["optimizer/critic/1/exp_avg_sq"].shape == (1,)
    assert state["optimizer/critic/2/step"] == 3.0
    resumed = made(Layers(), Fits(tau=0.25), weight_decay=decay, value_lr=None)
    trainer.save(tmp_path)
    resumed.load(tmp_path)
    for one in (trainer, resumed):
        one.update([batch])
    for name, tensor in trainer._state().items():
        assert torch.equal(resumed._state()[name], tensor), name


def test_what_is_drawn_depends_on_the_seed_the_part_and_the_update() -> None:
    drawn: set[float] = set()
    for seed in (1, 2):
        trainer = made(seed=seed)
        for _ in range(4):
            found = trainer.update([transitions()])
            drawn |= {found[name].mean for name in found if name.endswith("_drawn")}
    assert len(drawn) == 2 * (4 + 2 + 2)


def test_a_gradient_that_is_not_finite_is_skipped() -> None:
    policy = Two()
    trainer = made(policy)
    broken = transitions()
    broken.reward[0] = np.inf
    assert trainer.update([broken])["skipped"].mean == 1.0
    torch.testing.assert_close(policy.critic.data, torch.full((2,), 1.0))
    assert trainer.update([transitions()])["skipped"].mean == 0.0


def test_another_policy_or_algorithm_is_refused(tmp_path: Path) -> None:
    trainer = made()
    trainer.update([transitions()])
    trainer.save(tmp_path)
    policy = Two()
    policy.more = nn.Parameter(torch.zeros(1))
    with pytest.raises(CheckpointError, match=r"another model or algorithm.*more"):
        made(policy).load(tmp_path)
    (tmp_path / "taken").write_text("")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be written \(.*exists.*\)\. The checkpoints before"):
        trainer.save(tmp_path / "taken")
    (tmp_path / "off_policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match="can't be read"):
        made().load(tmp_path)


def test_what_it_does_not_do_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least one"):
        made().update([])
    config = FSDPTrainerConfig(fsdp_config=FSDPConfig(strategy="fsdp2"))
    with pytest.raises(ConfigError, match=r"actor\.fsdp_config"):
        config.build_off_policy(Two(), Pulls(), SPEC, seed=0, rank=0, world_size=1, rendezvous="")
    with pytest.raises(ConfigError, match=r"actor\.optim\.critic_warmup_steps: .* found 2"):
        FSDPTrainerConfig(optim=OptimConfig(critic_warmup_steps=2)).check_off_policy()

    class Nothing(Pulls):
        def trained(self, policy: Any) -> Mapping[str, Sequence[str]]:
            return {"critic": ["critic"], "actor": []}

    with pytest.raises(ConfigError, match="the part 'actor' trains nothing of Two"):
        made(objective=Nothing())
