"""The code reward of a run: a recipe names the sandbox and the least level, and programs run there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from reasoning_app import ReasoningApp

from rlinf.core.errors import ConfigError
from rlinf.core.registry import REWARDS, SANDBOXES
from rlinf.core.sandbox import close_shared_sandboxes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
CASES = json.dumps({"inputs": ["1 2", "30 4"], "outputs": ["3", "34"]})
PROGRAMS = {
    "right": ("a, b = map(int, input().split())\nprint(a + b)", 1.0),
    "wrong": ("print(3)", 0.0),
    "endless": ("while True: pass", 0.0),
    "greedy": ("bytearray(10 * 2**30)\nprint(3)", 0.0),
    "curious": ("import os\nprint(3 if os.path.exists('/etc/passwd') else 4)", 0.0),
    "reaching out": ("import socket\nsocket.socket()\nprint(3)", 0.0),
}


def allowed() -> str:
    """The highest level that keeps programs from files and is allowed here."""
    for level in ("namespaces", "landlock"):
        if not SANDBOXES.build("process", {"level": level}, place="test").refusal():
            return level
    pytest.skip("this machine allows neither namespaces nor Landlock")


def overrides(path: Path, level: str, **params: str) -> list[str]:
    with path.open("w") as file:
        for number in range(24):
            file.write(json.dumps({"question": f"Add two numbers, {number}.", "answer": CASES}) + "\n")
    more = "".join(f", {key}: {value}" for key, value in params.items())
    return [
        f"data={{type: dataset, path: '{path}', prompt_key: question, validation_share: 0.25}}",
        "data.rollout_batch_size=4",
        "data.val_problems=2",
        "actor.global_batch_size=8",
        f"reward={{reward_type: code, case_time_s: 10, sandbox: process, sandbox_params: {{level: {level}{more}}}}}",
        "~actor.model",
        "actor.model={model_type: causal_lm, preset: tiny, tokens: {kind: bytes, size: 300}}",
        "rollout.max_model_len=512",
        "runner.val_check_interval=0",
    ]


def test_programs_are_judged_where_they_can_do_no_harm() -> None:
    params = {"case_time_s": 20.0, "sandbox_params": {"level": allowed(), "workers": 2}}
    reward = REWARDS.build("code", params, place="reward")
    reward.check("reward")
    completions = [f"So:\n```python\n{program}\n```" for program, _ in PROGRAMS.values()]
    # A loop takes all of its time; that of the others is generous for the sake of a busy machine.
    endless = list(PROGRAMS).index("endless")
    quick = REWARDS.build("code", {**params, "case_time_s": 0.5}, place="reward")
    scores = reward.scores([text for row, text in enumerate(completions) if row != endless], [CASES] * (len(PROGRAMS) - 1))
    assert scores.values == [score for name, (_, score) in PROGRAMS.items() if name != "endless"]
    assert quick.scores([completions[endless]], [CASES]).values == [0.0]
    assert scores.failures == {}
    close_shared_sandboxes()


@pytest.mark.slow
def test_a_run_with_the_code_reward(tmp_path: Path) -> None:
    app = ReasoningApp(tmp_path)
    app.train(*overrides(tmp_path / "sums.jsonl", allowed(), workers="1"))
    assert sorted(app.rows()) == [1, 2]
    assert app.summary()["eval/problems"] == 2


def test_a_machine_that_confines_too_little_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ReasoningApp(tmp_path)
    monkeypatch.setenv("PATH", "")
    told = r"reward\.sandbox_params\.level: this machine does not allow 'namespaces': bubblewrap: .* not installed"
    with pytest.raises(ConfigError, match=told):
        app.train(*overrides(tmp_path / "sums.jsonl", "namespaces", namespaces_by="bubblewrap"))
    assert not app.folder.exists()
