"""A folder of LeRobot is what fine-tuning and RL start from, what RL compares with, and what is evaluated."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sft_run import CLUSTER

from rlinf.envs.recording import LeRobotWriter, record_expert
from rlinf.envs.tabletop import Tabletop
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.conversion.command import convert
from rlinf.models.pi0._network import PiNetwork
from rlinf.models.pi0.architecture import tiny
from rlinf.models.pi0.statistics import read_statistics
from rlinf.runners.commands import run_recipe
from rlinf.runners.config.composition import Composition

pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
SLOTS = {"task": "slots", "obs_mode": "rgb", "image_size": 16}
SIZES = {"num_action_chunks": 2, "horizon": 2, "max_state_dim": 4, "max_action_dim": 4}
PI0 = {"model_type": "pi0", "preset": "tiny", **SIZES}


@pytest.fixture
def lerobot(tmp_path: Path) -> Path:
    folder, of = tmp_path / "lerobot", replace(tiny("pi0"), horizon=2, max_state_dim=4, max_action_dim=4)
    folder.mkdir()
    torch.manual_seed(5)
    state = PiNetwork("pi0", of).state_dict()
    save_file({name.removeprefix("core."): tensor for name, tensor in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"type": "pi0", "architecture": asdict(of)}))
    tiny_tokenizer(of.vocabulary).save_pretrained(folder)
    numbers = {f"{of}.{name}": torch.full((2,), 0.75) for of in ("action", "observation.state") for name in ("mean", "std")}
    save_file(numbers, folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    return folder


def run(task_type: str, folder: Path, start: Path, **sections: Any) -> dict[str, torch.Tensor]:
    runner = {
        "task_type": task_type,
        "experiment_name": task_type,
        "max_steps": 1,
        "val_check_interval": 0,
        "ckpt_path": str(start),
    }
    data = {"runner": {**runner, "logger": {"log_path": str(folder)}}, "cluster": CLUSTER, **sections}
    run_recipe(Composition(name=task_type, data=data, provenance={}))
    return load_file(folder / task_type / "checkpoints/global_step_1/actor/model.safetensors")


def test_fine_tuning_keeps_its_statistics_if_told_to(tmp_path: Path, lerobot: Path) -> None:
    env = Tabletop(**SLOTS).make(4, max_episode_steps=None, ignore_terminations=False, render=False)  # type: ignore[arg-type]
    record_expert(env, LeRobotWriter(tmp_path / "data", fps=20, use_videos=False, finalize_interval=9), episodes=4)
    data = {"path": str(tmp_path / "data"), "statistics": "model"}
    found = run("embodied_sft", tmp_path, lerobot, data=data, actor={"model": PI0, "global_batch_size": 4})
    assert found["actions.first"].tolist() == found["states.second"].tolist() == [0.75, 0.75]


def test_reinforcement_learning_starts_from_it_and_compares_with_it(tmp_path: Path, lerobot: Path) -> None:
    train = {"env_type": "tabletop", "init_params": SLOTS, "total_num_envs": 2, "max_steps_per_rollout_epoch": 2}
    found = run(
        "embodied",
        tmp_path,
        lerobot,
        env={"train": train, "eval": {"total_num_envs": 2, "episodes": 2, "video_cfg": {"save_video": False}}},
        actor={"model": {**PI0, "add_value_head": False}, "global_batch_size": 4},
        algorithm={"adv_type": "reinforce_plus_plus", "loss_type": "actor", "kl_beta": 0.1},
        reference={"source": "path", "ckpt_path": str(lerobot)},
    )
    assert found["actions.first"].tolist() == found["states.second"].tolist() == [0.75, 0.75]
    # The first update begins where the reference is.
    row = json.loads((tmp_path / "embodied/metrics.jsonl").read_text().splitlines()[0])
    assert row["train/kl_ref"] == pytest.approx(0.0, abs=1e-5)


def test_it_is_evaluated_as_the_policy_that_it_is_converted_to_and_back(tmp_path: Path, lerobot: Path, app: Any) -> None:
    ours, back = tmp_path / "ours", tmp_path / "back"
    sizes = [f"{name}={size}" for name, size in SIZES.items()]
    convert([str(lerobot), str(ours), "--to", "safetensors", *sizes])
    convert([str(ours), str(back), "--to", "lerobot", "--like", str(lerobot)])
    assert read_statistics(back)["actions"]["std"].tolist() == [0.75, 0.75]
    # A return that differs wherever the hand is elsewhere.
    played = ["env.train.init_params.reward_mode=progress", "env.eval.episodes=4", "env.eval.video_cfg.save_video=false"]
    results: list[Any] = []
    for folder in (lerobot, ours, back):
        place = ["--config-name", "tabletop_pi0_ppo", f"runner.ckpt_path={folder}", f"runner.experiment_name={folder.name}"]
        code, said = app.evaluate_here(*place, f"runner.logger.log_path={app.logs}", "cluster.backend=local", *played)
        assert code == 0, said
        (file,) = app.logs.glob(f"{folder.name}_eval/*/*/summary.json")
        results.append(json.loads(file.read_text())["results"])
    assert results[0] == results[1] == results[2]
    assert len({result["episode_return"] for result in results[0]}) > 1
