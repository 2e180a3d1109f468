"""`use_fixed_reset_state_ids` and `use_ordered_reset_state_ids`."""

from __future__ import annotations

from typing import Any

import pytest
from env_worker_toy import connected

from rlinf.core.errors import ConfigError
from rlinf.runners.embodied.playing.initial_states import InitialStates
from rlinf.runners.embodied.rules import read_embodied

SIX = {"reset_options": ("init_id",), "init_ids": 6}
TASKS = {"reset_options": ("task", "init_id"), "tasks": ("a", "b", "c"), "init_ids": 2}


def states(data: dict[str, Any], metadata: dict[str, Any], **train: Any) -> InitialStates:
    data["env"]["train"] |= {"auto_reset": False, "max_steps_per_rollout_epoch": 11, **train}
    data["actor"]["global_batch_size"] = 11
    return InitialStates(read_embodied(data).env.train, 3, metadata)


def test_fixed_states_are_those_of_the_rollout_epoch(toy_data: dict[str, Any]) -> None:
    found = states(toy_data, {}, use_fixed_reset_state_ids=True)
    first, again, later = (found.seeds([0, 0, 1], [number] * 3) for number in (22, 32, 33))
    assert first == again
    assert first[0] == first[1] != first[2]
    assert not set(first) & set(later)
    assert found.options([0], [22]) == {}


def test_ordered_states_each_come_once_before_any_comes_again(toy_data: dict[str, Any]) -> None:
    """Four groups and six states: three rollout epochs take each of them twice."""
    found = states(toy_data, SIX, use_ordered_reset_state_ids=True)
    taken = [found.options([0, 1, 2, 3], [11 * epoch] * 4)["init_id"] for epoch in range(3)]
    assert taken == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]
    assert found.options([0], [12])["init_id"] == [2], "the second episode of an epoch starts as the first one of the next"
    fixed = states(toy_data, SIX, use_ordered_reset_state_ids=True, use_fixed_reset_state_ids=True)
    assert fixed.options([0], [12])["init_id"] == [4]


def test_ordered_states_go_round_the_tasks(toy_data: dict[str, Any]) -> None:
    found = states(toy_data, TASKS, use_ordered_reset_state_ids=True).options([0, 1, 2, 3], [0] * 4)
    assert found == {"init_id": [0, 0, 0, 1], "task": [0, 1, 2, 0]}


def test_states_that_are_not_numbered_are_not_taken_in_order(toy_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="use_ordered_reset_state_ids: 'countdown' has no numbered initial states"):
        states(toy_data, {"reset_options": ("task",)}, use_ordered_reset_state_ids=True)


@pytest.mark.parametrize("key", ["use_fixed_reset_state_ids", "use_ordered_reset_state_ids"])
def test_they_need_episodes_that_end_with_their_epoch(toy_data: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"env.train.{key}: .*auto_reset"):
        states(toy_data, SIX, auto_reset=True, **{key: True})


def test_a_workers_groups_start_from_fixed_states_in_every_epoch(toy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    toy_data["env"]["train"] |= {"env_type": "drifting", "auto_reset": False, "use_fixed_reset_state_ids": True, "group_size": 2}
    toy_data["env"]["eval"] |= {"env_type": "drifting", "total_num_envs": 4}
    env, _ = connected(read_embodied(toy_data))
    seen: list[dict[int, set[float]]] = []
    for step in range(2):
        trajectories = queues()
        env.interact(step, *channels, trajectories)
        rows = trajectories.get(key=0)[1]
        starts: dict[int, set[float]] = {}
        for row, group in enumerate((rows.group % 2).tolist()):
            starts.setdefault(group, set()).add(float(rows.context["states"][row, 0, 1]))
        assert len(rows) > 4, "episodes end inside the epoch and begin anew"
        assert len(set(rows.group.tolist())) == 2, "all rows of an initial state are one group"
        assert len(set(rows.episode.tolist())) == len(rows), "and each is of an episode of its own"
        seen.append(starts)
    assert all(len(found) == 1 for starts in seen for found in starts.values())
    assert len({start for starts in seen for found in starts.values() for start in found}) == 4
