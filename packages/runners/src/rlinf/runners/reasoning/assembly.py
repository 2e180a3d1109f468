"""How the workers of a run that writes text become its runner, whichever workers write and score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.sft.warm_starts import warm_start
from rlinf.runners.task_types import launch


def evaluated(
    cfg: ReasoningConfig,
    cluster: Cluster,
    policy: EvaluatedPolicy,
    *,
    rollout: type[Any],
    reward: type[Any],
    tools: WorkerGroup[Any] | None = None,
) -> ReasoningEvalRunner:
    """Launches rollout and reward workers of these classes; the warm start of a recipe is training, and left out."""
    groups = {"rollout": launch(rollout, cfg, cluster, "rollout"), "reward": launch(reward, cfg, cluster, "reward")}
    return ReasoningEvalRunner(cfg=cfg, policy=policy, tools=tools, **groups)


def trained(
    cfg: ReasoningConfig,
    cluster: Cluster,
    folder: RunFolder,
    *,
    rollout: type[Any],
    reward: type[Any],
    tools: Callable[[], WorkerGroup[Any] | None] = lambda: None,
) -> ReasoningRunner:
    """Warms the model up where the recipe says so, and launches actor, rollout, reward and, if placed, inference workers.

    `tools` launches the workers in which the tools of agents run.
    """
    from rlinf.runners.reasoning.actor_worker import ReasoningActor
    from rlinf.runners.reasoning.inference_worker import InferenceWorker
    from rlinf.runners.sft.actor_worker import SFTActor

    def launch_sft(config: SFTConfig) -> WorkerGroup[SFTActor]:
        return launch(SFTActor, config, cluster, "sft", component="actor")

    if cfg.wants_warm_start:
        cfg = cfg.starting_from(warm_start(cfg.source, launch_sft))
    restarts = {"policy": "restart", "max_restarts": cfg.rollout.max_restarts}
    placed = cluster.placement.components
    return ReasoningRunner(
        cfg=cfg,
        actor=launch(ReasoningActor, cfg, cluster, "actor"),
        rollout=launch(rollout, cfg, cluster, "rollout", supervisor=restarts),
        reward=launch(reward, cfg, cluster, "reward"),
        inference=launch(InferenceWorker, cfg, cluster, "inference") if "inference" in placed else None,
        tools=tools(),
        folder=folder,
    )
