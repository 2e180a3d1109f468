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


def test_committed_lock_is_portable_and_resolves_to_its_own_versions() -> None:
    TOOL.check()
