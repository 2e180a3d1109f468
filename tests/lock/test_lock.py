"""The committed uv.lock is portable, and pins what uv resolves."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]

FULL = """\
version = 1
revision = 5
requires-python = ">=3.11"
resolution-markers = [
    "python_full_version >= '3.12'",
    "python_full_version < '3.12'",
]

[[package]]
name = "numpy"
version = "2.4.6"
source = { registry = "https://index.example/simple" }
resolution-markers = [
    "python_full_version < '3.12'",
]
sdist = { url = "https://files.example/numpy-2.4.6.tar.gz", hash = "sha256:00" }
wheels = [
    { url = "https://files.example/numpy-2.4.6-cp311.whl", hash = "sha256:01" },
    { url = "https://files.example/numpy-2.4.6-cp312.whl", hash = "sha256:02" },
]

[[package]]
name = "rlinf-core"
version = "0.1.0"
source = { editable = "packages/core" }
dependencies = [
    { name = "numpy", version = "2.4.6", source = { registry = "https://i.example" }, marker = "python_full_version < '3.12'" },
]

[package.metadata]
requires-dist = [{ name = "numpy", specifier = ">=1.26" }]

[package.metadata.requires-dev]
test = [
    { name = "pytest", specifier = ">=8.3" },
]
"""

PORTABLE = """\
version = 1
requires-python = ">=3.11"
resolution-markers = [
    "python_full_version < '3.12'",
    "python_full_version >= '3.12'",
]

[[package]]
name = "numpy"
version = "2.4.6"
source = { registry = "index" }
resolution-markers = [
    "python_full_version < '3.12'",
]

[[package]]
name = "rlinf-core"
version = "0.1.0"
source = { editable = "packages/core" }
dependencies = [
    { name = "numpy", version = "2.4.6", source = { registry = "index" }, marker = "python_full_version < '3.12'" },
]
"""


TOOL = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "portable_lock.py")))


def test_portable_form_keeps_versions_and_markers_and_nothing_else() -> None:
    assert TOOL.portable(FULL) == PORTABLE


def test_portable_form_is_its_own_portable_form() -> None:
    assert TOOL.portable(PORTABLE) == PORTABLE


def test_an_address_that_cannot_be_removed_is_refused() -> None:
    git = FULL.replace('{ registry = "https://index.example/simple" }', '{ git = "https://host.example/numpy" }', 1)
    with pytest.raises(TOOL.LockError, match=r"uv\.lock:11: expected no address"):
        TOOL.portable(git)


def test_uv_own_form_is_refused() -> None:
    TOOL.check_form(PORTABLE)
    with pytest.raises(TOOL.LockError, match="expected the portable form"):
        TOOL.check_form(FULL)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own, whose lock the tool looks at."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "one"\nversion = "1"\nrequires-python = ">=3.11"\n')
    monkeypatch.setitem(TOOL.is_resolved.__globals__, "ROOT", tmp_path)
    return tmp_path


def test_a_full_copy_of_the_lock_that_answers_the_requirements_is_resolved(clone: Path) -> None:
    (clone / "uv.lock").write_text(TOOL.resolved('version = 1\nrequires-python = ">=3.11"\n'))
    lock = TOOL.portable((clone / "uv.lock").read_text())
    assert TOOL.is_resolved(lock)
    assert not TOOL.is_resolved(lock.replace('version = "1"', 'version = "2"')), "a copy of another lock"
    (clone / "pyproject.toml").write_text((clone / "pyproject.toml").read_text().replace("1", "3", 1))
    assert not TOOL.is_resolved(lock), "the project has changed"
    (clone / "uv.lock").write_text(lock)
    assert not TOOL.is_resolved(lock), "no copy"


def test_committed_lock_is_portable_and_resolves_to_its_own_versions() -> None:
    TOOL.check()
