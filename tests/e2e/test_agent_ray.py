"""The agent app on Ray: a process that is killed while its tools run costs its episodes, which are played again, and no more."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import HERE, ReasoningApp

from rlinf.core.errors import WorkerError

TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_agent")
COMPARED = ("train/loss", "train/grad_norm", "rollout/rewards", "rollout/tokens", "rollout/tool_calls")


def telling(folder: Path) -> str:
    folder.mkdir()
    return f"agent.tools=[{{type: 'toy_tools:Telling', folder: '{folder}'}}]"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_a_worker_that_is_killed_amid_a_call_is_replaced_and_its_episodes_are_played_again(processes: Any, tmp_path: Path) -> None:
    """The same episodes to the last token: seeds depend on problem, member and turn, not on who plays them."""
    short = ("runner.max_steps=4", "runner.val_check_interval=0", "data.val_problems=2")
    undisturbed = ReasoningApp(tmp_path / "undisturbed", app="agent", recipe=TOY)
    undisturbed.train(*short, telling(tmp_path / "here"))
    app, pids = ReasoningApp(tmp_path / "killed", app="agent", recipe=TOY), tmp_path / "pids"
    tools = telling(pids)

    with processes.once(lambda: len(app.rows()) >= 1, lambda: kill_a_caller(processes, pids)):
        app.train(*short, tools, backend="ray")
    assert app.rows()[4]["rollout/restarts"] == 1
    expect_the_same(app, undisturbed)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_a_tool_worker_that_is_killed_amid_a_call_is_replaced_and_its_calls_are_made_again(processes: Any, tmp_path: Path) -> None:
    often = "agent.workflow_type=toy_agent:asking"
    short = ("runner.max_steps=3", "runner.val_check_interval=0", "data.val_problems=2", often)
    undisturbed = ReasoningApp(tmp_path / "undisturbed", app="agent", recipe=TOY)
    undisturbed.train(*short, telling(tmp_path / "here"))
    app, pids = ReasoningApp(tmp_path / "killed", app="agent", recipe=TOY), tmp_path / "pids"
    tools = (telling(pids), "cluster.component_placement={actor: '0', rollout: '0', reward: '0', tools: 0-1}")

    with processes.once(lambda: len(app.rows()) >= 1, lambda: kill_a_caller(processes, pids)):
        app.train(*short, *tools, backend="ray")
    rows = app.rows()
    assert rows[3]["rollout/tool_restarts"] == 1
    assert rows[3]["rollout/restarts"] == 0, "it was no rollout worker"
    assert sum(row["rollout/tool_resends"] for row in rows.values()) > 0
    expect_the_same(app, undisturbed)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("shared_ray")
def test_a_tool_that_ends_its_process_each_time_is_named_by_the_error_that_ends_the_run(tmp_path: Path) -> None:
    app = ReasoningApp(tmp_path / "deadly", app="agent", recipe=TOY)
    workers = "agent.tool_workers={max_restarts: 1}"
    places = "cluster.component_placement={actor: '0', rollout: '0', reward: '0', tools: '0'}"
    often = "agent.workflow_type=toy_agent:asking"
    with pytest.raises(WorkerError, match=r"^tools\[0\] failed in serve\(\): .* started again 1 times") as caught:
        app.train("runner.val_check_interval=0", "agent.tools=[{type: 'toy_tools:Deadly'}]", workers, places, often, backend="ray")
    assert "the process before this one ended with calls that it had not answered: 't' (" in "".join(caught.value.__notes__)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("shared_ray")
def test_suspended_episodes_go_on_in_their_rollout_workers(tmp_path: Path) -> None:
    """Weights that leave the device, arrive and stay the same in between: what goes on says what one that was never cut says."""
    asking = "agent.workflow_type=toy_agent:asking"
    often = ("runner.val_check_interval=0", "data.val_problems=2", "runner.transcripts=100", "rollout.oversample=1.5", asking)
    short = ("runner.max_steps=3", "actor.optim.lr=1e-30", *often)
    whole = ReasoningApp(tmp_path / "whole", app="agent", recipe=TOY)
    whole.train(*short)
    app = ReasoningApp(tmp_path / "suspended", app="agent", recipe=TOY)
    app.train(*short, "rollout.partial_lag=1", "actor.offload=true", backend="ray")
    rows = list(app.rows().values())
    assert sum(row["rollout/resumed_tokens"] for row in rows) > 0
    assert max(row["rollout/lag_max"] for row in rows) == 1
    assert sum(row["rollout/groups_stale"] + row["rollout/discarded_tokens"] for row in rows) == 0
    told = responses(app)
    assert len(told) == 18, "each group once"
    expected = responses(whole)
    shared = sorted(set(told) & set(expected))
    assert len(shared) >= 9
    assert [told[prompt] for prompt in shared] == [expected[prompt] for prompt in shared]


def responses(app: ReasoningApp) -> dict[str, Any]:
    """What was trained on, by the prompt of its group."""
    lines = map(json.loads, (app.folder / "transcripts.jsonl").read_text().splitlines())
    return {line["prompt"]: line["responses"] for line in lines if line["kind"] == "train"}


def kill_a_caller(processes: Any, pids: Path) -> None:
    """Kills the process that calls a tool next, in the middle of the call."""
    hold = Path(f"{pids}.hold")
    hold.touch()
    try:
        for mark in pids.iterdir():
            mark.unlink()
        processes.wait_until(lambda: any(pids.iterdir()), 60, "a call of a tool")
        os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)
    finally:
        hold.unlink()


def expect_the_same(app: ReasoningApp, undisturbed: ReasoningApp) -> None:
    """The same episodes to the last token."""
    rows = app.rows()
    for step, row in undisturbed.rows().items():
        for name in COMPARED:
            assert rows[step][name] == pytest.approx(row[name], abs=1e-5), f"step {step}: {name}"
