"""Several env and rollout workers, in any numbers: who decides, and for how many at once, changes no number of a rollout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlinf.core.data import Trajectory
from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ConfigError
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import EmbodiedEvaluator, episode_protocol
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.topology import Topology
from rlinf.runners.task_types import launch
from rlinf.scheduler import Cluster

STEPS, ENVS = 7, 9
MLP = {
    "env": {"env_type": "gymnasium", "init_params": {"env_id": "Pendulum-v1"}, "max_episode_steps": 5},
    "model": {"model_type": "mlp_policy", "hidden_sizes": [8]},
}
MEMORY = {
    "env": {"env_type": "tabletop", "init_params": {"task": "reach", "image_size": 32, "obs_mode": "rgb"}, "max_episode_steps": 5},
    "model": {
        "model_type": "cma",
        "preset": "tiny",
        "image_features": 16,
        "memory_size": 16,
        "word_size": 8,
        "instruction_size": 8,
    },
}


def rollouts(
    parts: dict[str, Any], *, envs: int, rollouts: int, iterations: int = 1, **rollout: Any
) -> tuple[list[Trajectory[Any]], list[float]]:
    """What the actor is given in each iteration, and the returns of an evaluation."""
    cfg = read_embodied(
        {
            "runner": {"experiment_name": "ranks", "max_steps": 1},
            "cluster": {
                "backend": "local",
                "virtual_accelerators": {"count": max(envs, rollouts)},
                "component_placement": {"actor": "0", "env": f"0-{envs - 1}", "rollout": f"0-{rollouts - 1}"},
            },
            "env": {
                "train": {**parts["env"], "total_num_envs": ENVS, "max_steps_per_rollout_epoch": STEPS, "rollout_epoch": 2},
                "eval": {"total_num_envs": 5, "episodes": 7, "mode": "train"},
            },
            "rollout": rollout,
            "actor": {"model": parts["model"], "global_batch_size": 2 * ENVS * STEPS},
        }
    )
    cluster: Any = Cluster(cluster_cfg=cfg.cluster)  # pyright: ignore[reportArgumentType]
    try:
        env: Any = launch(EnvWorker, cfg, cluster, "env")
        rollout_group: Any = launch(MultiStepRolloutWorker, cfg, cluster, "rollout")
        slots = slot_layout(cfg, envs, rollouts)
        spec = env.init_worker(slots["train"]).wait()[0]
        topology = Topology(spec=spec, actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=rollouts, slots=slots)
        rollout_group.init_worker(topology).wait()
        env.connect(topology).wait()
        requests, answers, trajectories = (cluster.create_channel(name) for name in ("requests", "answers", "trajectories"))
        found: list[Trajectory[Any]] = []
        for step in range(iterations):
            playing = env.interact(step, requests, answers, trajectories)
            answered = rollout_group.generate(step, requests, answers).wait()
            playing.wait()
            assert min(answered) > 0, "a rollout worker had nothing to do"
            received = [trajectories.get(key=0) for _ in range(envs * 2)]
            # Of each env worker, its rollout epochs in order.
            ordered = [part for rank in range(envs) for sender, part, _ in received if sender == rank]
            found.append(Trajectory.concat(ordered))
        evaluator = EmbodiedEvaluator(rollout_group, env, requests=requests, answers=answers, cfg=cfg)
        report = evaluator.run(episode_protocol(cfg, final=False))
        return found, [result.episode_return for result in sorted(report.results, key=lambda result: result.episode.number)]
    finally:
        cluster.shutdown()


def leaves(trajectory: Trajectory[Any]) -> dict[str, np.ndarray[Any, Any]]:
    named = {name: getattr(trajectory, name) for name in ("action", "logprob", "value", "reward", "mask", "group", "truncated")}
    return {**named, **dict(tree_leaves(trajectory.context))}


def assert_same(one: Any, two: Any, *, exactly: bool) -> None:
    compare: Any = np.testing.assert_array_equal if exactly else np.testing.assert_allclose
    tolerance = {} if exactly else {"rtol": 1e-3, "atol": 1e-4}
    for first, second in zip(one[0], two[0], strict=True):
        for name, leaf in leaves(first).items():
            compare(leaves(second)[name], leaf, err_msg=name, **tolerance)
    compare(two[1], one[1], **tolerance)


@pytest.mark.parametrize(
    ("parts", "envs", "stages", "ranks"),
    [
        pytest.param(MLP, 3, 1, (1, 2, 3), id="3 env workers"),
        pytest.param(MLP, 2, 2, (1, 3), id="more rollout than env workers"),
        pytest.param(MEMORY, 3, 2, (1, 2), id="with a memory"),
    ],
)
def test_the_number_of_rollout_workers_changes_nothing(parts: Any, envs: int, stages: int, ranks: tuple[int, ...]) -> None:
    first, *others = (rollouts(parts, envs=envs, rollouts=count, pipeline_stage_num=stages) for count in ranks)
    for other in others:
        assert_same(first, other, exactly=True)


@pytest.mark.parametrize("parts", [MLP, MEMORY], ids=["mlp", "memory"])
def test_requests_that_are_decided_for_together_are_answered_as_alone(parts: Any) -> None:
    """But for rounding; and what does not follow the clock can be repeated to the bit."""
    shape = {"envs": 3, "rollouts": 2, "pipeline_stage_num": 2}
    alone = rollouts(parts, **shape)
    for batching in ("stage", "waiting"):
        together = rollouts(parts, **shape, batching=batching)
        assert_same(alone, together, exactly=False)
        if parts is MLP:
            assert_same(together, rollouts(parts, **shape, batching=batching), exactly=True)


def test_every_decision_is_drawn_for_itself() -> None:
    """Whatever slot, step, rollout epoch and iteration it is of. A log-probability of this policy says what was drawn alone."""
    found, _ = rollouts(MLP, envs=3, rollouts=2, iterations=2, pipeline_stage_num=2)
    drawn = np.concatenate([part.logprob.reshape(*part.mask.shape, -1).sum(-1)[part.mask] for part in found])
    assert len(drawn) == 2 * 2 * ENVS * STEPS
    assert len(np.unique(drawn.round(4))) > 0.95 * len(drawn)


def test_a_rollout_worker_without_a_slot_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"component_placement\.rollout: 3 rollout workers for 2 slots \(2 env workers × at most 1"
    ):
        rollouts(MLP, envs=2, rollouts=3)
