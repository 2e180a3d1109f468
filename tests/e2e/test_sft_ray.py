"""Supervised fine-tuning with two actor ranks on Ray: they learn what one rank learns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reasoning_app import ReasoningApp
from safetensors.torch import load_file
from torch import Tensor

RUN = (
    "runner={max_steps: 3, steps_per_iteration: 4, val_check_interval: 1}",
    # Ranks have 8 and 7 examples a step, and 9 and 8 to validate on; often they fill different numbers of rows, each a pass.
    "data={train: 150, validation: 40, val_problems: 17, max_length: 64, packing: true}",
    "actor={global_batch_size: 15, micro_batch_size: 1}",
)
TWO = ("cluster.backend=ray", "cluster.component_placement={actor: 0-1}")
COMPARED = {"train/nll", "train/grad_norm", "eval/loss"}
LORA = "actor.model.lora={rank: 4}"
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Learned:
    """What a run left."""

    rows: list[dict[str, float]]
    weights: dict[str, Tensor]
    exported: dict[str, Tensor]


def learn(logs: Path, *overrides: str) -> Learned:
    app = ReasoningApp(logs)
    app._main("sft.py", *app.log_path, *RUN, *overrides)
    folder = logs / "sft_arithmetic"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = load_file(folder / "checkpoints/global_step_3/actor/model.safetensors")
    return Learned(rows, weights, load_file(folder / "huggingface/model.safetensors"))


@pytest.mark.parametrize("adapters", [(), (LORA,)], ids=["all weights", "adapters"])
def test_two_ranks_learn_what_one_learns(tmp_path: Path, adapters: tuple[str, ...]) -> None:
    """Up to float32 rounding: losses and norms to 1e-6 of their size, weights after twelve steps to 5e-6."""
    one = learn(tmp_path / "one", "cluster.backend=local", *adapters)
    two = learn(tmp_path / "two", *TWO, *adapters)
    for expected, found in zip(one.rows, two.rows, strict=True):
        for metric in COMPARED & expected.keys():
            assert found[metric] == pytest.approx(expected[metric], rel=1e-6), f"step {expected['step']}: {metric}"
    assert one.rows[-1]["eval/loss"] < one.rows[0]["eval/loss"] - 0.1, "there was something to learn"
    for expected, found in ((one.weights, two.weights), (one.exported, two.exported)):
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=5e-6, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert any("lora_" in name for name in two.weights) == bool(adapters)
    assert not any("lora_" in name for name in two.exported)
