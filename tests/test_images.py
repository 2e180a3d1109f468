"""The Dockerfile can't be built here: what it names is there, and its page says what it can be given."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/reference/docker.md").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CASES = dict(re.findall(r'^\s+(\w+)\) groups="([^"]+)" ;;', DOCKERFILE, re.MULTILINE))


def test_each_app_has_an_image_of_groups_that_exist() -> None:
    assert set(CASES) == {path.name for path in (ROOT / "apps").iterdir() if (path / "train.py").is_file()}
    groups = {group for named in CASES.values() for group in named.split()}
    assert groups <= set(PROJECT["dependency-groups"])
    # What a fresh machine needs for an app is in the image of one.
    assert set(PROJECT["tool"]["uv"]["default-groups"]) - {"dev"} <= groups
    suggested = re.findall(r"`(\w+)`", next(line for line in PAGE.splitlines() if line.startswith("| `EXTRA_GROUPS`")))[1:]
    assert set(suggested) <= set(PROJECT["dependency-groups"])


def test_each_stage_that_is_chosen_is_there() -> None:
    stages = re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE)
    default = re.search(r"^ARG DEVICE=(\w+)$", DOCKERFILE, re.MULTILINE)
    assert stages == ["cpu", "cuda"]
    assert default
    assert default[1] in stages
    assert re.search(r"^FROM \$\{DEVICE\}$", DOCKERFILE, re.MULTILINE)


def test_the_page_knows_each_argument_and_says_that_nobody_builds_it() -> None:
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == arguments
    assert "It has never been built" in PAGE
    assert "Not built by CI" in DOCKERFILE


def test_no_index_is_named() -> None:
    assert "://" not in DOCKERFILE
    assert not re.search(r"^ARG (PIP_INDEX_URL|UV_DEFAULT_INDEX)=", DOCKERFILE, re.MULTILINE)


def test_uv_knows_its_options() -> None:
    uv = shutil.which("uv")
    command = re.search(r"uv sync ((?:--[\w-]+ )+)", DOCKERFILE)
    assert uv
    assert command
    known = subprocess.run([uv, "sync", "--help"], capture_output=True, text=True, check=True).stdout
    for option in [*command[1].split(), "--group"]:
        assert re.search(rf"{option}\b", known), option


def test_commands_of_the_page_name_files_that_exist() -> None:
    named = re.findall(r"(?:-f |python )(\S+\.py|docker/\S+)", PAGE)
    assert len(named) == 3
    assert all((ROOT / path).is_file() for path in named)


def test_nothing_of_a_working_tree_is_sent_along() -> None:
    left_out = (ROOT / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", ".nox", "logs"} <= set(left_out)
