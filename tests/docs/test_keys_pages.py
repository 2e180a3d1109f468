"""The key reference is what the schemas say."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_key_reference_is_up_to_date() -> None:
    command = [sys.executable, ROOT / "tools" / "key_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_key_says_what_it_means() -> None:
    for name in ("embodied", "reasoning", "sft"):
        rows = (ROOT / "docs" / "reference" / f"keys-{name}.md").read_text(encoding="utf-8").splitlines()
        cells = [re.split(r"(?<!\\)\|", row) for row in rows if row.startswith("| `")]
        assert len(cells) > 40
        assert [row[1] for row in cells if not row[4].strip()] == []
