"""Each part as a stranger gets it: its wheel and core's in a bare environment, at the locked versions."""

import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")
SIMULATORS = {"mani_skill", "sapien", "mujoco", "gymnasium_robotics"}
NOT_LOADED = {
    "core": {"torch", "ray", "gymnasium", "hydra", *SIMULATORS},
    "scheduler": {"torch", "gymnasium", "hydra", *SIMULATORS},
    "algorithms": {"ray", "gymnasium", "hydra", *SIMULATORS},
    "models": {"ray", "gymnasium", "hydra", *SIMULATORS},
    "envs": {"ray", "torch", "hydra", *SIMULATORS},
    "engines": {"ray", "gymnasium", "hydra", *SIMULATORS},
    "runners": {"ray", "gymnasium", *SIMULATORS},
}
README_RUNS_ALONE = ("core", "scheduler", "algorithms")

pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The standard output of a command that must succeed, run without this environment's variables."""
    env = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of every part and of the meta-package, by distribution name."""
    folder = tmp_path_factory.mktemp("wheels")
    run("uv", "build", "--quiet", "--wheel", "--all-packages", "--out-dir", folder)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions, so that nothing is downloaded that the house doesn't hold already."""
    path = tmp_path_factory.mktemp("lock") / "constraints.txt"
    shown = run("uv", "export", "--quiet", "--frozen", "--all-packages", "--no-hashes", "--no-emit-workspace")
    path.write_text(shown, encoding="utf-8")
    return path


@pytest.fixture(scope="session", params=PARTS)
def alone(
    request: pytest.FixtureRequest, wheels: dict[str, Path], constraints: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A part and the Python of a bare environment that holds its wheel."""
    part = request.param
    venv = tmp_path_factory.mktemp(part) / "venv"
    run("uv", "venv", "--quiet", "--no-project", f"--python={sys.executable}", venv)
    python = venv / "bin" / "python"
    own = [wheels[name] for name in dict.fromkeys(("rlinf_core", f"rlinf_{part}"))]
    run("uv", "pip", "install", "--quiet", "--python", python, "--constraint", constraints, *own)
    # Of the libraries alone: the wheels are files of their own.
    runpy.run_path(str(ROOT / "tools" / "bytecode.py"))["share_bytecode"](venv, [Path(sys.prefix)])
    return part, python


def test_wheels_hold_their_part_and_nothing_else(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {"rlinf", *(f"rlinf_{part}" for part in PARTS)}
    for part in PARTS:
        names = [name for name in zipfile.ZipFile(wheels[f"rlinf_{part}"]).namelist() if ".dist-info/" not in name]
        assert f"rlinf/{part}/py.typed" in names
        strange = [name for name in names if not name.startswith(f"rlinf/{part}/") and name not in ("rlinf/",)]
        assert strange == []
    assert [name for name in zipfile.ZipFile(wheels["rlinf"]).namelist() if ".dist-info/" not in name] == []


def test_alone(alone: tuple[str, Path], tmp_path: Path) -> None:
    part, python = alone
    report: dict[str, Any] = json.loads(run(python, ROOT / "tests" / "isolated" / "probe.py", part, cwd=tmp_path))
    assert set(report["parts"]) == {"core", part}
    assert f"rlinf.{part}" in report["modules"]
    assert sorted(NOT_LOADED[part] & set(report["loaded"])) == []


def test_the_command_works_alone(alone: tuple[str, Path], tmp_path: Path) -> None:
    _, python = alone
    assert "plugins" in run(python.parent / "rlinf", "--help", cwd=tmp_path)


def test_the_example_of_the_readme_runs_alone(alone: tuple[str, Path], tmp_path: Path) -> None:
    part, python = alone
    if part not in README_RUNS_ALONE:
        pytest.skip("its example needs more than the bare part")
    text = (ROOT / "packages" / part / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert example, f"packages/{part}/README.md has no Python example"
    script = tmp_path / "example.py"
    script.write_text(example[1], encoding="utf-8")
    run(python, script, cwd=tmp_path)
