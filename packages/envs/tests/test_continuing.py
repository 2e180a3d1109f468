"""Which episodes of an interrupted collection are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlinf.core.errors import ConfigError
from rlinf.envs.recording import Continued, Episode, LeRobotWriter, NumpyWriter

JOURNAL = ".collection.jsonl"


def episode(seed):
    steps = np.zeros(2, np.bool_)
    return Episode(
        observations={"states": np.full((3, 2), seed, np.float32)},
        actions=np.zeros((2, 1), np.float32),
        rewards=np.zeros(2, np.float32),
        terminated=steps,
        truncated=steps,
        success=steps,
        task="push",
        seed=seed,
    )


def test_what_a_killed_writer_has_lost_is_played_again(tmp_path: Path):
    """Files of two episodes each: the third is in the journal, and not in the dataset."""
    inner = LeRobotWriter(tmp_path, fps=10, finalize_interval=2)
    first = Continued(inner, tmp_path, {"seed": 0}, resume=False)
    for seed in (7, 5, 9):
        first.write(episode(seed))
    assert (tmp_path / JOURNAL).read_text() == '{"seed": 0}\n7\n5\n9\n'
    inner.discard()
    second = Continued(LeRobotWriter(tmp_path, fps=10), tmp_path, {"seed": 0}, resume=True)
    assert (second.count, second.done) == (2, {5, 7})
    second.write(episode(4))
    second.close()
    third = Continued(LeRobotWriter(tmp_path, fps=10), tmp_path, {"seed": 0}, resume=True)
    assert third.done == {4, 5, 7}, "what was lost left no line"
    third.close()


def test_a_line_that_was_cut_off_is_none(tmp_path: Path):
    writer = Continued(NumpyWriter(tmp_path), tmp_path, {}, resume=False)
    writer.write(episode(3))
    writer.close()
    with (tmp_path / JOURNAL).open("a") as file:
        file.write("12")
    again = Continued(NumpyWriter(tmp_path), tmp_path, {}, resume=True)
    assert again.done == {3}
    again.close()


def test_a_folder_with_episodes_of_somebody_else_is_refused_and_left_to_others(tmp_path: Path):
    writer = Continued(NumpyWriter(tmp_path), tmp_path, {}, resume=False)
    writer.write(episode(3))
    writer.close()
    other = NumpyWriter(tmp_path)
    other.write(episode(4))
    other.close()
    with pytest.raises(ConfigError, match="holds 2 episodes, of which 1 are of this collection"):
        Continued(NumpyWriter(tmp_path), tmp_path, {}, resume=True)
    NumpyWriter(tmp_path).close()


def test_a_collection_without_an_episode_leaves_no_folder(tmp_path: Path):
    folder = tmp_path / "demos"
    Continued(NumpyWriter(folder), folder, {}, resume=False).close()
    assert not folder.exists()
