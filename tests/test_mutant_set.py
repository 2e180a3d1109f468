"""The faults of `tools/mutants.toml` can still be put into the code, and the tests that should notice them exist."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text(encoding="utf-8"))["of"]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["file"])
def test_a_fault_stands_for_a_text_that_is_there_once(part) -> None:
    source = (ROOT / part["file"]).read_text(encoding="utf-8")
    found = {fault["fault"]: source.count(fault["was"]) for fault in part.get("by_hand", ())}
    assert found == dict.fromkeys(found, 1)
    assert [test for test in part["tests"] if not (ROOT / test.partition("::")[0]).exists()] == []
