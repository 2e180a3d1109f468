"""How the workers of a run that writes text become its runner, whichever workers write and score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf.core.evaluation import ProblemProtocol
from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.core.worker import Worker
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.evaluation.published import expect_protocol
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner, evaluated_protocol
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.sft.warm_starts import warm_start
from rlinf.runners.task_types import launch, launch_all


def evaluated(
    cfg: ReasoningConfig,
    cluster: Cluster,
    policy: EvaluatedPolicy,
    workers: Mapping[str, type[Worker]],
    supervisors: Mapping[str, Any] | None = None,
) -> ReasoningEvalRunner:
    """Launches rollout and reward workers of these classes; the warm start of a recipe is training, and left out.

    Raises:
        ConfigError: it would measure something else than the protocol that is repeated.
    """
    if isinstance(policy.published, ProblemProtocol):
        # All but the problems, of which workers find out whose prompts fit.
        expect_protocol(policy.published, evaluated_protocol(cfg, policy, policy.published.problems))
    return ReasoningEvalRunner(cfg=cfg, policy=policy, **launch_all(cfg, cluster, workers, supervisors=supervisors))


def trained(
    cfg: ReasoningConfig,
    cluster: Cluster,
    folder: RunFolder,
    workers: Mapping[str, type[Worker]],
    supervisors: Mapping[str, Any] | None = None,
) -> ReasoningRunner:
    """Warms the model up where the recipe says so, and launches actor, these workers and, if placed, inference workers."""
    from rlinf.runners.reasoning.actor_worker import ReasoningActor
    from rlinf.runners.reasoning.inference_worker import InferenceWorker
    from rlinf.runners.sft.actor_worker import SFTActor

    def launch_sft(config: SFTConfig) -> WorkerGroup[SFTActor]:
        return launch(SFTActor, config, cluster, "sft", component="actor")

    if cfg.wants_warm_start:
        cfg = cfg.starting_from(warm_start(cfg.source, launch_sft))
    inference = {"inference": InferenceWorker} if "inference" in cluster.placement.components else {}
    restarts = {"rollout": {"policy": "restart", "max_restarts": cfg.rollout.max_restarts}, **(supervisors or {})}
    groups = launch_all(cfg, cluster, {"actor": ReasoningActor, **workers, **inference}, supervisors=restarts)
    return ReasoningRunner(cfg=cfg, folder=folder, **groups)
