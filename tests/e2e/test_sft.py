"""Supervised fine-tuning on real parts in one process: what it learns, writes, and keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.random import keyed_seed
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.sft import SFTActor, SFTRunner, read_sft, warm_start
from rlinf.scheduler import Cluster

TOKENS = {"kind": "characters", "alphabet": "0123456789+-=#"}


def recipe(logs: Path, **runner: Any) -> dict[str, Any]:
    return {
        "runner": {"experiment_name": "sft", "max_steps": 4, "steps_per_iteration": 5, "logger": {"log_path": str(logs)}, **runner},
        "cluster": {"backend": "local"},
        "data": {"type": "arithmetic", "terms": 3, "train": 100, "validation": 20, "val_problems": 20, "max_length": 48},
        "actor": {
            "model": {"model_type": "causal_lm", "preset": "tiny", "tokens": TOKENS, "overrides": {"initializer_range": 0.02}},
            "optim": {"lr": 3e-3, "clip_grad": 1.0},
            "global_batch_size": 16,
        },
    }


def learn(data: dict[str, Any]) -> Path:
    """A whole run; the folder of its last checkpoint."""
    cfg = read_sft(data)
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        runner = SFTRunner(cfg=cfg, actor=SFTActor.create_group(cfg).launch(cluster, name="actor"))
        runner.init_workers()
        return runner.run()


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_learns_and_its_export_is_read_by_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = learn(recipe(tmp_path, val_check_interval=1))
    assert "learning from 100 examples in 20 optimizer steps of 16\n" in capsys.readouterr().err
    rows = metrics(tmp_path / "sft")
    assert rows[0]["train/nll"] > 1.2 * rows[3]["train/nll"]
    assert rows[0]["eval/loss"] > 1.1 * rows[-1]["eval/loss"]
    assert rows[-1]["eval/perplexity"] == pytest.approx(torch.tensor(rows[-1]["eval/loss"]).exp().item(), rel=1e-5)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "sft/huggingface", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "sft/huggingface", local_files_only=True)
    assert tokenizer.decode(tokenizer.encode("12+3=#15")) == "12+3=#15"
    saved = load_file(checkpoint / "actor/model.safetensors")
    for name, tensor in exported.state_dict().items():
        assert torch.equal(tensor, saved[f"network.{name}"])


def test_the_protocol_of_a_loss_knows_files_by_content(tmp_path: Path) -> None:
    def protocol(folder: str, text: str, *, learned: str = "0") -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        files = {"path": tmp_path / folder / "train.jsonl", "validation_path": tmp_path / folder / "validation.jsonl"}
        files["path"].write_text(f'{{"prompt": "{learned}+1=", "answer": "5"}}\n')
        files["validation_path"].write_text(f'{{"prompt": "{text}", "answer": "5"}}\n')
        data = recipe(tmp_path / "logs")
        data["data"] = {"type": "dataset", **{name: str(file) for name, file in files.items()}, "solution_key": "answer"}
        actor: Any = None
        runner: Any = SFTRunner(read_sft(data), actor, RunFolder(tmp_path / "logs"))
        return runner._protocol["hash"]

    first = protocol("here", "2+3=")
    assert protocol("there", "2+3=") == first, "moved"
    assert protocol("here", "2+3=", learned="4") == first, "what is learned is not what is measured"
    assert protocol("here", "1+4=") != first


def test_two_iterations_and_two_more_are_four_to_the_bit(tmp_path: Path) -> None:
    whole = load_file(learn(recipe(tmp_path / "whole")) / "actor/model.safetensors")
    half = learn(recipe(tmp_path / "parts", max_steps=2))
    again = load_file(learn(recipe(tmp_path / "parts", resume_dir=str(half))) / "actor/model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert not torch.equal(load_file(half / "actor/model.safetensors")["network.lm_head.weight"], whole["network.lm_head.weight"])


def test_packing_and_micro_batches_change_nothing_but_rounding(tmp_path: Path) -> None:
    plain, parted = recipe(tmp_path / "plain", max_steps=1), recipe(tmp_path / "parted", max_steps=1)
    plain["data"]["packing"] = False
    parted["actor"]["micro_batch_size"] = 2
    first, second = (metrics(learn(data).parents[1]) for data in (plain, parted))
    assert first[0]["train/nll"] == pytest.approx(second[0]["train/nll"], rel=1e-5)
    assert first[-1]["eval/loss"] == pytest.approx(second[-1]["eval/loss"], rel=1e-5)


def test_adapters_are_trained_alone_and_merged_into_the_export(tmp_path: Path) -> None:
    data = recipe(tmp_path, max_steps=1)
    data["actor"]["model"]["lora"] = {"rank": 2}
    cfg = read_sft(data)
    before = cfg.actor.model.build(seed=keyed_seed(1, "model")).state_dict()
    after = load_file(learn(data) / "actor/model.safetensors")
    adapters = {name for name in before if "lora_" in name}
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert adapters
    assert changed
    assert changed <= adapters
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "sft/huggingface", local_files_only=True).state_dict()
    assert not any("lora_" in name for name in exported)
    plain = read_sft(recipe(tmp_path)).actor.model.build(seed=keyed_seed(1, "model"))
    base = plain.network.state_dict()
    assert any(not torch.equal(tensor, base[name]) for name, tensor in exported.items())


@pytest.fixture
def launches() -> Iterator[tuple[Callable[[Any], Any], list[Any]]]:
    """Launches the stages of warm starts on one cluster; and the configurations of those that were launched."""
    launched: list[Any] = []
    with Cluster(cluster_cfg={"backend": "local"}) as cluster:

        def launch(cfg: Any) -> Any:
            launched.append(cfg)
            return SFTActor.create_group(cfg).launch(cluster, name="sft")

        yield launch, launched


def warmed(logs: Path, sft: dict[str, Any]) -> dict[str, Any]:
    """A run that begins with a warm start."""
    stage = recipe(logs)
    sections = {"runner": {"seed": 5, "logger": stage["runner"]["logger"]}, "data": stage["data"]}
    return {**sections, "cluster": stage["cluster"], "actor": {"model": stage["actor"]["model"]}, "sft": sft}


def test_a_warm_start_is_made_once_and_again_when_something_changes(tmp_path: Path, launches: Any) -> None:
    stage = {"runner": {"max_steps": 1, "steps_per_iteration": 2}, "data": {"max_length": 48}, "actor": {"global_batch_size": 16}}
    source, (launch, launched) = warmed(tmp_path, stage), launches
    source["data"] |= {"rollout_batch_size": 4}
    source["actor"] = {"model": {**source["actor"]["model"], "temperature": 0.7}, "global_batch_size": 99}
    first, second = (warm_start(source, launch) for _ in range(2))
    assert first == second
    assert len(launched) == 1
    assert (launched[0].runner.seed, launched[0].actor.model.config.temperature) == (5, 1.0)
    other = warm_start({**source, "runner": {**source["runner"], "seed": 6}}, launch)
    assert other != first
    assert len(launched) == 2
    task = {**source["data"], "operations": ["+", "-"]}
    assert warm_start({**source, "data": task}, launch) == first, "what is said is what was meant"
    (first / "actor/model.safetensors").write_bytes(b"damaged")
    assert warm_start(source, launch) == first
    assert len(launched) == 3


def test_a_stage_of_a_warm_start_goes_on_from_the_one_before_it(tmp_path: Path, launches: Any) -> None:
    stage = {
        "runner": {"max_steps": 1, "steps_per_iteration": 2},
        "data": {"max_length": 48},
        "actor": {"global_batch_size": 16, "optim": {"lr": 1e-12}},
        "before": {"data": {"terms": 4}, "actor": {"optim": {"lr": 3e-3}}},
    }
    source, (launch, launched) = warmed(tmp_path, stage), launches
    last = warm_start(source, launch)
    assert [cfg.data.task.terms for cfg in launched] == [4, 3]
    assert all(cfg.actor.global_batch_size == 16 and cfg.data.max_length == 48 for cfg in launched)
    first = Path(launched[1].runner.ckpt_path)
    learned, kept = (load_file(folder / "actor/model.safetensors") for folder in (first, last))
    assert all(torch.allclose(kept[name], tensor, rtol=0, atol=1e-9) for name, tensor in learned.items()), "it learns no more"
    source["sft"]["before"]["runner"] = {"max_steps": 2}
    assert warm_start(source, launch) != last
    assert [cfg.runner.max_steps for cfg in launched[2:]] == [2, 1], "another first stage makes another warm start"
    source["sft"]["before"]["data"] = {"term": 4}
    with pytest.raises(ConfigError, match=r"^before\.data\.term: .*terms"):
        warm_start(source, launch)


def test_a_stage_ends_when_its_loss_is_low_enough_and_is_found_again(tmp_path: Path, launches: Any) -> None:
    """The loss falls below 4 within 5 of its 50 iterations; another bound is another warm start."""
    runner = {"max_steps": 50, "steps_per_iteration": 2, "val_check_interval": 1, "until_loss": 4.0}
    stage = {"runner": runner, "data": {"max_length": 48}, "actor": {"global_batch_size": 16, "optim": {"lr": 3e-3}}}
    source, (launch, launched) = warmed(tmp_path, stage), launches
    made = warm_start(source, launch)
    folder = made.parents[1]
    losses = [row["eval/loss"] for row in metrics(folder) if "eval/loss" in row]
    step = int(made.name.removeprefix("global_step_"))
    assert step < 50
    assert [loss <= 4.0 for loss in losses] == [*[False] * (step - 1), True, True], "the last one is that of the end"
    assert warm_start(source, launch) == made
    assert len(launched) == 1
    runner["until_loss"] = 1e9
    assert warm_start(source, launch).name == "global_step_1"
    runner["val_check_interval"] = 0
    with pytest.raises(ConfigError, match=r"^runner\.until_loss: .*no loss is measured"):
        warm_start(source, launch)


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.packed: .*packing"):
        read_sft({**recipe(tmp_path), "data": {"type": "arithmetic", "packed": True}})
    data = recipe(tmp_path)
    data["actor"]["model"]["temperature"] = 0.5
    with pytest.raises(RLinfError, match=r"expected 1 for learning from examples, found 0.5"):
        learn(data)
