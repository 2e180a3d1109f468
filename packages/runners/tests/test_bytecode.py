"""Where `PYTHONDONTWRITEBYTECODE` is set, a run keeps compiled code in a cache folder of the user's, and nothing beside sources."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlinf.runners import bytecode

# Its child says what the processes of a run are told.
BODY = """
import json, subprocess, sys
CHILD = "import json, sys, ray; print(json.dumps([sys.dont_write_bytecode, sys.pycache_prefix, ray.__cached__]))"
def main(argv=()):
    import torch
    child = json.loads(subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True).stdout)
    print(json.dumps([sys.dont_write_bytecode, sys.pycache_prefix, torch.__cached__, *child]))
    return 0
"""
IN_APP = f"from rlinf.runners.entry import run_app\n{BODY}\nrun_app(main)"
ALONE = f"import runpy\n{BODY}\nrunpy.run_path({bytecode.__file__!r})['keep_bytecode']()\nmain()"
"""Without what an app imports first."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages that nobody has compiled, installed one after the other."""
    folder = tmp_path / "site"
    folder.mkdir()
    for number, name in enumerate(("torch", "ray")):
        (folder / f"{name}.py").write_text("value = 1\n")
        os.utime(folder / f"{name}.py", (1_700_000_000 + 60 * number,) * 2)
    return folder


def run(site: Path, program: str = ALONE, **variables: str) -> tuple[list[Any], str]:
    """What the program and its child found, and what was said."""
    cleared = {name: value for name, value in os.environ.items() if name not in ("PYTHONPYCACHEPREFIX", "RLINF_BYTECODE_CACHE")}
    given = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(site.parent / "cache")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**cleared, **given, **variables}, capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout), done.stderr


def test_compiled_code_is_kept_for_the_run_and_the_next_one(site: Path) -> None:
    folder = site.parent / "cache/rlinf/bytecode"
    found, said = run(site, IN_APP)
    off, prefix, own, child_off, child_prefix, child_own = found
    assert (off, prefix, child_off, child_prefix) == (False, str(folder), False, str(folder))
    for cached in (own, child_own):
        assert Path(cached).is_relative_to(folder)
        assert Path(cached).is_file()
    assert [path.name for path in site.iterdir() if path.suffix != ".py"] == [], "nothing is written beside sources"
    assert str(folder) in said
    assert "RLINF_BYTECODE_CACHE=0" in said
    assert folder.stat().st_mode & 0o777 == 0o700
    before = Path(own).stat().st_mtime_ns
    assert run(site, IN_APP) == (found, "")
    assert Path(own).stat().st_mtime_ns == before, "the next run compiles nothing again"


@pytest.mark.parametrize(
    "variables",
    [
        {"RLINF_BYTECODE_CACHE": "0"},
        {"PYTHONPYCACHEPREFIX": "/nonexistent/elsewhere"},
        {"XDG_CACHE_HOME": "/dev/null"},
        {"XDG_CACHE_HOME": "relative"},
    ],
    ids=["switched-off", "another-folder", "not-writable", "relative"],
)
def test_python_is_left_as_it_is(site: Path, variables: dict[str, str]) -> None:
    found, said = run(site, **variables)
    prefix = variables.get("PYTHONPYCACHEPREFIX")
    assert (found[:2], found[3:5], said) == ([True, prefix], [True, prefix], "")
    assert sorted(path.name for path in site.parent.rglob("*")) == ["ray.py", "site", "torch.py"]


def test_what_is_compiled_is_not_compiled_a_second_time(site: Path) -> None:
    for name in ("torch", "ray"):
        py_compile.compile(str(site / f"{name}.py"))
    assert run(site)[0][:2] == [True, None]


def test_a_folder_that_others_may_write_is_not_trusted(site: Path) -> None:
    folder = site.parent / "cache/rlinf/bytecode"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert run(site)[0][:2] == [True, None]


def test_times_that_an_image_has_set_alike_say_nothing(site: Path) -> None:
    for name in ("torch", "ray"):
        os.utime(site / f"{name}.py", (Path(bytecode.__file__).stat().st_mtime,) * 2)
    assert run(site)[0][:2] == [True, None]
