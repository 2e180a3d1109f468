import copy
import math
import re

import numpy as np
import pytest
import torch
from engines_toy import ToyPolicy, parts_of, toy_batch, toy_loss, visible
from safetensors.torch import load_file, save_file

from rlinf.core import LossOutput
from rlinf.core.errors import CheckpointError, ConfigError, ContractError
from rlinf.core.metrics import Metric
from rlinf.core.registry import TRAINERS
from rlinf.engines import FSDPConfig, FSDPTrainerConfig, OptimConfig


def alone(config: FSDPTrainerConfig | None = None, **policy):
    return (config or FSDPTrainerConfig()).build(ToyPolicy(**policy), rank=0, world_size=1, rendezvous="")


def test_a_step_is_adam_on_the_mean():
    """The same as torch's own optimizer on the loss divided by its weight, with the clip of torch."""
    trainer, reference = alone(FSDPTrainerConfig(OptimConfig(lr=0.1, clip_grad=0.3))), ToyPolicy()
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.1)
    batch = toy_batch()
    for _ in range(4):
        output = toy_loss(batch, reference.default_forward(batch))
        optimizer.zero_grad()
        (output.total / output.weight).backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
        optimizer.step()
        metrics = trainer.step([batch], toy_loss)
        assert metrics["grad_norm"].mean == pytest.approx(norm.item(), rel=1e-5)
        assert metrics["loss"].mean == pytest.approx((output.total / output.weight).item(), rel=1e-6)
    for name, tensor in reference.state_dict().items():
        torch.testing.assert_close(trainer.weights().tensors[name], tensor, atol=1e-6, rtol=0)
    assert trainer.version == 4


class Squares:
    """A loss that the policy is asked for; it counts each row twice."""

    def of_policy(self, policy, batch):
        logprob = policy.default_forward(batch).logprob
        return LossOutput(total=logprob.square().sum(), weight=torch.tensor(2.0 * len(batch)), metrics={"own": Metric(1.0)})


@pytest.mark.parametrize("sizes", [[[10], [10]], [[3, 7], [1, 2, 3, 4]], [[1] * 10, [5, 5]]])
def test_an_added_loss_has_a_denominator_of_its_own(sizes):
    """The gradient is that of a / Σ weightₐ + w · b / Σ weightᵦ, however both are parted; the next step has nothing of it."""
    trainer, reference = alone(FSDPTrainerConfig(OptimConfig(lr=0.1))), ToyPolicy()
    batch, added = toy_batch(), toy_batch(seed=2)
    optimizer = torch.optim.SGD(reference.parameters())
    norms = []
    for weight in (0.5, 0.0):
        output = toy_loss(batch, reference.default_forward(batch))
        own = Squares().of_policy(reference, added)
        optimizer.zero_grad()
        (output.total / output.weight + weight * own.total / own.weight).backward()
        norms.append(torch.nn.utils.get_total_norm([each.grad for each in reference.parameters() if each.grad is not None]).item())
        if weight:
            seen = trainer.add_policy_loss(parts_of(added, sizes[1]), Squares(), weight=weight)
            assert seen["loss"].mean == pytest.approx((own.total / own.weight).item(), rel=1e-5)
        metrics = trainer.step(parts_of(batch, sizes[0]), toy_loss)
        assert metrics["loss"].mean == pytest.approx((output.total / output.weight).item(), rel=1e-5)
        assert metrics["grad_norm"].mean == pytest.approx(norms[-1], rel=1e-5)
        reference.load_state_dict(dict(trainer.weights().tensors))
    assert norms[0] != pytest.approx(norms[1], rel=0.05)


def test_an_added_loss_of_which_nothing_counts_adds_nothing():
    class Nothing:
        def of_policy(self, policy, batch):
            return LossOutput(total=policy.default_forward(batch).logprob.sum() * 0.0, weight=torch.zeros(()), metrics={})

    plain, trainer, batch = alone(visible()), alone(visible()), toy_batch()
    trainer.add_policy_loss([batch], Nothing(), weight=0.5)
    assert trainer.step([batch], toy_loss)["grad_norm"].mean == plain.step([batch], toy_loss)["grad_norm"].mean


def test_the_norm_is_clipped():
    batch = toy_batch()
    free, clipped = alone(visible()), alone(visible(clip_grad=1e-3))
    before = ToyPolicy().state_dict()["actor.0.weight"]
    assert free.step([batch], toy_loss)["grad_norm"].mean > 0.1
    assert clipped.step([batch], toy_loss)["grad_norm"].mean > 0.1
    assert (clipped.weights().tensors["actor.0.weight"] - before).abs().max() < 2e-3
    assert (free.weights().tensors["actor.0.weight"] - before).abs().max() > 2e-3


def poisoned(batch, evaluation):
    output = toy_loss(batch, evaluation)
    return LossOutput(total=output.total * float("nan"), weight=output.weight)


class Divides(torch.nn.Module):
    by = 2.0

    def forward(self, x):
        return x / self.by


def weightless(batch, evaluation):
    return LossOutput(total=evaluation.logprob.sum() * 0.0, weight=torch.zeros(()))


@pytest.mark.parametrize("loss", [poisoned, weightless])
def test_a_bad_gradient_is_skipped_and_counted(loss):
    trainer, batch = alone(), toy_batch()
    trainer.step([batch], toy_loss)
    before = trainer.weights().tensors
    metrics = trainer.step([batch], loss)
    assert metrics["skipped"].mean == 1.0
    assert trainer.version == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.weights().tensors.items())
    good = trainer.step([batch], toy_loss)
    assert good["skipped"].mean == 0.0
    assert math.isfinite(good["grad_norm"].mean)


def test_the_log_names_the_module_in_which_a_step_ceased_to_be_finite(caplog):
    """Once, and nothing else is changed by looking: neither weights nor the random numbers of the next step."""
    told, plain, batch = alone(dropout=0.5), alone(dropout=0.5), toy_batch()
    for trainer in (told, plain):
        trainer._policy.actor[1] = Divides()
        trainer._skip_told = trainer is plain
        torch.manual_seed(3)
        caplog.clear()
        trainer.step([batch], toy_loss)
        trainer._policy.actor[1].by = 0.0
        assert [trainer.step([batch], toy_loss)["skipped"].mean for _ in range(2)] == [1.0, 1.0]
        trainer._policy.actor[1].by = 2.0
        trainer.step([batch], toy_loss)
        if trainer is told:
            (line,) = caplog.messages
            assert line.startswith("the first optimizer step that was skipped: policy.actor.1: output has ")
            assert line.endswith(" Its inputs are finite: it arises here.")
    assert not caplog.messages
    for name, tensor in told.weights().tensors.items():
        assert torch.equal(tensor, plain.weights().tensors[name])


def test_looking_for_that_module_leaves_no_half_of_a_gradient():
    """Of the parts before the one that is not finite, to which the next step would add."""
    trainer = alone()
    good_and_bad = parts_of(toy_batch(), [6, 4])
    trainer.step(good_and_bad, lambda batch, scored: (poisoned if len(scored.logprob) == 4 else toy_loss)(batch, scored))
    assert all(parameter.grad is None for parameter in trainer._policy.parameters())


def test_a_loss_that_is_not_finite_and_a_batch_without_weight_are_told_apart(caplog):
    alone().step([toy_batch()], weightless)
    assert not caplog.messages
    alone().step([toy_batch()], poisoned)
    assert re.search(
        r"policy\.\w+\S* the gradient of output has .* comes after this in the forward pass, or in the loss", caplog.text
    )


@pytest.mark.parametrize(
    ("loss", "found"), [(lambda batch, scored: scored.logprob.mean(), "Tensor"), (lambda *_: None, "NoneType")]
)
def test_a_loss_that_returns_something_else_is_told_what_to_return(loss, found):
    with pytest.raises(ContractError, match=rf"^step\(loss\): expected a LossOutput, found {found}\. Return the sum"):
        alone().step([toy_batch()], loss)


def test_value_lr_moves_the_critic_alone():
    trainer = alone(FSDPTrainerConfig(OptimConfig(lr=1e-12, value_lr=0.1)))
    trainer.step([toy_batch()], toy_loss)
    before, after = ToyPolicy().state_dict(), trainer.weights().tensors
    torch.testing.assert_close(after["actor.0.weight"], before["actor.0.weight"], atol=1e-9, rtol=0)
    assert (after["critic.weight"] - before["critic.weight"]).abs().min() > 0.05
    plain = torch.nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="value_lr"):
        FSDPTrainerConfig(OptimConfig(value_lr=0.1)).build(plain, rank=0, world_size=1, rendezvous="")


def test_linear_schedule():
    trainer = alone(FSDPTrainerConfig(OptimConfig(lr=0.4, lr_scheduler="linear", total_training_steps=4)))
    rates = [trainer.step([toy_batch()], toy_loss)["lr"].mean for _ in range(5)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])


def test_weights_are_copies_in_order():
    trainer = alone()
    weights = trainer.weights()
    assert list(weights.tensors) == sorted(weights.tensors)
    assert "offset" in weights.tensors
    before = weights.tensors["critic.weight"].clone()
    trainer.step([toy_batch()], toy_loss)
    assert torch.equal(weights.tensors["critic.weight"], before)
    assert weights.version == 0


def test_numpy_batches_are_welcome():
    batch = toy_batch()
    as_numpy = copy.copy(batch)
    credit = type(batch.credit)(advantage=batch.credit.advantage.numpy())
    as_numpy = type(batch)(trajectory=batch.trajectory.map(np.asarray), credit=credit)
    one, other = alone(), alone()
    assert one.step([batch], toy_loss) == other.step([as_numpy], toy_loss)
    assert torch.equal(one.evaluate(batch).logprob, other.evaluate(as_numpy).logprob)
    assert not one.evaluate(batch).logprob.requires_grad


@pytest.mark.parametrize("steps", [1, 3])
def test_resume_is_exact(tmp_path, steps):
    """2 N steps equal N steps, a new process, and N steps: to the bit, with dropout."""
    straight = alone(dropout=0.5)
    torch.manual_seed(1)
    for _ in range(2 * steps):
        straight.step([toy_batch()], toy_loss)
    first = alone(dropout=0.5)
    torch.manual_seed(1)
    for _ in range(steps):
        first.step([toy_batch()], toy_loss)
    first.save(tmp_path)
    second = alone(dropout=0.5, seed=77)
    torch.manual_seed(2)
    second.load(tmp_path)
    assert second.version == steps
    for _ in range(steps):
        second.step([toy_batch()], toy_loss)
    expected, found = straight.weights(), second.weights()
    assert found.version == expected.version == second._policy.version
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.tensors.items())


def test_files_hold_tensors_only(tmp_path):
    trainer = alone()
    trainer.step([toy_batch()], toy_loss)
    trainer.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "optimizer.safetensors", "random_0.safetensors"]
    assert load_file(tmp_path / "model.safetensors").keys() == trainer.weights().tensors.keys()


def test_a_checkpoint_that_does_not_fit(tmp_path):
    trainer = alone()
    trainer.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"actor\.0\.bias: expected torch.float32\[6\], found torch.float32\[5\]"):
        alone(width=6).load(tmp_path)
    with pytest.raises(CheckpointError, match="can't be read"):
        trainer.load(tmp_path / "nowhere")
    trainer.save(tmp_path / "runs" / "new")
    assert (tmp_path / "runs" / "new" / "model.safetensors").is_file(), "the folder is made"
    (tmp_path / "taken").write_text("")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be written \(.*exists.*\)\. The checkpoints before"):
        trainer.save(tmp_path / "taken")
    save_file({"x": torch.zeros(1)}, tmp_path / "optimizer.safetensors", {"version": "5"})
    with pytest.raises(CheckpointError, match="expected version 0, found 5"):
        trainer.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
        trainer.load(tmp_path)


def test_by_name_with_checked_parameters():
    params = {"optim": {"lr": 1e-4, "clip_grad": None}, "fsdp_config": {"strategy": "none"}, "micro_batch_size": 4}
    built = TRAINERS.build("fsdp", params, place="actor", allowed={"micro_batch_size"})
    assert built == FSDPTrainerConfig(OptimConfig(lr=1e-4, clip_grad=None), FSDPConfig(strategy="none"))
    for optim, message in (
        ({"lr": 0}, r"actor\.optim\.lr: expected a value in \(0, 1\]"),
        ({"total_training_steps": 0}, r"actor\.optim\.total_training_steps"),
        ({"adam_beta1": 1.0}, r"actor\.optim\.adam_beta1"),
    ):
        with pytest.raises(ConfigError, match=message):
            TRAINERS.build("fsdp", {"optim": optim}, place="actor")


def test_only_modules_with_weights_are_trained():
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module"):
        FSDPTrainerConfig().build(object(), rank=0, world_size=1, rendezvous="")
    with pytest.raises(ConfigError, match="no parameters"):
        FSDPTrainerConfig().build(torch.nn.Tanh(), rank=0, world_size=1, rendezvous="")


def test_a_schedule_spans_the_run_unless_told_otherwise() -> None:
    linear = FSDPTrainerConfig(OptimConfig(lr=0.4, lr_scheduler="linear"))
    trainer = linear.build(ToyPolicy(), rank=0, world_size=1, rendezvous="", training_steps=8)
    assert trainer.config.optim.factor(2) == 0.75
    with pytest.raises(ConfigError, match=r"actor\.optim\.total_training_steps: expected the number of steps"):
        linear.build(ToyPolicy(), rank=0, world_size=1, rendezvous="")
