"""The agent app from end to end on real parts, in one process: episodes with tools are played, shown, trained on and counted."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import HERE, ReasoningApp

from rlinf.core.errors import RLinfError
from rlinf.runners.agent.reward_worker import AgentRewardWorker

TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_agent")


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    return ReasoningApp(tmp_path, app="agent", recipe=TOY)


def test_episodes_are_played_trained_on_and_shown(app: ReasoningApp) -> None:
    """The first update passes the gate: the trainer says of every turn what the rollout said of it."""
    app.train("runner.transcripts=6")
    rows = app.rows()
    assert sorted(rows) == [1, 2]
    assert all(row["rollout/turns"] > 1 for row in rows.values()), "some call their tool"
    assert all(row["rollout/tool_calls"] > 0 and row["rollout/failed"] == 0 for row in rows.values())
    assert rows[1]["train/grad_norm"] >= 0
    texts = [response["text"] for line in app.transcripts("train") for response in line["responses"]]
    assert any("⟦<r>" in text for text in texts)
    summary = app.summary()
    assert summary["protocol"]["agent"]["workflow_type"] == "tools"
    assert summary["eval/problems"] == 8
    report = (app.folder / "report.html").read_text()
    assert f"{summary['eval/accuracy']:.1%}" in report
    (first,) = (line for line in app.transcripts("eval") if line["problem"] == 0 and line["step"] == 2)
    assert escape(first["responses"][0]["text"]) in report


def test_a_checkpoint_is_evaluated_as_it_was_trained(app: ReasoningApp) -> None:
    app.train("runner.max_steps=1", "runner.val_check_interval=0")
    trained = app.summary()
    app.evaluate(str(app.folder / "checkpoints/global_step_1"))
    (path,) = (path for path in app.folder.rglob("summary.json") if path != app.folder / "summary.json")
    evaluated = json.loads(path.read_text())
    assert evaluated["protocol"]["hash"] == trained["protocol"]["hash"]
    assert evaluated["eval/accuracy"] == trained["eval/accuracy"]


def test_tools_in_workers_of_their_own_change_nothing_but_where_they_run(app: ReasoningApp, tmp_path: Path) -> None:
    short = ("runner.max_steps=1", "runner.val_check_interval=0", "agent.workflow_type=toy_agent:asking")
    folder = tmp_path / "marks"
    folder.mkdir()
    tools = f"agent.tools=[{{type: 'toy_tools:Telling', folder: '{folder}'}}]"
    placed = ReasoningApp(tmp_path / "placed", app="agent", recipe=TOY)
    placed.train(*short, tools, "cluster.component_placement.tools=0:0-2")
    (row,) = placed.rows().values()
    assert (row["rollout/tool_calls"], row["rollout/tool_errors"]) == (1, 0)
    assert row["rollout/tool_restarts"] == row["rollout/tool_resends"] == 0
    app.train(*short, tools)
    (expected,) = app.rows().values()
    for name in ("train/loss", "train/grad_norm", "rollout/rewards", "rollout/tokens", "rollout/tool_calls", "rollout/tool_errors"):
        assert row[name] == expected[name], name


SEVERAL = (*TOY[:-1], "toy_agents")


def test_several_agents_are_played_trained_on_and_shown(tmp_path: Path) -> None:
    """Each agent is a row, rows are scored as trees, and the gate passes: the trainer says what the rollout said."""
    app = ReasoningApp(tmp_path / "tree", app="agent", recipe=SEVERAL)
    app.train("runner.transcripts=6")
    rows = app.rows()
    # Its words are drawn at random, and some of them happen to hand on.
    assert max(row["rollout/agents"] for row in rows.values()) > 1
    assert all(row["rollout/failed"] == 0 and 0 < row["train/shared_tokens"] < 0.9 for row in rows.values())
    texts = [response["text"] for line in app.transcripts("train") for response in line["responses"]]
    assert any("[lead.1] " in text for text in texts)
    assert all(text.startswith("[lead] ") for text in texts)
    alone = ReasoningApp(tmp_path / "alone", app="agent", recipe=SEVERAL)
    alone.train("runner.max_steps=1", "actor.share_prefixes=false")
    for name in ("train/loss", "train/grad_norm", "rollout/rewards", "rollout/tokens"):
        assert rows[1][name] == pytest.approx(alone.rows()[1][name], abs=1e-5), name


def test_episodes_go_on_when_the_weights_change(app: ReasoningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `max_lag` an episode under way keeps what it wrote, token by token with its version, and is admitted by its oldest."""
    versions: list[set[int]] = []
    rows = AgentRewardWorker.rows

    def seen(self: Any, group: Any, members: Any, rewards: Any) -> Any:
        made = rows(self, group, members, rewards)
        for mask, version in zip(made.mask, made.version, strict=True):
            written = version[mask].tolist()
            assert written == sorted(written), "later turns are never of older weights"
            versions.append(set(written))
        return made

    monkeypatch.setattr(AgentRewardWorker, "rows", seen)
    app.train("rollout.max_lag=1", "runner.max_steps=5", "runner.val_check_interval=0", "algorithm.recompute_logprobs=true")
    assert max(row["rollout/lag_max"] for row in app.rows().values()) == 1, "never older than allowed"
    assert any(len(found) > 1 for found in versions), "some episodes were written by two versions"


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


PARTS = ("rollout.oversample=1.5", "runner.val_check_interval=0", "data.val_problems=4", "runner.transcripts=100")
ASKING = "agent.workflow_type=toy_agent:asking"


def test_suspended_episodes_go_on_as_if_they_had_not_been(app: ReasoningApp) -> None:
    """With such a learning rate versions count up and weights stay, so that what goes on must say what begins anew says."""
    told: list[dict[str, Any]] = []
    rows: list[list[dict[str, float]]] = []
    for lag in (0, 1):
        (app.folder / "transcripts.jsonl").unlink(missing_ok=True)
        app.train(f"rollout.partial_lag={lag}", "actor.optim.lr=1e-30", "runner.max_steps=2", ASKING, *PARTS)
        told.append({line["prompt"]: line["responses"] for line in app.transcripts("train")})
        rows.append(list(app.rows().values()))
    shared = sorted(set(told[0]) & set(told[1]))
    assert len(told[0]) == len(told[1]) == 12, "each group once"
    assert len(shared) >= 9
    assert [told[0][prompt] for prompt in shared] == [told[1][prompt] for prompt in shared]
    assert [row["rollout/resumed_tokens"] for row in rows[0]] == [0, 0]
    assert rows[1][1]["rollout/resumed_tokens"] > 0
    assert rows[1][1]["rollout/lag_max"] == 1
    assert all(row["rollout/groups_stale"] == row["rollout/discarded_tokens"] == 0 for row in rows[1])


def test_what_was_suspended_is_trained_on_with_its_versions_and_begins_anew_after_a_restart(app: ReasoningApp) -> None:
    """The gate compares what the trainer says with tokens of its own weights only, and passes."""
    short = ("rollout.partial_lag=1", "algorithm.recompute_logprobs=true", ASKING, *PARTS)
    app.train("runner.max_steps=2", *short)
    rows = app.rows()
    assert [row["rollout/lag_max"] for row in rows.values()] == [0, 1]
    state = json.loads((app.folder / "checkpoints/global_step_2/state.json").read_text())
    held = [group["held"]["tokens"] for group in state["data"]["returned"]]
    assert sum(held) > 0
    app.train("runner.max_steps=4", f"runner.resume_dir={app.folder / 'checkpoints/global_step_2'}", *short)
    rows = app.rows()
    assert [rows[step]["rollout/discarded_tokens"] for step in (3, 4)] == [sum(held), 0]
    assert (rows[3]["rollout/resumed_tokens"], rows[3]["rollout/lag_max"]) == (0, 0)
    assert rows[4]["rollout/resumed_tokens"] > 0
