"""An environment of the library verifiers, in the interpreter that has it: `nox -s verifiers`, or VERIFIERS_PYTHON names one."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reasoning_app import HERE, ReasoningApp
from scripted_client import Scripted, marked, played

from rlinf.core.errors import ConfigError
from rlinf.envs.verifiers import Verifiers
from rlinf.envs.verifiers.service import close_services, service

PYTHON = os.environ.get("VERIFIERS_PYTHON")
HERE_TOO = importlib.util.find_spec("verifiers") is not None
needs_verifiers = pytest.mark.skipif(not (PYTHON or HERE_TOO), reason="no interpreter with verifiers; run nox -s verifiers")
FEW: Any = {"validation": 8, "train": 1000}
SUMS: Any = {"params": {"numbers": 4, "tools": True}}
"""The same for all tests: each process that imports the library takes seconds."""
TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_agent")


def tasks(**changes: Any) -> Verifiers:
    return Verifiers(
        **{"taskset": "toy_verifiers", "python": PYTHON, "paths": (str(HERE),), "start_s": 240.0, **FEW, **SUMS, **changes}
    )


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    close_services()


@needs_verifiers
def test_rows_are_problems() -> None:
    found = tasks(solution="answer")
    held_out, train = found.problems("validation"), found.problems("train")
    assert [problem.prompt for problem in held_out[:2]] == [({"role": "user", "content": f"0+{b}="},) for b in range(2)]
    assert (len(held_out), len(train), train[-1].id, train[-1].solution, train[-1].answer) == (8, 8, 15, "6", "6")
    assert tasks(chat=False).problems("train")[0].prompt == "2+0="
    with pytest.raises(ConfigError, match=r"data\.solution: task 0 of 'toy_verifiers' has no text 'right'"):
        tasks(solution="right").check("data")
    with pytest.raises(ConfigError, match=r"data\.validation: 'toy_verifiers' has 16 tasks, of which 16 are held out"):
        tasks(validation=16, train=992).check("data")
    code = {"agent": {"harness": {"id": "bash"}}}
    with pytest.raises(ConfigError, match=r"data\.env: .*'bash' of 'agent' runs what a model wrote on this machine"):
        tasks(env=code).check("data")


@needs_verifiers
def test_its_environment_plays_and_scores() -> None:
    """One turn; several with a tool of its own; a limit of turns: each as it should be, token by token."""
    problem = tasks().problems("train")[3]
    episode = played("verifiers", Scripted("it is 5$"), problem=problem, max_turns=3)
    assert (episode.finish, episode.answer, episode.reward, episode.attempts) == ("stop", "it is 5", 1.0, 1)
    (row,) = marked(episode)
    assert row.endswith("user:2+3=\nassistant:⟦it is 5$⟧")
    assert row.count("⟦") == 1
    assert played("verifiers", Scripted("it is 4$"), problem=problem, max_turns=3).reward == 0.0

    call = '<tool_call>{"name": "sums_add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    generator = Scripted(f"{call}$", "it is 5$")
    episode = played("verifiers", generator, problem=problem, max_turns=3)
    assert (episode.finish, episode.failure, episode.answer, episode.reward) == ("stop", "", "it is 5", 1.25)
    (row,) = marked(episode)
    assert row.endswith(f"⟦{call}$⟧\nuser:<tool_response>\n5\n</tool_response>\nassistant:⟦it is 5$⟧")
    assert "Adds two numbers." in row, "the library's tools are told to the model"

    episode = played("verifiers", Scripted(*[f"{call}$"] * 9), problem=problem, max_turns=3)
    assert (episode.finish, len(episode.own_turns), episode.reward) == ("stop", 3, 0.5), "the library ends it, and scores it"


@needs_verifiers
@pytest.mark.slow
def test_a_process_that_dies_is_begun_anew() -> None:
    problem = tasks().problems("train")[3]
    assert played("verifiers", Scripted("it is 5$"), problem=problem, max_turns=3).reward == 1.0
    running: Any = service(problem.row["verifiers"], 3)
    os.kill(running._process.child.pid, signal.SIGKILL)
    call = '<tool_call>{"name": "sums_add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    assert played("verifiers", Scripted(f"{call}$", "it is 5$"), problem=problem, max_turns=3).reward == 1.25


@needs_verifiers
def test_a_run_trains_in_it(tmp_path: Path) -> None:
    """A warm start from its answers, and updates that pass the gate: the trainer says of each token what was recorded."""
    app = ReasoningApp(tmp_path, app="agent", recipe=TOY)
    of_verifiers = ("data.type=verifiers", "data.taskset=toy_verifiers", f"data.paths=[{HERE}]", "data.chat=false")
    sizes = ("data.train=1000", "data.validation=8", "data.params={numbers: 4, tools: true}", "data.start_s=240")
    interpreter = () if PYTHON is None else (f"data.python={PYTHON}",)
    agent = ("agent.workflow_type=client", "agent.agent=verifiers", "agent.endpoint={}", "reward.reward_type=workflow")
    short = ("agent.tools=[]", "agent.max_turns=3", "rollout.sampling_params.max_new_tokens=4")
    app.train(*of_verifiers, *sizes, *interpreter, *agent, *short)
    for row in app.rows().values():
        assert row["rollout/failed"] == 0
        assert row["rollout/turns"] == 1
        assert row["train/grad_norm"] >= 0


def test_an_interpreter_without_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("data.python: no program '/no/python'")):
        tasks(python="/no/python").check("data")
    if not HERE_TOO:
        with pytest.raises(ConfigError, match=r"data: the module 'verifiers' is not installed.*rlinf-envs\[verifiers\]"):
            tasks(python=None).check("data")
