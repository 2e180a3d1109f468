"""The agent app from end to end on real parts, in one process: episodes with tools are played, shown, trained on and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoning_app import HERE, ReasoningApp

from rlinf.core.errors import RLinfError

TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_agent")


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    torch.set_num_threads(1)
    return ReasoningApp(tmp_path, app="agent", recipe=TOY)


def transcripts(app: ReasoningApp, kind: str) -> list[dict[str, Any]]:
    lines = (app.folder / "transcripts.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def test_episodes_are_played_trained_on_and_shown(app: ReasoningApp) -> None:
    """The first update passes the gate: the trainer says of every turn what the rollout said of it."""
    app.train("runner.transcripts=6")
    rows = app.rows()
    assert sorted(rows) == [1, 2]
    assert all(row["rollout/turns"] > 1 for row in rows.values()), "some call their tool"
    assert all(row["rollout/tool_calls"] > 0 and row["rollout/failed"] == 0 for row in rows.values())
    assert rows[1]["train/grad_norm"] >= 0
    texts = [response["text"] for line in transcripts(app, "train") for response in line["responses"]]
    assert any("⟦<r>" in text for text in texts)
    summary = app.summary()
    assert summary["protocol"]["agent"]["workflow_type"] == "tools"
    assert summary["eval/problems"] == 8


def test_a_checkpoint_is_evaluated_as_it_was_trained(app: ReasoningApp) -> None:
    app.train("runner.max_steps=1", "runner.val_check_interval=0")
    trained = app.summary()
    app.evaluate(str(app.folder / "checkpoints/global_step_1"))
    (path,) = (path for path in app.folder.rglob("summary.json") if path != app.folder / "summary.json")
    evaluated = json.loads(path.read_text())
    assert evaluated["protocol"]["hash"] == trained["protocol"]["hash"]
    assert evaluated["eval/accuracy"] == trained["eval/accuracy"]


def test_failed_episodes_are_counted_and_too_many_end_the_run(app: ReasoningApp) -> None:
    flaky = ("agent.workflow_type=toy_agent:unreliable", "runner.max_steps=1", "runner.val_check_interval=0")
    app.train(*flaky, "data.rollout_batch_size=24", "actor.global_batch_size=96")
    row = app.rows()[1]
    assert row["rollout/failed"] == pytest.approx(1 / 3)
    assert row["rollout/retried"] == pytest.approx(1 / 3)
    with pytest.raises(RLinfError, match="8 of 24 episodes failed; the first: ConnectionError: the service is gone"):
        app.train(
            *flaky,
            "data.rollout_batch_size=24",
            "rollout.group_size=1",
            "algorithm.adv_type=reinpp",
            "actor.global_batch_size=24",
            "agent.max_failed_share=0.2",
        )
