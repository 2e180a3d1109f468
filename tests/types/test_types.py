"""Types, by pyright in strict mode."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_pyright_finds_no_fault() -> None:
    # It says how many files it has checked in JSON. In one thread: several would each read the libraries.
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "{" in run.stdout, run.stdout + run.stderr
    report = json.loads(run.stdout[run.stdout.index("{") :])
    faults: list[str] = []
    for fault in report["generalDiagnostics"]:
        line = fault["range"]["start"]["line"] + 1 if "range" in fault else 1
        rule = fault.get("rule", fault["severity"])
        faults.append(f"{Path(fault['file']).relative_to(ROOT)}:{line}: {fault['message']} ({rule})")
    assert not faults, "\n".join(faults)
    checked = report["summary"]["filesAnalyzed"]
    assert checked > 50, f"expected to check more than 50 files, checked {checked}. See [tool.pyright] in pyproject.toml."
