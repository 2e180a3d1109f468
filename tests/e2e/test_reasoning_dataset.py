"""A user's own problems: JSON lines with the fields of GSM8K, a chat template, and answers that are compared as mathematics."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from reasoning_app import EXPERIMENT, ROOT, ReasoningApp

from rlinf.core.errors import ConfigError

pytest.importorskip("math_verify")


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    return ReasoningApp(tmp_path)


def problems(path: Path) -> str:
    with path.open("w") as file:
        for number in range(24):
            answer = f"{number} + 2 = {number + 2}\n#### {number + 2}"
            file.write(json.dumps({"question": f"Anna has {number} apples and buys 2. How many?", "answer": answer}) + "\n")
    return str(path)


def overrides(path: str) -> list[str]:
    return [
        f"data={{type: dataset, path: '{path}', prompt_key: question, answer_after: '####', validation_share: 0.25}}",
        "data.rollout_batch_size=4",
        "data.val_problems=2",
        "actor.global_batch_size=8",
        "reward={reward_type: math}",
        "~actor.model",
        "actor.model={model_type: causal_lm, preset: tiny, tokens: {kind: bytes, size: 300}}",
        "rollout.max_model_len=256",
        "runner.val_check_interval=0",
    ]


def test_two_iterations_on_json_lines(app: ReasoningApp) -> None:
    app.train(*overrides(problems(app.logs / "apples.jsonl")))
    lines = app.transcripts()
    first = next(line for line in lines if line["kind"] == "train")
    assert "Anna has" in first["prompt"]
    assert first["answer"].isdigit()
    assert sorted(app.rows()) == [1, 2]
    assert app.summary()["eval/problems"] == 2


def test_the_command_of_the_page(app: ReasoningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/reasoning/your-own-data.md").read_text()
    command = re.search(r"^    uv run apps/reasoning/train\.py (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert command is not None
    monkeypatch.chdir(app.logs)
    problems(app.logs / "apples.jsonl")
    app.recipe = ("--config-name", "grpo_arithmetic")
    # A shell joins lines that end with a backslash; `shlex` does so outside of quotes alone.
    said = app.train(*shlex.split(command[1].replace("\\\n", "")), "runner.max_steps=1")
    assert "eval/accuracy" in said
    assert app.summary()["eval/problems"] == 4


def test_too_few_problems_to_evaluate_on_end_the_run_before_its_warm_start(app: ReasoningApp) -> None:
    few = overrides(problems(app.logs / "apples.jsonl"))
    with pytest.raises(ConfigError, match=r"data\.final_problems: 256 validation problems are asked for, .* Use at most"):
        app.train(*few, "data.final_problems=256", "sft={runner: {max_steps: 1}, actor: {global_batch_size: 4}}")
    assert [each.name for each in app.logs.iterdir()] == ["apples.jsonl"]


def test_a_file_that_is_not_there_ends_the_run_before_it_starts(app: ReasoningApp) -> None:
    with pytest.raises(ConfigError, match=r"data\.path: .*nowhere\.jsonl"):
        app.train(*overrides(str(app.logs / "nowhere.jsonl")))
    assert not app.folder.exists()


def test_a_run_that_moved_is_evaluated_from_another_directory(
    app: ReasoningApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a path that was relative, and under two protocols, of which neither overwrites the other."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    problems(project / "apples.jsonl")
    monkeypatch.chdir(project)
    app.logs = Path("logs")
    app.train("runner.max_steps=1", *overrides("apples.jsonl"))
    trained = app.summary()
    monkeypatch.chdir(elsewhere)
    (project / "logs").rename(tmp_path / "moved")
    checkpoint = tmp_path / "moved" / EXPERIMENT / "checkpoints/best"
    said = [app.evaluate(str(checkpoint)), app.evaluate(str(checkpoint), "eval.samples=2")]
    written = sorted((checkpoint.parent / "global_step_1_eval").iterdir())
    assert len(written) == 2
    summaries = {folder.name: json.loads((folder / "summary.json").read_text()) for folder in written}
    assert summaries[trained["protocol"]["hash"]]["eval/accuracy"] == trained["eval/accuracy"]
    for folder in written:
        assert any(str(folder / "transcripts.jsonl") in text for text in said)
