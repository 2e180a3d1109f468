"""Whole runs on one real GPU, which actor and rollout share as processes of their own: no virtual accelerators anywhere."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoning_app import ReasoningApp

from rlinf.core import Weights, gather
from rlinf.engines import BucketWeightSync, FullWeightSync
from rlinf.scheduler import Cluster, PackedPlacementStrategy, Worker
from rlinf.scheduler.trace import spans

pytestmark = [pytest.mark.gpu, pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("shared_ray")]
TRIED_ON_CPU = os.environ.get("RLINF_TEST_DEVICE") == "cpu"
"""Without a GPU, to try the tests: a virtual accelerator stands for it."""
BACKEND = "local" if TRIED_ON_CPU else "ray"
STEPS = 3


@pytest.fixture(autouse=True)
def gpu() -> None:
    if not (torch.cuda.is_available() or TRIED_ON_CPU):
        pytest.skip("needs a GPU")


def cluster(tmp_path: Path) -> list[str]:
    accelerators = "{count: 1}" if TRIED_ON_CPU else "null"
    return [
        f"cluster.virtual_accelerators={accelerators}",
        "cluster.component_placement={actor: '0', rollout: '0', reward: '0'}",
        f"cluster.tracer={{enabled: true, path: '{tmp_path / 'trace.json'}'}}",
    ]


BF16 = ["actor.model.precision=bf16", "actor.logprob_tolerance=0.1", "actor.fsdp_config={strategy: fsdp2}"]
REFERENCE = ["reference.source=initial", "algorithm.kl_beta=0.01"]
RUNS = {
    "plain": ["actor.weight_syncer.type=bucket"],
    "offload": ["actor.weight_syncer.type=bucket", "actor.offload=true"],
    "sharded": ["actor.weight_syncer.type=patch", "actor.offload=true", *BF16, *REFERENCE],
}


@pytest.mark.parametrize("kind", RUNS)
def test_a_model_learns_to_reason_there(tmp_path: Path, kind: str) -> None:
    """The gate before the first update has compared what was written there with what the trainer says of it."""
    app = ReasoningApp(tmp_path, recipe=("--config-name", "grpo_arithmetic"))
    sizes = ["data.rollout_batch_size=8", "actor.global_batch_size=64", "data.val_problems=16", "data.final_problems=16"]
    warm = ["sft.runner.max_steps=1", "sft.runner.steps_per_iteration=30"]
    said = app.train(f"runner.max_steps={STEPS}", *cluster(tmp_path), *sizes, *warm, *RUNS[kind], backend=BACKEND)
    assert "NVIDIA GPU" in said or TRIED_ON_CPU, said
    rows = app.rows()
    assert sorted(rows) == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["train/loss"]) and row["train/grad_norm"] > 0 for row in rows.values())
    assert (app.folder / f"checkpoints/global_step_{STEPS}").is_dir()
    found = list(spans(tmp_path / "trace.json"))
    memory = [span for span in found if span.kind == "memory" and span.name in ("parameters", "cache")]
    assert {"actor", "rollout"} <= {span.group for span in memory}
    if not TRIED_ON_CPU and kind != "sharded":
        routes = {span.route for span in found if span.kind == "send" and span.group == "actor"}
        assert "cuda_ipc" in routes, f"weights went by {routes}"


class Holder(Worker):
    """Has weights on the device: one worker sends them, the other receives them."""

    def hold(self, number: float) -> str:
        self.weights = {f"layer.{i}": torch.full((1000, 999), number + i, dtype=torch.bfloat16, device=DEVICE) for i in range(8)}
        return str(self.weights["layer.0"].device)

    def give(self, sync: Any, rounds: int) -> None:
        for version in range(1, rounds + 1):
            for tensor in self.weights.values():
                tensor += 1
            sync.send(self.messenger, Weights(tensors=self.weights, version=version), "taker", [0])

    def take(self, sync: Any, rounds: int) -> list[tuple[str, float]]:
        held = Weights(tensors=self.weights, version=0)
        for _ in range(rounds):
            held = sync.recv(self.messenger, held, "giver", 0)
        return [(tensor.device.type, float(tensor.float().mean())) for tensor in held.tensors.values()]

    def used(self) -> int:
        return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


DEVICE = "cpu" if TRIED_ON_CPU else "cuda"


@pytest.mark.parametrize("way", ["full", "bucket", "bucket by the host"])
def test_weights_go_from_worker_to_worker(tmp_path: Path, way: str) -> None:
    """What travels by a handle is let go of by both sides, round by round."""
    sync: Any = FullWeightSync(verify=True) if way == "full" else BucketWeightSync(bucket_size=1 << 20, verify=True)
    virtual: dict[str, Any] = {"virtual_accelerators": {"count": 1}} if TRIED_ON_CPU else {}
    tracer = {"enabled": True, "path": str(tmp_path / "trace.json")}
    route = "socket" if way == "bucket by the host" else "auto"
    config = {"backend": "ray", "timeout_s": 120.0, "tracer": tracer, "route": route, **virtual}
    with Cluster(cluster_cfg=config) as built:
        giver, taker = (
            Holder.create_group().launch(built, name=name, placement_strategy=PackedPlacementStrategy(0, 0))
            for name in ("giver", "taker")
        )
        ((device,), _) = gather(giver.hold(0.0), taker.hold(50.0), timeout=120.0)
        assert device.startswith(DEVICE)
        (before,) = taker.used().wait()
        _, (found,) = gather(giver.give(sync, 3), taker.take(sync, 3), timeout=120.0)
        assert found == [(DEVICE, 3.0 + i) for i in range(8)]
        (after,) = taker.used().wait()
        assert after <= before + (4 << 20)
    routes = {span.route for span in spans(tmp_path / "trace.json") if span.kind == "send" and span.group == "giver"}
    assert ("cuda_ipc" in routes) is (way != "bucket by the host" and not TRIED_ON_CPU), routes
