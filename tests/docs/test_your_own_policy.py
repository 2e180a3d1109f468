"""The page "Your own policy": its class is chosen by `module:Class`, in a recipe and on the command line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlinf.models import get_model
from rlinf.models.commands import TINY

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models" / "your-own-policy.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    """The first block of a language."""
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a user has: the module, without the name that it would register."""
    code = block("python").replace('@register_model("linear_policy")\n', "")
    (tmp_path / "my_policy.py").write_text(code, encoding="utf-8")
    return tmp_path


def test_a_section_of_a_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    policy = get_model(yaml.safe_load(block("yaml"))["actor"]["model"], TINY)
    assert type(policy).__name__ == "LinearPolicy"
    assert dict(policy.named_parameters())["log_std"].tolist() == [-1.0] * 3


def test_the_command_line(folder: Path) -> None:
    found = re.search(r"^uv run apps/embodied/train\.py (.*)$", PAGE, re.MULTILINE)
    assert found is not None
    command = [sys.executable, str(ROOT / "apps" / "embodied" / "train.py"), "--explain", "actor.model", *shlex.split(found[1])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "actor.model.model_type = 'my_policy:LinearPolicyConfig'" in done.stdout
    assert "actor.model.log_std = -1.0" in done.stdout
