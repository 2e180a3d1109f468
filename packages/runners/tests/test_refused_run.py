"""A run that is refused when its simulators are up leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from rlinf.runners.checkpoints.run_folder import RunFolder


def test_a_folder_is_discarded_unless_something_was_done(tmp_path: Path) -> None:
    for made in (None, "checkpoints", "metrics.jsonl"):
        folder = RunFolder(tmp_path / str(made))
        (folder.path / "worker_logs").mkdir(parents=True)
        if made is not None:
            (folder.path / made).touch()
        folder.discard()
        assert folder.path.exists() == (made is not None)
