"""A policy in bfloat16 is computed with as it is, and trained in float32: a small step changes as many weights as there."""

import json

import pytest
import torch
from engines_text import ToyWriter, text_batch, token_loss
from safetensors.torch import load_file
from torch import nn

from rlinf.engines import FSDPConfig, FSDPTrainerConfig, MixedPrecision, OptimConfig

SMALL = OptimConfig(lr=1e-6, clip_grad=None)
WAYS = {
    "auto": FSDPConfig(),
    "none": FSDPConfig(strategy="none"),
    "fsdp2": FSDPConfig(strategy="fsdp2"),
    "recomputed": FSDPConfig(gradient_checkpointing=True),
    "asked": FSDPConfig(strategy="none", mixed_precision=MixedPrecision("bf16")),
}


class PreciseHead(nn.Linear):
    """A critic in float32, whatever it is given."""

    def forward(self, input):
        return super().forward(input.to(self.weight.dtype))


class BrainWriter(ToyWriter):
    """Weights in bfloat16, but for the critic; each is a number that bfloat16 has."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(seed=seed, width=16)
        self.value_head = PreciseHead(16, 1)
        with torch.no_grad():
            self.value_head.weight.copy_(torch.linspace(0.11, 0.37, 16)[None])
            self.value_head.bias.fill_(0.1)
        self.to(torch.bfloat16).to(dtype)
        self.value_head.float()


def built(fsdp: FSDPConfig, dtype: torch.dtype = torch.bfloat16, **config):
    trainer = FSDPTrainerConfig(SMALL, fsdp, **config)
    return trainer.build(BrainWriter(dtype=dtype), rank=0, world_size=1, rendezvous="")


def changed(folder) -> float:
    """The share of weights in a checkpoint that are not what they were at the start."""
    before, now = BrainWriter().state_dict(), load_file(folder / "model.safetensors")
    moved = [now[name].float() != before[name].float() for name in before]
    return float(torch.cat([tensor.reshape(-1) for tensor in moved]).float().mean())


@pytest.fixture(scope="module")
def share_in_float32(tmp_path_factory) -> float:
    folder = tmp_path_factory.mktemp("float32")
    trainer = built(FSDPConfig(), torch.float32)
    for _ in range(10):
        trainer.step([text_batch()], token_loss)
    trainer.save(folder)
    return changed(folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_small_step_changes_as_many_weights_as_in_float32(way, share_in_float32, tmp_path) -> None:
    trainer = built(WAYS[way], torch.float32 if way == "asked" else torch.bfloat16)
    for _ in range(10):
        assert trainer.step([text_batch()], token_loss)["skipped"].mean == 0
    trainer.save(tmp_path)
    assert share_in_float32 > 0.5
    assert changed(tmp_path) == pytest.approx(share_in_float32, abs=0.03)
    resumed = built(WAYS[way], torch.float32 if way == "asked" else torch.bfloat16)
    resumed.load(tmp_path)
    for one in (trainer, resumed):
        one.step([text_batch()], token_loss)
    kept = [{name: one._layout.whole(tensor) for name, tensor in one._policy.state_dict().items()} for one in (trainer, resumed)]
    assert all(torch.equal(kept[0][name], tensor) for name, tensor in kept[1].items())
    trainer.close()
    resumed.close()


def test_two_ranks_change_as_many(two, share_in_float32) -> None:
    seen = json.loads((two / "masters/seen_0.json").read_text())
    assert changed(two / "masters") == pytest.approx(share_in_float32, abs=0.03)
    assert seen["reduced"] == ["torch.float32"]
    assert seen["types"] == ["torch.bfloat16", "torch.float32"]


@pytest.mark.parametrize("way", ["auto", "none", "fsdp2", "recomputed"])
def test_it_computes_and_publishes_as_the_policy_was_built(way) -> None:
    trainer, policy, batch = built(WAYS[way]), BrainWriter(), text_batch()
    expected, found = policy.default_forward(batch), trainer.evaluate(batch)
    assert torch.equal(found.logprob, expected.logprob)
    assert torch.equal(found.value, expected.value)
    published = trainer.weights().tensors, trainer.lazy_weights().tensors
    for tensors in published:
        for name, tensor in policy.state_dict().items():
            assert tensors[name].dtype == tensor.dtype, name
            assert torch.equal(tensors[name], tensor)
    assert published[1].manifest().digest == type(published[1])(policy.state_dict()).manifest().digest
    trainer.close()


def test_frozen_weights_stay_as_small_as_they_are() -> None:
    policy = BrainWriter()
    policy.blocks.requires_grad_(False)
    trainer = FSDPTrainerConfig(SMALL).build(policy, rank=0, world_size=1, rendezvous="")
    trainer.step([text_batch()], token_loss)
    assert {parameter.dtype for parameter in policy.blocks.parameters()} == {torch.bfloat16}
    assert policy.embedding.weight.dtype == torch.float32


def test_masters_can_be_declined(tmp_path) -> None:
    trainer = built(FSDPConfig(mixed_precision=MixedPrecision(master_weights=False)))
    for _ in range(10):
        trainer.step([text_batch()], token_loss)
    trainer.save(tmp_path)
    assert changed(tmp_path) < 0.1


def test_the_reference_and_offloading_leave_the_masters_as_they_are() -> None:
    trainer, batch = built(FSDPConfig(), reference="device"), text_batch()
    before = trainer.evaluate(batch).logprob
    for _ in range(3):
        trainer.step([batch], token_loss)
    kept = {name: tensor.clone() for name, tensor in trainer._policy.state_dict().items()}
    assert torch.equal(trainer.reference(batch), before)
    trainer.offload()
    trainer.onload()
    assert all(torch.equal(kept[name], tensor) for name, tensor in trainer._policy.state_dict().items())
