"""How an embodied run is put together: its workers, where each of them goes, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.schema import ranks_of
from rlinf.runners.embodied.evaluation import EmbodiedEvalRunner, evaluated_protocol
from rlinf.runners.embodied.rules import EMBODIED
from rlinf.runners.embodied.runner import EmbodiedRunner
from rlinf.runners.embodied.schema import EmbodiedConfig, PlayedConfig, refuse_idle_workers
from rlinf.runners.embodied_sft.co_training import check_co_training
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.evaluation.published import expect_protocol
from rlinf.runners.task_types import launch_all, register_task_type


def evaluation(cfg: PlayedConfig, cluster: Cluster, policy: EvaluatedPolicy) -> EmbodiedEvalRunner:
    """Launches rollout and env workers."""
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker

    expect_protocol(policy.published, evaluated_protocol(cfg, policy))
    refuse_idle_workers("env.eval", cfg.env.eval.total_num_envs, 1, ranks_of(cluster.placement, "env"))
    workers = {"rollout": MultiStepRolloutWorker, "env": EnvWorker}
    return EmbodiedEvalRunner(cfg=cfg, policy=policy, **launch_all(cfg, cluster, workers))


@register_task_type("embodied", config=EmbodiedConfig, rules=EMBODIED, evaluation=evaluation, check=check_co_training)
def embodied(cfg: EmbodiedConfig, cluster: Cluster, folder: RunFolder) -> EmbodiedRunner:
    """Launches actor, rollout and env workers."""
    from rlinf.runners.embodied.actor_worker import EmbodiedFSDPActor
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker

    workers = {"actor": EmbodiedFSDPActor, "rollout": MultiStepRolloutWorker, "env": EnvWorker}
    groups = launch_all(cfg, cluster, workers, supervisors={"env": cfg.env_supervisor})
    return EmbodiedRunner(cfg=cfg, folder=folder, **groups)
