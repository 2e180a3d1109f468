"""Resuming changes nothing, and a checkpoint evaluates by itself."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from rlinf.runners import EmbodiedRunner, read_checkpoint

EXPERIMENT = "tiny"
LOCAL = "cluster.backend=local"


def test_two_iterations_and_two_more_are_four(app: Any, tiny: list[str]) -> None:
    assert app.train_here(*tiny, LOCAL, "runner.max_steps=4")[0] == 0
    whole = app.metrics(EXPERIMENT)[:4]
    assert app.train_here(*tiny, LOCAL, "runner.max_steps=2")[0] == 0
    resume = f"runner.resume_dir={app.logs / EXPERIMENT / 'checkpoints/global_step_2'}"
    code, said = app.train_here(*tiny, LOCAL, "runner.max_steps=4", resume)
    assert code == 0, said
    resumed = [row for row in app.metrics(EXPERIMENT) if row["step"] > 2 and "train/loss" in row]
    assert [row["step"] for row in resumed] == [3, 4]
    for expected, found in zip(whole[2:], resumed, strict=True):
        for name in ("train/loss", "train/value_loss", "env/return", "env/steps"):
            assert found[name] == expected[name], name


def test_a_run_that_was_stopped_makes_the_evaluation_that_was_due(
    app: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the iteration after which the evaluation comes: what follows is the curve of a run without a break."""
    options = (*tiny, LOCAL, "runner.max_steps=3", "runner.val_check_interval=2")
    assert app.train_here(*options, "runner.experiment_name=whole")[0] == 0
    train = EmbodiedRunner.run_training

    def interrupted(self: EmbodiedRunner) -> Any:
        if self.step == 1:
            signal.raise_signal(signal.SIGINT)
        return train(self)

    with monkeypatch.context() as patched:
        patched.setattr(EmbodiedRunner, "run_training", interrupted)
        assert app.train_here(*options)[0] == 130
    assert not any("eval/return" in row for row in app.metrics(EXPERIMENT))
    code, said = app.train_here(*options, "runner.resume_dir=auto")
    assert code == 0, said
    assert "evaluating after iteration 2, which the run was stopped without" in said
    curves = [
        [(row["step"], row["eval/return"]) for row in app.metrics(name) if "eval/return" in row] for name in ("whole", EXPERIMENT)
    ]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == [2, 3]
    best = [json.loads((app.logs / name / "checkpoints/best.json").read_text()) for name in ("whole", EXPERIMENT)]
    assert best[0] == best[1]


def test_eval_needs_nothing_but_the_checkpoint(app: Any, tiny: list[str]) -> None:
    assert app.train_here(*tiny, LOCAL)[0] == 0
    trained = json.loads((app.logs / EXPERIMENT / "summary.json").read_text())
    done = app.evaluate(str(app.logs / EXPERIMENT), LOCAL)
    assert done.returncode == 0, done.stderr
    assert "eval/return" in done.stdout
    assert "success" not in done.stdout, "the task knows none"
    folder = app.logs / EXPERIMENT / "checkpoints"
    evaluated = json.loads((folder / "global_step_2_eval" / trained["protocol"]["hash"] / "summary.json").read_text())
    assert evaluated["protocol"]["hash"] == trained["protocol"]["hash"]
    assert evaluated["eval/return"] == pytest.approx(trained["eval/return"], abs=1e-4)


def test_a_run_does_not_go_on_with_a_model_of_another_size(app: Any, tiny: list[str]) -> None:
    assert app.train_here(*tiny, LOCAL, "runner.max_steps=1")[0] == 0
    code, said = app.train_here(*tiny, LOCAL, "runner.resume_dir=auto", "actor.model.hidden_sizes=[8]")
    assert code == 2
    assert "ConfigError: actor.model.hidden_sizes: the weights do not fit a model that is not as in training" in said
    assert "(actor.model.hidden_sizes: [16] in training, [8] now)" in said
    assert read_checkpoint(app.logs / EXPERIMENT).state["step"] == 1


def test_a_damaged_checkpoint_is_refused_by_eval_and_by_resume(app: Any, tiny: list[str]) -> None:
    assert app.train_here(*tiny, LOCAL, "runner.max_steps=1")[0] == 0
    folder = app.logs / EXPERIMENT / "checkpoints/global_step_1"
    assert read_checkpoint(folder).state["step"] == 1
    model = folder / "actor/model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    # An evaluation is told which checkpoint; a run that goes on looks for its own.
    for expected, (code, said) in (
        (2, app.evaluate_here(str(folder), LOCAL)),
        (1, app.train_here(*tiny, LOCAL, f"runner.resume_dir={folder}", "runner.experiment_name=other")),
    ):
        assert code == expected
        assert re.search(r"model\.safetensors'?: differs from the manifest", said)
        assert "Traceback" not in said
