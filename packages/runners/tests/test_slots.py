from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError
from rlinf.runners.embodied.playing.slots import evaluation_slots, layout, slot_layout
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.task_type import evaluation
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.evaluation.policy import EvaluatedPolicy


def test_sixteen_environments_on_two_workers_in_two_stages() -> None:
    slots = layout(16, ranks=2, stages=2)
    assert [(s.env_rank, s.first_env, s.num_envs) for s in slots] == [(0, 0, 4), (0, 4, 4), (1, 8, 4), (1, 12, 4)]


@given(groups=st.integers(1, 40), size=st.integers(1, 6), ranks=st.integers(1, 8), stages=st.integers(1, 5))
def test_every_environment_has_one_seat_and_groups_stay_together(groups: int, size: int, ranks: int, stages: int) -> None:
    if groups < ranks:
        with pytest.raises(ConfigError, match="total_num_envs"):
            layout(groups * size, ranks=ranks, stages=stages, group_size=size)
        return
    slots = layout(groups * size, ranks=ranks, stages=stages, group_size=size)
    assert [s.index for s in slots] == list(range(len(slots)))
    covered = [env for s in slots for env in range(s.first_env, s.first_env + s.num_envs)]
    assert covered == list(range(groups * size))
    assert all(s.first_env % size == 0 and s.num_envs % size == 0 and s.num_envs > 0 for s in slots)
    per_rank = [sum(s.num_envs for s in slots if s.env_rank == r) for r in range(ranks)]
    assert max(per_rank) - min(per_rank) <= size
    assert per_rank == sorted(per_rank, reverse=True)


@pytest.mark.parametrize(("rollouts", "served_by"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (3, [0, 0, 1, 2])])
def test_a_rollout_worker_serves_all_stages_of_its_env_workers(rollouts: int, served_by: list[int]) -> None:
    slots, spec = tuple(layout(16, ranks=2, stages=2)), cast("Any", None)
    topology = Topology(
        spec=spec, actor="", actor_ranks=0, rollout="rollout", rollout_ranks=rollouts, slots={"train": slots, "eval": slots[:1]}
    )
    assert [topology.rollout_rank(slot, "train") for slot in slots] == served_by
    assert topology.serving(slots) == list(range(rollouts))
    assert [len(topology.served_by(rank, "train")) for rank in range(rollouts)] == [served_by.count(r) for r in range(rollouts)]


def test_an_evaluation_alone_needs_no_environments_of_training(toy_data: dict[str, Any]) -> None:
    """More workers evaluate than could train; too many for it, too, are refused by its own key before they start."""
    toy_data["env"]["train"] |= {"total_num_envs": 1, "group_size": 1}
    toy_data["env"]["eval"]["total_num_envs"] = 2
    toy_data["actor"]["global_batch_size"] = 6
    cfg = read_embodied(toy_data)
    assert [(slot.env_rank, slot.num_envs) for slot in evaluation_slots(cfg, 2)] == [(0, 1), (1, 1)]
    with pytest.raises(ConfigError, match=r"^env\.train\.total_num_envs"):
        slot_layout(cfg, 2)
    cluster: Any = SimpleNamespace(placement=SimpleNamespace(components=["env"], get_world_size=lambda component: 3))
    with pytest.raises(ConfigError, match=r"^env\.eval\.total_num_envs: 2 environments .* can't occupy 3 env workers"):
        evaluation(cfg, cluster, EvaluatedPolicy(name="", checkpoint_file=None, state={}, parent=Path()))
