"""The pairs of sums that a reward model learns from."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "apps/reasoning/preference_pairs.py"


def test_each_wrong_response_is_a_guess_or_goes_wrong_at_one_result(tmp_path: Path) -> None:
    assert runpy.run_path(str(SCRIPT))["main"](["--out", str(tmp_path / "pairs.jsonl"), "--pairs", "40"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 40
    guesses = [row for row in rows if row["rejected"].startswith("#")]
    assert 10 <= len(guesses) <= 30
    for row in rows:
        right = row["chosen"].rpartition("#")[2]
        assert row["chosen"] != row["rejected"]
        if row in guesses:
            assert row["rejected"] != f"#{right}"
