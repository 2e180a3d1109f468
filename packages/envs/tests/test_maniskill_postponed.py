"""What ManiSkill imports and a run does not need, and its search for garbage."""

import gc
import importlib
import sys

import numpy as np
import pytest
import torch

from rlinf.envs.maniskill._postponed import little_garbage, only_the_cpu_seeded, postponed


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """`plotted`, which a run does not need, and `simulated`, which imports it in all ways."""
    plotted = tmp_path / "plotted"
    plotted.mkdir()
    (plotted / "__init__.py").write_text("def draw(x): return x + 1\n")
    (plotted / "axes.py").write_text("class Axes:\n    limit = 3\n")
    lines = ["import plotted", "import plotted.axes as axes", "from plotted import draw", "from plotted.axes import Axes"]
    (tmp_path / "simulated.py").write_text("\n".join([*lines, "def later(shape: axes.Axes): return draw(1)", ""]))
    (tmp_path / "broken.py").write_text("import plotted, no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_package_is_imported_when_something_of_it_is_used(packages):
    with postponed("plotted"):
        simulated = importlib.import_module("simulated")
    assert "plotted" not in sys.modules
    assert simulated.later(None) == 2
    assert "plotted" in sys.modules
    assert simulated.Axes.limit == 3
    assert isinstance(simulated.Axes(), importlib.import_module("plotted.axes").Axes)
    assert simulated.axes.Axes is importlib.import_module("plotted.axes").Axes


def test_what_was_imported_before_is_as_ever(packages):
    plotted = importlib.import_module("plotted")
    with postponed("plotted"):
        simulated = importlib.import_module("simulated")
    assert simulated.draw is plotted.draw


def test_what_is_not_installed_is_missed_as_ever():
    with postponed("no_such_package"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package")


def test_after_an_error_the_real_ones_are_imported(packages):
    with pytest.raises(ModuleNotFoundError), postponed("plotted"):
        importlib.import_module("broken")
    assert importlib.import_module("plotted").draw(1) == 2


def test_the_collector_does_not_look_at_what_is_there():
    with little_garbage():
        assert gc.get_freeze_count() > 0
        # Building again inside of building changes nothing.
        with little_garbage():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_seeds_of_devices_that_are_not_there_are_not_kept():
    ordinary, forked, kept = torch.manual_seed, torch.random.fork_rng, len(torch.cuda._queued_calls)
    with only_the_cpu_seeded():
        torch.manual_seed(np.int64(3))
        with torch.random.fork_rng():
            torch.manual_seed(4)
        drawn = torch.rand(3)
    assert torch.manual_seed is ordinary
    assert torch.random.fork_rng is forked
    assert len(torch.cuda._queued_calls) == kept
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(3)))
