"""The page "Your own policy", as the package of a stranger."""

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


def rlinf(folder, *args):
    command = [sys.executable, "-c", "import sys; from rlinf.core.commands import main; sys.exit(main())", *args]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=200)


def test_it_is_found(installed):
    done = rlinf(installed, "plugins", "rlinf.models")
    assert re.search(r"linear_policy +my_policy:LinearPolicyConfig  \(my-policy 1\.0\)", done.stdout)


def test_it_keeps_the_contract(installed):
    done = rlinf(installed, "check-policy", "linear_policy", "log_std=-1.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree" in done.stdout


def test_a_mistyped_hyper_parameter_is_named(installed):
    done = rlinf(installed, "check-policy", "linear_policy", "logstd=-1.0")
    assert done.returncode == 2
    assert "Did you mean 'log_std'" in done.stderr
