"""Modules that are imported when something of them is first asked for."""

import gc
import importlib
import subprocess
import sys

import pytest

from rlinf.core.lazy import import_held, lazy_module, without_collection

AT_FIRST_USE = """
import sys
from rlinf.core.lazy import lazy_module
fractions = lazy_module("fractions")
assert "fractions" not in sys.modules
half = fractions.Fraction(1, 2)
assert fractions is sys.modules["fractions"], "the module itself takes the place of what stood for it"
"""


def test_a_module_is_imported_at_its_first_use_and_takes_the_place_of_what_stood_for_it():
    assert subprocess.run([sys.executable, "-c", AT_FIRST_USE], timeout=60, check=False).returncode == 0


def test_every_holder_gets_the_module(tmp_path, monkeypatch):
    (tmp_path / "heavy_one.py").write_text("import gc\n\nweight, collects = 3, gc.isenabled()\n")
    (tmp_path / "light_one.py").write_text("from rlinf.core.lazy import lazy_module\nheavy_one = lazy_module('heavy_one')\n")
    (tmp_path / "light_two.py").write_text("from light_one import heavy_one\n\ndef weight():\n    return heavy_one.weight\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, two = importlib.import_module("light_one"), importlib.import_module("light_two")
    assert "heavy_one" not in sys.modules
    import_held("light_two")
    assert "heavy_one" in sys.modules, "ahead of its first use"
    assert two.weight() == 3
    assert one.heavy_one is two.heavy_one is sys.modules["heavy_one"]
    assert (one.heavy_one.collects, gc.isenabled()) == (False, True), "nothing is looked for that an import has left"


def test_who_looks_for_no_garbage_is_left_alone():
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_not_installed_or_not_there_is_refused_where_it_is_used():
    absent = lazy_module("no_such_library_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        absent.anything  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_name"):
        lazy_module("fractions").no_such_name  # noqa: B018


def test_a_star_imports_what_the_stub_names(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from rlinf.core.lazy import lazy_exports as _l\n\n__getattr__, __dir__ = _l(__name__, __file__)\n"
    )
    (folder / "__init__.pyi").write_text("from lazy_package.numbers import three as three\n")
    (folder / "numbers.py").write_text("three = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {}
    exec("from lazy_package import *", namespace)
    assert namespace["three"] == 3
    assert dir(importlib.import_module("lazy_package")) == ["three"]
