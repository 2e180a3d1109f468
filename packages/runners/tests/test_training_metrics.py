"""What is told of the episodes of an iteration."""

from __future__ import annotations

from typing import Any

from rlinf.core.evaluation import EpisodeResult
from rlinf.runners.embodied import runner


def episode(task: int | None, success: bool | None, total: float) -> EpisodeResult:
    return EpisodeResult(
        episode=None, task=task, success_once=success, success_at_end=success, episode_return=total, episode_len=int(total)
    )


def played(*episodes: EpisodeResult) -> dict[str, float]:
    told: Any = vars(runner)["_played"]
    return told(list(episodes))


def test_of_several_tasks_each_has_numbers_of_its_own() -> None:
    found = played(episode(3, True, 2), episode(3, False, 4), episode(7, True, 6))
    assert found["env/success_once"] == 2 / 3
    assert found["env/episodes"] == 3
    assert found["env/task_3/success_once"] == 0.5
    assert (found["env/task_3/return"], found["env/task_7/return"]) == (3, 6)
    assert (found["env/task_3/episodes"], found["env/task_7/episodes"]) == (2, 1)


def test_of_one_task_or_none_there_is_one_table() -> None:
    assert not any("task" in name for name in played(episode(3, True, 2), episode(3, None, 4)))
    assert played() == {}
