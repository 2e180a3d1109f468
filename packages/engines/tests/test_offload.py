"""Offload is a transaction, and the reference policy leaves no trace."""

import pytest
import torch
from engines_text import AdaptedWriter, ToyWriter, sequence_loss, text_batch, token_loss

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines import offload as offload_module


def built(policy=None, **config):
    trainer = FSDPTrainerConfig(OptimConfig(lr=0.1), **config).build(policy or ToyWriter(), rank=0, world_size=1, rendezvous="")
    trainer.step([text_batch()], token_loss)
    return trainer


def same(one, other) -> bool:
    one, other = one.weights().tensors, other.weights().tensors
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_trip_is_exact_and_frees_memory() -> None:
    """Training goes on as if nothing had been, moments of the optimizer included."""
    trainer, control = built(reference="device"), built()
    parameters = sum(parameter.numel() * 4 for parameter in trainer._policy.parameters())
    freed = trainer.offload()
    assert freed >= 4 * parameters
    assert sum(parameter.untyped_storage().nbytes() for parameter in trainer._policy.parameters()) == 0
    assert trainer.offload() == 0
    assert trainer.onload() == freed
    assert trainer.onload() == 0
    assert same(trainer, control)
    for one in (trainer, control):
        one.step([text_batch()], sequence_loss)
    assert same(trainer, control)


def test_what_is_away_is_refused_by_name() -> None:
    trainer = built(reference="cpu")
    trainer.offload("optimizer")
    trainer.evaluate(text_batch())
    with pytest.raises(RLinfError, match=r"trainer\[0\]\.step: optimizer are offloaded. Call onload\('optimizer'\) first"):
        trainer.step([text_batch()], token_loss)
    trainer.onload("optimizer")
    trainer.offload("parameters")
    for call in (lambda: trainer.evaluate(text_batch()), trainer.weights, lambda: trainer.reference(text_batch())):
        with pytest.raises(RLinfError, match="parameters are offloaded"):
            call()
    with pytest.raises(ConfigError, match="no part 'weights'"):
        trainer.offload("weights")


def test_memory_by_part_is_what_is_on_the_device() -> None:
    trainer = built()
    trainer.memory()
    trainer.step([text_batch()], token_loss)
    sizes = trainer.memory()
    weights = sum(tensor.nbytes for tensor in trainer._policy.state_dict().values())
    assert sizes["parameters"] == weights
    # Two moments of each weight, and a step count of 4 bytes for each tensor.
    assert 2 * weights <= sizes["optimizer"] < 2.2 * weights
    # They lived within the step, and are there no more.
    assert sizes["gradients"] == weights
    assert trainer.offload("optimizer") == sizes["optimizer"]
    assert trainer.memory() == {**sizes, "optimizer": 0, "gradients": 0}


def test_an_onload_that_fails_can_be_tried_again(monkeypatch) -> None:
    trainer, control = built(), built()
    trainer.offload()
    taken = []

    def scarce(storage, size):
        if len(taken) == 3:
            raise RuntimeError("out of memory")
        storage.resize_(size)
        taken.append(storage)

    with monkeypatch.context() as patched:
        patched.setattr(offload_module, "allocate", scarce)
        with pytest.raises(RLinfError, match=r"out of memory.*nothing is lost"):
            trainer.onload()
    assert [storage.nbytes() for storage in taken] == [0, 0, 0]
    trainer.onload()
    assert same(trainer, control)


def test_an_offload_that_fails_leaves_everything(monkeypatch) -> None:
    trainer, control = built(), built()
    copies = []
    original = offload_module._checksum

    def spoilt(data):
        copies.append(data)
        return original(data) + (len(copies) == 5)

    with monkeypatch.context() as patched:
        patched.setattr(offload_module, "_checksum", spoilt)
        with pytest.raises(RLinfError, match=r"the copy differs.*nothing was moved"):
            trainer.offload()
    assert same(trainer, control)
    trainer.step([text_batch()], token_loss)


def test_a_checksum_takes_no_memory_and_sees_every_byte() -> None:
    """The device may be full; torch's own sum in another type converts all of it first."""
    data = torch.arange(100_003, dtype=torch.int64).to(torch.uint8)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        before = offload_module._checksum(data)
    assert max(event.cpu_memory_usage for event in profile.function_events) < 1000
    for place in (0, 77, 99_999, 100_002):
        other = data.clone()
        other[place] += 1
        assert offload_module._checksum(other) != before


@pytest.mark.parametrize("kind", ["device", "cpu"])
def test_the_reference_is_the_policy_of_the_start(kind) -> None:
    batch = text_batch()
    start = FSDPTrainerConfig().build(ToyWriter(), rank=0, world_size=1, rendezvous="").evaluate(batch).logprob
    trainer, control = built(reference=kind), built()
    assert not torch.allclose(trainer.evaluate(batch).logprob, start, atol=1e-3)
    assert torch.equal(trainer.reference(batch), start)
    assert same(trainer, control)
    trainer.offload()
    trainer.onload()
    assert torch.equal(trainer.reference(batch), start)


def test_a_reference_that_fails_gives_the_weights_back() -> None:
    trainer, control = built(reference="cpu"), built()
    with pytest.raises((AttributeError, TypeError)):
        trainer.reference(object())
    assert same(trainer, control)


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    trainer, control, calls = built(), built(), []

    def failing(batch, evaluation):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no")
        return token_loss(batch, evaluation)

    halves = list(text_batch().micro_batches(4))
    with pytest.raises(ValueError, match="no"):
        trainer.step(halves, failing)
    for one in (trainer, control):
        one.step(halves, sequence_loss)
    assert same(trainer, control)


def test_adapters_off_are_the_reference() -> None:
    batch = text_batch()
    trainer = built(AdaptedWriter(frozen=True), reference="adapters")
    plain = AdaptedWriter()
    plain.adapting = False
    assert torch.equal(trainer.reference(batch), plain.default_forward(batch).logprob)
    assert not torch.equal(trainer.evaluate(batch).logprob, trainer.reference(batch))
    with pytest.raises(ConfigError, match="ToyWriter has no adapters to turn off"):
        built(reference="adapters")
    with pytest.raises(ConfigError, match="expected a reference policy, found 'none'"):
        built().reference(batch)
