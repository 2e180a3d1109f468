"""Keys that change what a run does, through the app: loggers, a reference policy, going on by itself."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

LOCAL = "cluster.backend=local"
DECOUPLED = ("algorithm.loss_type=decoupled_actor_critic", "algorithm.recompute_logprobs=true")
REFERENCE = ("reference.source=initial", "algorithm.kl_beta=0.1")


def test_a_decoupled_loss_with_a_reference_goes_on_by_itself(app: Any, tiny: list[str]) -> None:
    run = [*tiny, LOCAL, *DECOUPLED, *REFERENCE, "runner.resume_dir=auto", "runner.logger.logger_backends=[csv,stdout]"]
    code, said = app.train_here(*run, "runner.save_interval=1")
    assert code == 0, said
    assert "resuming: nothing yet in " in said
    assert "tiny step 1  env/" in said
    first, second, _ = app.metrics("tiny")
    # Of the weights at the start before the first of several updates of an iteration, and farther in the second iteration.
    assert 0 < first["train/kl_ref"] < second["train/kl_ref"]
    assert first["train/behave_ratio"] == pytest.approx(1.0, abs=1e-5)
    code, said = app.train_here(*run, "runner.max_steps=3")
    assert code == 0, said
    assert f"resuming: from {app.logs / 'tiny/checkpoints/global_step_2'}" in said
    with (app.logs / "tiny/metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "2", "3", "3"], "the file is appended to"
    assert app.metrics("tiny")[3]["train/kl_ref"] > second["train/kl_ref"], "the reference is still that of the start"


def test_a_logger_that_nobody_has_is_refused_before_a_worker_starts(app: Any, tiny: list[str]) -> None:
    code, said = app.train_here(*tiny, LOCAL, "runner.logger.logger_backends=[nowhere:Logger]")
    assert code != 0
    assert "runner.logger.logger_backends: the logger 'nowhere:Logger' needs the module 'nowhere'" in said
    assert not (app.logs / "tiny").exists()


def test_offloading_changes_no_number(app: Any, tiny: list[str]) -> None:
    runs: list[list[dict[str, Any]]] = []
    for name, offload in (("kept", "false"), ("offloaded", "true")):
        keys = [f"runner.experiment_name={name}", "env.train.auto_reset=false"]
        keys += [f"{section}.offload={offload}" for section in ("actor", "rollout", "env")]
        code, said = app.train_here(*tiny, LOCAL, *keys, "runner.logger.logger_backends=[]")
        assert code == 0, said
        runs.append([{k: v for k, v in row.items() if not k.startswith("time/")} for row in app.metrics(name)])
    assert runs[0] == runs[1]


PICTURES = (
    *("--config-name", "tabletop_cnn_ppo", LOCAL, "runner.max_steps=1", "actor.global_batch_size=24"),
    *("env.train.total_num_envs=8", "env.train.max_steps_per_rollout_epoch=6", "algorithm.update_epoch=1"),
    *("env.eval.episodes=4", "env.eval.video_cfg.save_video=false"),
)
"""A short run that learns from images."""


def test_training_sees_what_wrappers_make_of_images_and_evaluation_what_is_not_random(app: Any) -> None:
    learned: dict[str, float] = {}
    played: dict[str, str] = {}
    wrappers = {"plain": "", "resized": "type: resize_images, size: [16, 16]", "moved": "type: augment_images, shift: 4"}
    for name, wrapper in wrappers.items():
        given = f"[{{{wrapper}}}]" if wrapper else "null"
        code, said = app.train_here(*PICTURES, f"runner.experiment_name={name}", f"env.train.wrappers={given}")
        assert code == 0, said
        learned[name] = app.metrics(name)[0]["train/loss"]
        played[name] = json.loads((app.logs / name / "summary.json").read_text())["protocol"]["hash"]
    assert len({*learned.values()}) == 3, learned
    assert played["plain"] == played["moved"] != played["resized"]
    # The same weights play the same with an augmentation as without it.
    results = [json.loads((app.logs / "moved/summary.json").read_text())["results"]]
    for overrides in ((), ("env.train.wrappers=null",)):
        code, said = app.evaluate_here(str(app.logs / "moved"), LOCAL, *overrides)
        assert code == 0, said
        (file,) = (app.logs / "moved/checkpoints").glob("*_eval/*/summary.json")
        results.append(json.loads(file.read_text())["results"])
        file.unlink()
    assert results[0] == results[1] == results[2]
