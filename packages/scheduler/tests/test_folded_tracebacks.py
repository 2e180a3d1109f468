import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlinf.core.errors import RLinfError
from rlinf.scheduler.workers.tracebacks import SHOWN, folded, says_all

OURS = """
import json

from rlinf.core.errors import RLinfError

def catch(function):
    try:
        function()
    except BaseException as error:
        return error

def refuse():
    try:
        json.loads('{')
    except ValueError as error:
        raise RLinfError('robot', f'it says nonsense ({error})') from error

def call(function):
    return relay(function)

def relay(function):
    return function()

def fail():
    raise ValueError('ours')
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that counts as this project's, as it is in a folder of the namespace `rlinf`."""
    namespace = sys.modules["rlinf"]
    monkeypatch.setattr(namespace, "__path__", [*namespace.__path__, str(tmp_path)])
    path = tmp_path / "inner.py"
    path.write_text(OURS)
    spec = importlib.util.spec_from_file_location("inner", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(function: object, *args: object) -> BaseException:
    try:
        function(*args)  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def broken() -> None:
    raise KeyError("b")  # a line of the user


def test_own_frames_are_shown_and_those_of_this_project_folded(ours: ModuleType) -> None:
    text = folded(caught(ours.call, broken))
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("KeyError: 'b'\n")
    assert 'raise KeyError("b")  # a line of the user\n' in text
    assert "  [2 more frames of rlinf]\n" in text
    assert "inner.py" not in text


def test_the_frame_that_raised_is_shown_whosever_it_is(ours: ModuleType) -> None:
    text = folded(caught(ours.call, ours.fail))
    assert "  [2 more frames of rlinf]\n" in text
    assert "in fail\n    raise ValueError('ours')" in text
    assert "in relay" not in text


def test_an_error_of_ours_says_all_unless_code_of_the_user_was_on_the_way(ours: ModuleType) -> None:
    def refuses() -> None:
        raise RLinfError("task", "is not known")

    def wrapped() -> None:
        try:
            ours.call(broken)
        except KeyError as error:
            raise RLinfError("task", f"can't be read ({error})") from error

    assert says_all(ours.catch(ours.refuse)), "its cause lies in Python's own library"
    assert not says_all(ours.catch(ours.fail)), "what nobody expected"
    assert not says_all(ours.catch(refuses))
    assert not says_all(ours.catch(wrapped))


def test_causes_contexts_and_groups_are_folded_too(ours: ModuleType) -> None:
    def chained() -> None:
        try:
            ours.call(broken)
        except KeyError as error:
            raise RuntimeError("second") from error

    text = folded(caught(ours.call, chained))
    assert text.count("  [2 more frames of rlinf]\n") == 2
    assert "direct cause" in text
    assert "inner.py" not in text
    group = ExceptionGroup("several", [caught(ours.call, broken)])  # type: ignore[list-item]
    assert "inner.py" not in folded(group)
    assert "a line of the user" in folded(group)


def test_a_deep_recursion_is_cut_in_its_middle() -> None:
    def even(n: int) -> int:
        return odd(n - 1)

    def odd(n: int) -> int:
        if n < -400:
            raise ValueError("deep")
        return even(n - 1)

    text = folded(caught(even, 0))
    assert text.count("  File ") == SHOWN
    assert " more frames]\n" in text
    assert "ValueError: deep" in text
