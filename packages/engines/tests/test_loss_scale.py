"""float16: small gradients survive, large ones are skipped, and a checkpoint goes on from there."""

import pytest
import torch
from engines_text import ToyWriter, text_batch, token_loss

from rlinf.core import LossOutput
from rlinf.engines import AmpAutocast, CheckpointConfig, FSDPConfig, FSDPTrainerConfig, MixedPrecision, OptimConfig
from rlinf.engines.optim.loss_scale import FIRST, PATIENCE, LossScale

WAYS = {
    "autocast": FSDPConfig(amp_autocast=AmpAutocast(enabled=True, precision="fp16")),
    "sharded": FSDPConfig(mixed_precision=MixedPrecision("fp16", "fp32")),
}


def built(fsdp: FSDPConfig, seed: int = 0, **config):
    optim = OptimConfig(lr=0.1, clip_grad=None, adam_eps=1e-12)
    return FSDPTrainerConfig(optim, fsdp, **config).build(ToyWriter(seed=seed), rank=0, world_size=1, rendezvous="")


def faint(batch, evaluation):
    """Gradients far below the smallest number of float16; the weight makes up for it."""
    output = token_loss(batch, evaluation)
    return LossOutput(total=output.total * 1e-7, weight=output.weight * 1e-7)


def loud(batch, evaluation):
    output = token_loss(batch, evaluation)
    return LossOutput(total=output.total * 100, weight=output.weight * 100)


@pytest.mark.parametrize("way", WAYS)
def test_small_gradients_survive(way) -> None:
    batch = text_batch()
    plain, half = built(FSDPConfig()), built(WAYS[way])
    expected, found = plain.step([batch], faint), half.step([batch], faint)
    assert found["loss_scale"].mean == FIRST
    assert found["grad_norm"].mean == pytest.approx(expected["grad_norm"].mean, rel=0.02)
    half._optimizers.scale.factor = 1.0
    lost = half.step([batch], faint)["grad_norm"].mean
    assert abs(lost / found["grad_norm"].mean - 1) > 0.1, "without the scale they vanish"
    half.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_overflow_is_skipped_and_the_scale_halved_until_it_fits(way, tmp_path) -> None:
    batch = text_batch()
    half = built(WAYS[way], checkpoint=CheckpointConfig(format="sharded" if way == "sharded" else "whole"))
    before = {name: tensor.clone() for name, tensor in half.weights().tensors.items()}
    half._optimizers.scale.factor = 2.0**24
    skipped = 0
    while half.step([batch], loud)["skipped"].mean:
        assert all(torch.equal(before[name], tensor) for name, tensor in half.weights().tensors.items())
        skipped += 1
        assert skipped < 24
    assert skipped > 2
    assert half._optimizers.scale.factor == 2.0 ** (24 - skipped)
    assert half.version == 1
    half.save(tmp_path)
    resumed = built(WAYS[way], seed=3)
    resumed.load(tmp_path)
    assert resumed._optimizers.scale.state()["loss_scale"].tolist() == [2.0 ** (24 - skipped), 1.0]
    for trainer in (half, resumed):
        trainer.step([batch], token_loss)
    assert all(torch.equal(half.weights().tensors[name], tensor) for name, tensor in resumed.weights().tensors.items())
    half.close()
    resumed.close()


def test_the_scale_grows_with_patience_and_only_where_it_is_used() -> None:
    scale, unused = LossScale(enabled=True), LossScale(enabled=False)
    for _ in range(PATIENCE - 1):
        scale.update(overflow=False)
    assert scale.factor == FIRST
    scale.update(overflow=True)
    assert scale.factor == FIRST / 2
    for _ in range(PATIENCE):
        scale.update(overflow=False)
    assert scale.factor == FIRST
    unused.update(overflow=True)
    assert (unused.factor, unused.state()) == (1.0, {})
    assert "loss_scale" not in built(FSDPConfig()).step([text_batch()], token_loss)
