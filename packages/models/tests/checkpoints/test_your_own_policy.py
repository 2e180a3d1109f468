"""The page "Your own policy", as the package of a stranger."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "models" / "your-own-policy.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder on the path with the page's first block as a module, and an entry point that names it."""
    folder = tmp_path_factory.mktemp("stranger")
    code = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
    assert len(code.splitlines()) < 60
    # The package has an entry point, so that it needs no decorator.
    (folder / "my_policy.py").write_text(code.replace('@register_model("linear_policy")\n', ""), encoding="utf-8")
    described = folder / "my_policy-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policy\nVersion: 1.0\n", encoding="utf-8")
    (described / "entry_points.txt").write_text("[rlinf.models]\nlinear_policy = my_policy:LinearPolicyConfig\n", encoding="utf-8")
    return folder


COMMANDS = {
    "plugins": ["plugins", "rlinf.models"],
    "check": ["check-policy", "linear_policy", "log_std=-1.0"],
    "mistyped": ["check-policy", "linear_policy", "logstd=-1.0"],
}


@pytest.fixture(scope="module")
def done(installed):
    """What the stranger's commands say, by name: the exit code, stdout and stderr. One process, since torch is slow to import."""
    script = """
import contextlib, io, json, sys
from rlinf.core.commands import main
for name, args in json.loads(sys.argv[1]).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    print(json.dumps([name, code, out.getvalue(), err.getvalue()]))
"""
    command = [sys.executable, "-c", script, json.dumps(COMMANDS)]
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, cwd=installed, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {name: rest for name, *rest in map(json.loads, ran.stdout.splitlines())}


def test_it_is_found(done):
    _, out, _ = done["plugins"]
    assert re.search(r"linear_policy +my_policy:LinearPolicyConfig  \(my-policy 1\.0\)", out)


def test_it_keeps_the_contract(done):
    code, out, err = done["check"]
    assert code == 0, out + err
    assert "agree" in out


def test_a_mistyped_hyper_parameter_is_named(done):
    code, _, err = done["mistyped"]
    assert code == 2
    assert "Did you mean 'log_std'" in err
