"""A stranger's package, installed for one test."""

from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, entry_points, code)` makes a distribution `name` with a module of the same name importable."""

    def make(name: str, entry_points: str, code: str) -> None:
        site = tmp_path / name
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        (site / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(site))

    return make
