"""RLINF_EXT_MODULE: what it registers is there before the first name is looked up, and its faults are told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from rlinf.core.errors import MissingExtra
from rlinf.core.installing import EXTENSION
from rlinf.core.registry import Registry

MODULE = """
from rlinf.core import losses_of_a_test as losses
times = []
@losses.register("mine")
class Mine: ...
def register():
    times.append(1)
    losses.register("second", Mine)
"""


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Registry[object]:
    registry: Registry[object] = Registry("policy loss", "rlinf.test_losses")
    monkeypatch.setattr("rlinf.core.losses_of_a_test", registry, raising=False)
    return registry


def extend(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv(EXTENSION, name)


def test_its_names_can_be_chosen(losses: Registry[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extend(monkeypatch, tmp_path, "extension_a", MODULE)
    assert losses.names() == ["mine", "second"]
    assert losses.get("mine") is losses.get("second") is sys.modules["extension_a"].Mine
    assert sys.modules["extension_a"].times == [1]


def test_a_module_that_is_not_there(losses: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTENSION, "no_such_package.module")
    for _ in range(2):
        with pytest.raises(MissingExtra, match=rf"^{EXTENSION}: no module 'no_such_package\.module'\. Run from the folder"):
            losses.get("mine")


def test_a_fault_of_its_own_is_not_hidden(losses: Registry[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extend(monkeypatch, tmp_path, "extension_b", "import not_installed_anywhere")
    with pytest.raises(ModuleNotFoundError, match=re.escape("No module named 'not_installed_anywhere'")):
        losses.get("mine")
