"""Fine-tuning of policies on real parts in one process: recorded, learned, resumed, evaluated, and started from by RL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sft_run import CLUSTER, demonstrate, learn, metrics, refused, weights

from rlinf.envs.recording import LeRobotWriter, record_expert
from rlinf.envs.tabletop import Tabletop
from rlinf.models import read_statistics
from rlinf.runners import open_run_folder, read_embodied
from rlinf.runners.embodied.task_type import embodied
from rlinf.scheduler import Cluster

pytest.importorskip("pyarrow", reason="the extra rlinf-envs[recording] is not installed")
SLOTS = {"task": "slots", "obs_mode": "rgb", "image_size": 16, "goals": ["red"]}
OFT = {
    "model_type": "openvla_oft",
    "preset": "tiny",
    "num_action_chunks": 2,
    "n_action_bins": 8,
    "max_prompt_length": 32,
    "add_value_head": False,
}
FLOW = {"model_type": "flow_policy", "hidden_sizes": [32], "num_action_chunks": 2}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of the same episodes: with images and words, and of states alone."""
    folder = tmp_path_factory.mktemp("demonstrations")
    for name, params in (("rgb", SLOTS), ("state", {"task": "slots"})):
        demonstrate(folder / name, episodes=12, noise=0.2, num_envs=6, **params)
    return folder


def recipe(logs: Path, data: Path, model: dict[str, Any], **runner: Any) -> dict[str, Any]:
    steps = {"max_steps": 2, "steps_per_iteration": 2, "val_check_interval": 1, "logger": {"log_path": str(logs)}}
    return {
        "runner": {"task_type": "embodied_sft", "experiment_name": "sft", **steps, **runner},
        "cluster": CLUSTER,
        "data": {"path": str(data)},
        "actor": {"model": dict(model), "optim": {"lr": 3e-3, "clip_grad": 1.0}, "global_batch_size": 16},
    }


def test_a_policy_learns_and_its_statistics_travel(tmp_path: Path, demonstrations: Path) -> None:
    checkpoint = learn(recipe(tmp_path, demonstrations / "state", FLOW, max_steps=4, steps_per_iteration=30))
    rows = metrics(checkpoint)
    assert rows[3]["train/loss"] < 0.8 * rows[0]["train/loss"]
    assert rows[-1]["eval/loss"] < 0.9 * rows[0]["eval/loss"]
    # The last of twelve episodes is held out, and so no part of the statistics, which LeRobot's own are of all.
    every = read_statistics(demonstrations / "state")
    found = weights(checkpoint)
    assert found["normalize_states.first"].shape == every["state"]["mean"].shape
    torch.testing.assert_close(found["normalize_states.first"].double(), torch.tensor(every["state"]["mean"]), atol=0.1, rtol=0)
    assert (found["normalize_states.second"] != 1).all()


def test_two_iterations_and_two_more_are_four_to_the_bit(tmp_path: Path, demonstrations: Path) -> None:
    data = demonstrations / "state"
    whole = weights(learn(recipe(tmp_path / "whole", data, FLOW, max_steps=4)))
    half = learn(recipe(tmp_path / "parts", data, FLOW))
    again = weights(learn(recipe(tmp_path / "parts", data, FLOW, max_steps=4, resume_dir=str(half))))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert not all(torch.equal(weights(half)[name], tensor) for name, tensor in whole.items())


def test_micro_batches_change_nothing_but_rounding(tmp_path: Path, demonstrations: Path) -> None:
    plain, parted = (recipe(tmp_path / name, demonstrations / "rgb", OFT, max_steps=1) for name in ("plain", "parted"))
    parted["actor"]["micro_batch_size"] = 5
    first, second = weights(learn(plain)), weights(learn(parted))
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, atol=1e-4, rtol=0, msg=name)


def test_adapters_are_trained_and_nothing_beneath_them(tmp_path: Path, demonstrations: Path) -> None:
    small = {**OFT, "lora": {"rank": 2}}
    first, second = (
        weights(learn(recipe(tmp_path / str(n), demonstrations / "rgb", small, max_steps=n, experiment_name=str(n))))
        for n in (1, 2)
    )
    changed = {name for name, tensor in first.items() if not torch.equal(second[name], tensor)}
    assert changed
    assert all("lora_" in name or not name.startswith("vlm.") for name in changed)


def test_what_was_learned_is_evaluated_and_reinforced(tmp_path: Path, demonstrations: Path) -> None:
    """The run folder in one flag: RL starts with these weights, those of normalisation too, and a critic of its own."""
    data = recipe(tmp_path, demonstrations / "rgb", OFT)
    data["env"] = {"eval": {"env_type": "tabletop", "init_params": SLOTS, "total_num_envs": 8, "episodes": 8}}
    data["env"]["eval"]["video_cfg"] = {"save_video": False}
    checkpoint = learn(data)
    assert 0 <= metrics(checkpoint)[-1]["eval/success_once"] <= 1
    (report,) = (checkpoint.parent / f"{checkpoint.name}_eval").glob("*/summary.json")
    summary = json.loads((checkpoint.parents[1] / "summary.json").read_text())
    assert summary["protocol"] == json.loads(report.read_text())["protocol"], "of the numbers that were played"
    assert summary["protocol"]["episodes"] == 8
    assert summary["loss_protocol"]["data"]["path"] == str(demonstrations / "rgb")

    env = {"env_type": "tabletop", "init_params": SLOTS, "total_num_envs": 4, "max_steps_per_rollout_epoch": 2}
    cfg = read_embodied(
        {
            "runner": {
                "experiment_name": "rl",
                "max_steps": 1,
                "ckpt_path": str(checkpoint.parents[1]),
                "logger": {"log_path": str(tmp_path)},
            },
            "cluster": CLUSTER,
            "env": {"train": env, "eval": {"total_num_envs": 4, "episodes": 4, "video_cfg": {"save_video": False}}},
            # What is farther from it than such a step was never loaded.
            "actor": {"model": {**OFT, "add_value_head": True}, "optim": {"lr": 1e-9}, "global_batch_size": 8},
            "algorithm": {"update_epoch": 1},
        }
    )

    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        runner = embodied.start(cfg, cluster, open_run_folder(cfg))
        runner.init_workers()
        runner.run()
    taught, reinforced = weights(checkpoint), weights(tmp_path / "rl/checkpoints/global_step_1")
    assert {name for name in reinforced if name not in taught} == {n for n in reinforced if n.startswith("value_head.")} != set()
    for name, tensor in taught.items():
        torch.testing.assert_close(reinforced[name], tensor, atol=1e-7, rtol=0, msg=name)
    assert torch.equal(reinforced["normalize_actions.first"], taught["normalize_actions.first"])
    assert not torch.equal(taught["normalize_actions.first"], -torch.ones(2)), "they are those of the data, not the bounds"


def test_statistics_of_the_weights_can_be_kept(tmp_path: Path, demonstrations: Path) -> None:
    first = learn(recipe(tmp_path, demonstrations / "state", FLOW, max_steps=1))
    again = recipe(tmp_path, demonstrations / "state", FLOW, max_steps=1, experiment_name="again", ckpt_path=str(first))
    again["data"] |= {"episodes": 3, "statistics": "model"}
    other = {**again, "data": {**again["data"], "statistics": "dataset"}, "runner": {**again["runner"], "experiment_name": "other"}}
    kept, refitted = weights(learn(again)), weights(learn(other))
    assert torch.equal(kept["normalize_states.first"], weights(first)["normalize_states.first"])
    assert not torch.equal(refitted["normalize_states.first"], weights(first)["normalize_states.first"])


def test_what_does_not_fit_is_refused_with_the_names_of_both_sides(tmp_path: Path, demonstrations: Path) -> None:
    rgb, state = demonstrations / "rgb", demonstrations / "state"
    refused(recipe(tmp_path, state, OFT), "data.keys: 'openvla_oft' sees 'main_images'", str(state), "data.keys.main_images=")
    # One that takes whatever cameras there are, of which there must be one.
    eyes = {"model_type": "cnn_policy", "preset": "tiny"}
    refused(recipe(tmp_path, state, eyes), "data.keys: 'cnn_policy' sees main_images", f"'{state}' has none", "observation.state")
    chunks = {**FLOW, "num_action_chunks": 100}
    refused(recipe(tmp_path, state, chunks), "actor.model.num_action_chunks: a chunk of 100 steps, and the longest episode of")
    narrow = {"model_type": "pi0", "preset": "tiny", "max_action_dim": 1}
    refused(recipe(tmp_path, rgb, narrow), f"'pi0' makes actions of at most 1 numbers, and actions of '{rgb}' have 2. Set it to 2")
    everything = recipe(tmp_path, state, FLOW)
    everything["data"]["val_episodes"] = 12
    refused(everything, "data.val_episodes: expected fewer than the 12 episodes")
    nothing = recipe(tmp_path, state, FLOW)
    nothing["data"]["statistics"] = "model"
    refused(nothing, "data.statistics: 'model' keeps the statistics of a model that has none", "runner.ckpt_path")
    for chosen, said in (
        (
            {"keys": {"main_image": "observation.images.main"}},
            "data.keys.main_image: neither 'openvla_oft' nor an environment calls",
        ),
        (
            {"keys": {"main_images": "observation.state"}},
            "data.keys.main_images: expected pictures, found a feature of the shape [2]",
        ),
        ({"chunk_length": 1}, "data.chunk_length: expected at least the 2 steps that the policy decides at once, found 1"),
        ({"chunk_length": 3}, "data.chunk_length: 'openvla_oft' decides 2 steps at once and learns no more, found 3"),
    ):
        mistyped = recipe(tmp_path, rgb, OFT)
        mistyped["data"] |= chosen
        refused(mistyped, said, *(["Did you mean 'main_images'?"] if "main_image:" in said else []))
    language = recipe(tmp_path, state, {"model_type": "causal_lm", "preset": "tiny"})
    refused(language, "actor.model.model_type: 'causal_lm' writes text and does not act")
    judge = recipe(tmp_path, state, {"model_type": "sequence_reward", "preset": "tiny"})
    refused(judge, "actor.model.model_type: 'sequence_reward' judges texts and does not act")
    other = recipe(tmp_path, state, FLOW)
    other["env"] = {"eval": {"env_type": "tabletop", "init_params": {"task": "pick_place"}}}
    refused(other, "data.action: actions of", "have the shape [2], those of env.eval.env_type 'tabletop' [4]", "data.keys.states")
    late = recipe(tmp_path, state, FLOW)
    late["env"] = {"eval": {"env_type": "tabletop", "init_params": {"task": "slots"}, "tasks": [99]}}
    refused(late, "env.eval.tasks: env.eval.env_type 'tabletop' has no task 99")
    unseen = recipe(tmp_path, rgb, OFT)
    unseen["env"] = {"eval": {"env_type": "tabletop", "init_params": {"task": "slots"}}}
    refused(unseen, "env.eval.init_params: 'openvla_oft' sees 'main_images', and env.eval.env_type 'tabletop' has states")


def test_episodes_without_a_task_teach_no_model_that_is_told_one(tmp_path: Path) -> None:
    env = Tabletop(task="slots").make(2, max_episode_steps=None, ignore_terminations=False, render=False)
    record_expert(env, LeRobotWriter(tmp_path / "data", fps=20), episodes=2)
    told = recipe(tmp_path, tmp_path / "data", OFT)
    told["data"]["keys"] = {"main_images": "observation.state"}  # which are no pictures, and told besides
    refused(told, "data: 'openvla_oft' follows instructions, and an episode of", "has no task")


@pytest.mark.parametrize(
    "backend", ["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_two_ranks_learn_what_one_learns(tmp_path: Path, demonstrations: Path, backend: str) -> None:
    """A policy whose loss draws nothing, on Ray on shards: the same numbers, whoever computes them."""
    rows: list[list[dict[str, float]]] = []
    for name, where in (("one", "0"), ("two", "0-1")):
        data = recipe(tmp_path, demonstrations / "state", {"model_type": "mlp_policy"}, experiment_name=name)
        cluster = {"virtual_accelerators": {"count": 2}, "component_placement": {"actor": where}}
        data["cluster"] = {"backend": "local" if name == "one" else backend, **cluster}
        rows.append(metrics(learn(data)))
    for one, two in zip(*rows, strict=True):
        compared = {"train/loss", "train/grad_norm", "eval/loss"} & one.keys()
        assert {key: one[key] for key in compared} == pytest.approx({key: two[key] for key in compared}, rel=1e-4)
