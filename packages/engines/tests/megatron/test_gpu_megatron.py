"""Megatron on one GPU, without Apex and Transformer Engine: what it computes is what the trainer `fsdp` computes there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_text import Writer, text_batch, text_loss

from rlinf.engines import FSDPTrainerConfig, OptimConfig
from rlinf.engines.megatron import MegatronTrainerConfig

installed = find_spec("megatron") is not None and find_spec("megatron.core") is not None
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not installed, reason="megatron-core is not installed")]
OPTIM = OptimConfig(lr=1e-3, clip_grad=0.5)


def parts() -> list[Any]:
    return list(text_batch().micro_batches(4))


def build(config: Any, family: str, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    return config.build(Writer(family, seed=seed, dtype=dtype).to(device), rank=0, world_size=1, rendezvous="")


@pytest.mark.parametrize("changed", [{}, {"max_tokens_per_mbs": 16, "recompute": True}], ids=["rows", "packed"])
@pytest.mark.parametrize(
    ("family", "dtype", "error"),
    [("qwen2", torch.float32, 1e-4), ("qwen2", torch.bfloat16, 5e-2), ("qwen3_moe", torch.float32, 1e-4)],
    ids=["qwen2-fp32", "qwen2-bf16", "qwen3_moe-fp32"],
)
def test_it_is_the_trainer_fsdp(device: torch.device, family: str, dtype: torch.dtype, error: float, changed: Any) -> None:
    oracle = build(FSDPTrainerConfig(OPTIM), family, device, dtype)
    trainer = build(MegatronTrainerConfig(optim=OPTIM, **changed), family, device, dtype)
    try:
        batch = text_batch(left=True)
        torch.testing.assert_close(
            trainer.evaluate(batch).logprob.cpu(), oracle.evaluate(batch).logprob.cpu(), atol=10 * error, rtol=0
        )
        for _ in range(2):
            expected, found = (one.step(parts(), text_loss) for one in (oracle, trainer))
            for name in ("loss", "grad_norm"):
                assert found[name].mean == pytest.approx(expected[name].mean, rel=error, abs=error), name
    finally:
        trainer.close()


def test_it_leaves_the_device_and_goes_on_from_a_checkpoint(device: torch.device, tmp_path: Path) -> None:
    config = MegatronTrainerConfig(optim=OPTIM, reference="device")
    trainer = build(config, "qwen3", device, torch.bfloat16)
    try:
        trainer.step(parts(), text_loss)
        trainer.save(tmp_path)
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        freed = trainer.offload()
        if device.type == "cuda":
            assert before - torch.cuda.memory_allocated() >= freed
        assert trainer.onload() == freed
        trainer.step(parts(), text_loss)
        straight = trainer.weights().tensors
    finally:
        trainer.close()
    resumed = build(config, "qwen3", device, torch.bfloat16, seed=3)
    try:
        resumed.load(tmp_path)
        resumed.step(parts(), text_loss)
        for name, tensor in resumed.weights().tensors.items():
            assert torch.equal(tensor, straight[name]), name
    finally:
        resumed.close()
