"""`ModelParallelComponentPlacement`: which mode is meant, and which accelerators each process has."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, PlacementError
from rlinf.scheduler import Node
from rlinf.scheduler.hardware import Inventory
from rlinf.scheduler.placement import ModelParallelComponentPlacement, PlacementMode


def machines(nodes: int = 1, each: int = 8) -> Inventory:
    return Inventory([Node(cores=16, accelerators=each, virtual=False, rank=rank) for rank in range(nodes)])


def placement(written: dict[str, Any], *, have: Inventory | None = None, **cfg: Any) -> ModelParallelComponentPlacement:
    cluster: dict[str, Any] = {"component_placement": {"reward": "0", **written}}
    return ModelParallelComponentPlacement({"cluster": cluster, **cfg}, have or machines())


def actor(tp: int = 1, pp: int = 1, cp: int = 1) -> dict[str, Any]:
    sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "context_parallel_size": cp}
    return {"model": sizes}


def devices(found: ModelParallelComponentPlacement, component: str) -> list[tuple[int, ...]]:
    return [plan.devices for plan in found.plan(component)]


def rollout_peers(found: ModelParallelComponentPlacement) -> tuple[tuple[int, int], ...]:
    """Actor rank → the rollout process on its accelerator, and which one of that process it is."""
    at = {device: (rank, i) for rank, held in enumerate(devices(found, "rollout")) for i, device in enumerate(held)}
    return tuple(at[held[0]] for held in devices(found, "actor"))


RECOMPUTED = {"recompute_logprobs": True}


def test_collocated() -> None:
    found = placement({"actor,rollout": "0-7"}, actor=actor(tp=4), rollout={"tensor_parallel_size": 2})
    assert found.placement_mode is PlacementMode.COLLOCATED
    assert devices(found, "actor") == [(i,) for i in range(8)]
    assert devices(found, "rollout") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert (found.actor_dp_size, found.rollout_dp_size, found.inference_dp_size) == (2, 4, 0)
    assert rollout_peers(found) == ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1))
    assert (found.get_world_size("actor"), found.get_world_size("rollout"), found.get_world_size("reward")) == (8, 4, 1)


def test_sizes_are_read_where_the_trainer_reads_them() -> None:
    trainer = {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "model": {"model_type": "causal_lm"}}
    found = placement({"actor": "0-7", "rollout": "0-7"}, actor=trainer)
    assert (found.actor_dp_size, found.rollout_dp_size) == (2, 8)


def test_a_rollout_that_is_wider_than_the_actor() -> None:
    found = placement({"actor": "0-3", "rollout": "0-3"}, actor=actor(tp=2), rollout={"tensor_parallel_size": 4})
    assert devices(found, "rollout") == [(0, 1, 2, 3)]
    assert rollout_peers(found) == ((0, 0), (0, 1), (0, 2), (0, 3))


def test_disaggregated() -> None:
    found = placement(
        {"rollout": "0-3", "inference": "4-5", "actor": "6-7", "reward": "0-3"},
        actor=actor(tp=2),
        inference=actor(pp=2),
        rollout={"tensor_parallel_size": 2},
        algorithm=RECOMPUTED,
    )
    assert found.placement_mode is PlacementMode.DISAGGREGATED
    assert devices(found, "rollout") == [(0, 1), (2, 3)]
    assert devices(found, "inference") == [(4,), (5,)]
    assert (found.actor_dp_size, found.rollout_dp_size, found.inference_dp_size) == (1, 2, 1)
    assert found.get_hardware_ranks("actor") == [6, 7]


def test_a_critic_may_share_the_accelerators_of_all_or_have_its_own() -> None:
    assert devices(placement({"actor,rollout,critic": "0-3"}), "critic") == [(0,), (1,), (2,), (3,)]
    apart = placement({"actor,rollout": "0-3", "critic": "4-7"}, critic=actor(cp=2))
    assert (apart.placement_mode, apart.dp_size("critic")) == (PlacementMode.COLLOCATED, 2)


def test_written_processes_may_be_what_the_sizes_make() -> None:
    assert devices(placement({"actor,rollout": "0-7:0-7"}), "rollout") == [(i,) for i in range(8)]
    found = placement({"actor": "0-3", "rollout": "4-7:0-1"}, rollout={"tensor_parallel_size": 2})
    assert devices(found, "rollout") == [(4, 5), (6, 7)]


@pytest.mark.parametrize(
    ("written", "cfg", "message"),
    [
        ({"actor": "0-3"}, {}, "component_placement.rollout: this component is not placed"),
        ({"actor": "0-3", "rollout": "2-5"}, {}, "component_placement.rollout: shares accelerators 2-3 with actor"),
        ({"actor,rollout": "0-3", "critic": "2-5"}, {}, "component_placement.critic: shares accelerators 2-3 with actor"),
        ({"actor": "0-1", "rollout": "2-3", "critic": "3-4"}, {}, "component_placement.critic: shares accelerators 3 with rollout"),
        ({"actor": "0,2", "rollout": "4-5"}, {}, "actor: expected one range of accelerators for a model, found 0,2"),
        ({"actor,rollout": "0-5"}, {"actor": actor(tp=4)}, "actor: 6 accelerators can't hold whole copies of 4 (tensor 4 × "),
        (
            {"actor,rollout": "0-5"},
            {"rollout": {"tensor_parallel_size": 4}},
            "rollout: 6 accelerators can't hold whole copies of 4",
        ),
        (
            {"actor,rollout": "0-5"},
            {"actor": actor(tp=2), "rollout": {"tensor_parallel_size": 3}},
            "rollout.tensor_parallel_size: 3 can't be matched with the actor's 2",
        ),
        ({"actor,rollout": "0-3", "inference": "4-7"}, {}, "inference: is placed, but algorithm.recompute_logprobs is not true"),
        (
            {"actor,rollout": "0-3", "inference": "4-7"},
            {"algorithm": RECOMPUTED},
            "inference: actor and rollout are collocated, so the actor infers itself",
        ),
        ({"actor,rollout,inference,actor_inference": "0-3"}, {}, "actor_inference: another name of inference, which is placed too"),
        ({"actor,rollout": "0-3:0"}, {}, "'0-3:0' asks for 1 processes, but its parallel sizes make 4"),
        ({"actor,rollout": {"node_group": "node", "placement": 0}}, {}, "a model is placed on accelerators, found '0' of a node"),
        (
            {"actor,rollout": "0-3"},
            {"actor": actor(tp=0)},
            "actor.model.tensor_model_parallel_size: expected a whole number above 0",
        ),
        (
            {"actor,rollout": "0-3"},
            {"actor": {**actor(tp=2), "tensor_model_parallel_size": 4}},
            "actor.model.tensor_model_parallel_size: found 2, but actor.tensor_model_parallel_size is 4. Write one of the two.",
        ),
        (
            {"actor,rollout": "0-3"},
            {"rollout": {"pipeline_parallel_size": "2"}},
            "rollout.pipeline_parallel_size: expected a whole",
        ),
    ],
)
def test_refusals(written: dict[str, Any], cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        placement(written, **cfg)


def test_reward_is_required_and_may_be_anywhere() -> None:
    cfg = {"cluster": {"component_placement": {"actor,rollout": "0-1"}}}
    with pytest.raises(PlacementError, match="reward: this component is not placed"):
        ModelParallelComponentPlacement(cfg, machines())
    found = placement({"actor,rollout": "0-1", "reward": {"node_group": "node", "placement": "0:0-3"}})
    assert devices(found, "reward") == [()] * 4
    with pytest.raises(PlacementError, match="has no parallel sizes"):
        found.dp_size("reward")


def test_a_copy_of_the_rollout_stays_on_its_node() -> None:
    wide = {"rollout": {"tensor_parallel_size": 4}}
    assert devices(placement({"actor,rollout": "0-7"}, have=machines(2, 4), **wide), "rollout") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    with pytest.raises(PlacementError, match=r"rollout: accelerators 0-7 of one process are on several nodes"):
        placement({"actor,rollout": "0-7"}, have=machines(2, 4), rollout={"tensor_parallel_size": 8})


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_every_actor_rank_meets_its_shard(actor_tp: int, rollout_tp: int, copies: int) -> None:
    """The rollout shard on an actor's accelerator is one that this actor rank holds a part of."""
    count = copies * max(actor_tp, rollout_tp)
    found = placement(
        {"actor,rollout": f"0-{count - 1}"},
        have=machines(each=count),
        actor=actor(tp=actor_tp),
        rollout={"tensor_parallel_size": rollout_tp},
    )
    peers = rollout_peers(found)
    assert sorted(peers) == [(dp, tp) for dp in range(count // rollout_tp) for tp in range(rollout_tp)]
    if actor_tp >= rollout_tp:
        assert all(tp == (rank % actor_tp) * rollout_tp // actor_tp for rank, (_, tp) in enumerate(peers))
