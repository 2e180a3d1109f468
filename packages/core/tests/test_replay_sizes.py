"""How much memory control groups leave, by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.core.replay import available_memory, sizes

NONE = 2**63 - 4096


def written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sizes, "_available", lambda: 10_000)
    monkeypatch.setattr(sizes, "_GROUPS", tmp_path)
    monkeypatch.setattr(sizes, "_OWN", tmp_path / "own")
    return tmp_path


def test_what_the_kernel_keeps_of_files_can_be_freed(groups: Path) -> None:
    """In a container that has read its dataset, most of what is used is that."""
    written(groups, own="0::/", memory__max="1000", memory__current="950", memory__stat="anon 150\ninactive_file 700\nfile 800")
    assert available_memory() == 750
    written(groups, memory__max="max")
    assert available_memory() == 10_000


def test_the_own_group_counts_and_those_around_it(groups: Path) -> None:
    written(groups / "jobs" / "mine", memory__max="1000", memory__current="300", memory__stat="inactive_file 0")
    written(groups / "jobs", memory__max="max", memory__current="5000", memory__stat="inactive_file 0")
    written(groups, own="0::/jobs/mine")
    assert available_memory() == 700
    written(groups / "jobs", memory__max="5100")
    assert available_memory() == 100


def test_version_1_counts_what_is_below_a_group_and_a_container_may_see_its_own_at_the_top(groups: Path) -> None:
    stat = "inactive_file 1\ntotal_inactive_file 40"
    written(groups / "memory", memory__limit_in_bytes="500", memory__usage_in_bytes="450", memory__stat=stat)
    written(groups, own="5:cpu,cpuacct:/docker/7\n4:memory:/docker/7\n0::/docker/7")
    assert available_memory() == 90
    written(groups / "memory", memory__limit_in_bytes=str(NONE))
    assert available_memory() == 10_000


def test_without_control_groups_the_machine_counts(groups: Path) -> None:
    assert available_memory() == 10_000
