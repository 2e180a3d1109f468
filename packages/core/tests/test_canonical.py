"""A protocol has one hash: in every process, on every machine, wherever its files are."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf.core.evaluation import canonical, canonical_hash

CODE = """
import functools


def reward(completions, answers):
    return [1.0 for _ in completions]


def made(bonus):
    def shaped(completions, answers):
        return [bonus for _ in completions]

    return shaped


class Judge:
    def __init__(self, scale=1.0):
        self.scale, self.tags = scale, {"b", "a", "c"}

    def __call__(self, completions, answers):
        return [self.scale for _ in completions]

    def score(self, completions, answers):
        return self(completions, answers)


short = lambda completions, answers: [0.5 for _ in completions]
"""
SHOWN = """
import sys
sys.path.insert(0, sys.argv[1])
import own_rewards as own
import functools
from rlinf.core.evaluation import canonical_hash

judge, part = own.Judge(), functools.partial(own.reward, answers=[])
values = [own.reward, own.made(0.5), judge, judge.score, own.short, part, own.Judge]
print(*[canonical_hash({"reward": value}) for value in values])
"""


class Kind(Enum):
    ONE = 1


@dataclass(frozen=True)
class Settings:
    size: int = 1


def load(folder: Path, code: str) -> Any:
    """The module as if for the first time."""
    module = ModuleType("own_rewards")
    file = folder / "own_rewards.py"
    file.write_text(code)
    module.__file__ = str(file)
    exec(compile(code, str(file), "exec"), module.__dict__)
    sys.modules["own_rewards"] = module
    import linecache

    linecache.clearcache()
    return module


def values(own: Any) -> list[Any]:
    judge = own.Judge()
    return [own.reward, own.made(0.5), judge, judge.score, own.short, functools.partial(own.reward, answers=[]), own.Judge]


def test_functions_and_objects_are_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    hashes = [canonical_hash({"reward": value}) for value in values(load(tmp_path / "a", CODE))]
    assert len(set(hashes)) == len(hashes)
    again = [canonical_hash({"reward": value}) for value in values(load(tmp_path / "a", CODE))]
    assert again == hashes
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", SHOWN, str(tmp_path / "a")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.split() == hashes


def test_what_is_written_or_held_otherwise_is_another_protocol(tmp_path: Path) -> None:
    own = load(tmp_path, CODE)
    plain = [canonical_hash({"reward": value}) for value in (own.reward, own.made(0.5), own.Judge(1.0), own.Judge().score)]
    other = load(tmp_path, CODE.replace("return [1.0", "return [2.0"))
    changed = [canonical_hash({"reward": value}) for value in (other.reward, own.made(0.6), own.Judge(2.0), own.Judge(3.0).score)]
    assert not set(plain) & set(changed)


def test_files_count_by_content_and_places_do_not(tmp_path: Path) -> None:
    one, other = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("same")
    other.write_text("same")
    assert canonical(one) == canonical(other)
    other.write_text("else")
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": (1, 2.5), "a": None}, {"b": [1, 2.5], "a": None}),
        ({3, 1, 2}, [1, 2, 3]),
        (Kind.ONE, f"{__name__}:Kind.ONE"),
        (Settings(size=2), {"of": f"{__name__}:Settings", "size": 2}),
        (np.float32(0.5), ["float32", 0.5]),
        (np.arange(2), ["int64", [0, 1]]),
        (Path("nowhere/at/all"), "nowhere/at/all"),
        (re.compile("a+"), "re.compile('a+')"),
        (object(), "<object object>"),
    ],
)
def test_plain_values_stay_what_they_are(value: Any, expected: Any) -> None:
    assert canonical(value) == expected
    json.dumps(canonical(value))


def test_an_object_within_an_object_is_its_class() -> None:
    """Else a logger, a lock or a network would be told whole, and not be the same in two processes."""
    first, second = SimpleNamespace(log=logging.getLogger("a"), size=3), SimpleNamespace(log=logging.getLogger("b"), size=3)
    assert canonical(first) == canonical(second) != canonical(SimpleNamespace(log=None, size=3))
    assert canonical(sys) == "sys"


def test_what_refers_to_itself_ends() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert json.dumps(canonical(ring)).count("[") == 32
