"""Training on a GPU: the same as on the CPU, and its memory is free while others need it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engines_text import ToyWriter, text_batch, token_loss
from weight_sync_toy import exchange

from rlinf.core import Weights
from rlinf.engines import BucketWeightSync, FSDPConfig, FSDPTrainerConfig, FullWeightSync, OptimConfig, PatchWeightSync
from rlinf.engines.fsdp.config import CheckpointConfig

pytestmark = pytest.mark.gpu
OPTIM = OptimConfig(lr=0.01, clip_grad=0.5)
MIB = 1 << 20


def trainer(
    device: torch.device, strategy: Any = "none", dtype: torch.dtype = torch.float32, width: int = 6, **changed: Any
) -> Any:
    config = FSDPTrainerConfig(OPTIM, FSDPConfig(strategy=strategy), **changed)
    return config.build(ToyWriter(width=width).to(device, dtype), rank=0, world_size=1, rendezvous="")


def trained(built: Any, steps: int = 3) -> list[dict[str, float]]:
    parts = list(text_batch().micro_batches(4))
    return [{name: metric.mean for name, metric in built.step(parts, token_loss).items()} for _ in range(steps)]


def same(one: Any, other: Any) -> bool:
    one, other = one.weights().tensors, other.weights().tensors
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("strategy", ["none", "fsdp2"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("max_tokens", [None, 16], ids=["rows", "packed"])
def test_training_is_that_of_the_cpu(
    device: torch.device, strategy: str, dtype: torch.dtype, error: float, max_tokens: int | None
) -> None:
    here = trainer(torch.device("cpu"), dtype=dtype, max_tokens_per_mbs=max_tokens)
    there = trainer(device, strategy, dtype, max_tokens_per_mbs=max_tokens)
    assert there.device.type == device.type
    for one, other in zip(trained(there), trained(here), strict=True):
        assert one == pytest.approx(other, rel=error, abs=error)
    # Adam's first steps have the size of the learning rate whatever that of the gradient, which may be rounding alone.
    for name, tensor in here.weights().tensors.items():
        gap = (there.weights().tensors[name].float() - tensor.float()).abs()
        assert float(gap.median()) < error, name
    found, expected = there.evaluate(text_batch()), here.evaluate(text_batch())
    torch.testing.assert_close(found.logprob.cpu(), expected.logprob, atol=10 * error, rtol=0)
    there.close()


@pytest.mark.parametrize("strategy", ["none", "fsdp2"])
@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_a_resumed_training_is_that_which_went_on(device: torch.device, strategy: str, form: Any, tmp_path: Path) -> None:
    straight = trainer(device, strategy, torch.bfloat16, checkpoint=CheckpointConfig(format=form))
    trained(straight, 2)
    straight.save(tmp_path)
    drawn = torch.rand(3, device=device)
    trained(straight, 2)
    resumed = trainer(device, strategy, torch.bfloat16, checkpoint=CheckpointConfig(format=form))
    trained(resumed, 1)
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3, device=device), drawn)
    trained(resumed, 2)
    assert same(resumed, straight)
    assert (resumed.version, straight.version) == (4, 4)
    for one in (resumed, straight):
        one.close()


@pytest.mark.parametrize("strategy", ["none", "fsdp2"])
def test_who_is_offloaded_leaves_its_memory_and_comes_back_to_the_bit(device: torch.device, strategy: str) -> None:
    built, control = (trainer(device, strategy, width=1024, reference="device") for _ in range(2))
    for one in (built, control):
        trained(one, 2)
    used = Used(device)
    freed = built.offload()
    assert freed > 80 * MIB
    assert used.less() == pytest.approx(freed, rel=0.01)
    assert used.peak() < MIB, "to leave, it may take nothing of a device that is full"
    assert built.onload() == freed
    assert used.less() == pytest.approx(0, abs=MIB)
    assert same(built, control)
    for one in (built, control):
        one.step([text_batch()], token_loss)
    assert same(built, control)
    for one in (built, control):
        one.close()


class Used:
    """What torch has allocated since; on a CPU, what the tests expect."""

    def __init__(self, device: torch.device) -> None:
        self.gpu = device.type == "cuda"
        if not self.gpu:
            pytest.skip("torch counts the memory of GPUs alone")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()

    def less(self) -> int:
        return self.before - torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self.before


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("held", ["there", "cpu"])
@pytest.mark.parametrize(
    "sync",
    [
        FullWeightSync(timeout_s=60, verify=True),
        BucketWeightSync(timeout_s=60, bucket_size=1000, verify=True),
        PatchWeightSync(timeout_s=60, bucket_size=1000),
    ],
    ids=["full", "bucket", "patch"],
)
def test_weights_arrive_where_they_are_held(device: torch.device, sync: Any, held: str, lazy: bool) -> None:
    built = trainer(device, "fsdp2", torch.bfloat16)
    policy = ToyWriter(seed=5).to(device if held == "there" else "cpu", torch.bfloat16)
    current = Weights(tensors={name: tensor.detach() for name, tensor in policy.state_dict().items()}, version=0)
    for _ in range(2):
        trained(built, 1)
        sent = built.lazy_weights() if lazy else built.weights()
        _, current = exchange(sent, current, sync=sync)
        assert current.version == built.version
        for name, tensor in built.weights().tensors.items():
            assert current.tensors[name].device.type == (device.type if held == "there" else "cpu")
            assert torch.equal(current.tensors[name].cpu(), tensor), name
    built.close()
