"""How an off-policy run is put together: env and rollout workers as in any embodied run, and an actor with a replay buffer.

    update_rollout_weights      actor ══weights══► rollout
    generate_rollouts           env ◄══actions══ rollout,  env ══observations══► rollout,  env ══trajectories══► actor's buffer
    run_training                actor          (meanwhile env resets for the next iteration)

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.embodied.runner import EmbodiedRunner
from rlinf.runners.embodied.task_type import evaluation
from rlinf.runners.off_policy.rules import OFF_POLICY, TASK_TYPE, check_actions
from rlinf.runners.off_policy.schema import OffPolicyConfig
from rlinf.runners.task_types import launch_all, register_task_type


@register_task_type(TASK_TYPE, config=OffPolicyConfig, rules=OFF_POLICY, evaluation=evaluation, inferred=False)
def embodied_off_policy(cfg: OffPolicyConfig, cluster: Cluster, folder: RunFolder) -> EmbodiedRunner:
    """Launches actor, rollout and env workers."""
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
    from rlinf.runners.off_policy.actor_worker import OffPolicyActor
    from rlinf.runners.off_policy.exploration import Exploration

    exploration = Exploration(
        objective=cfg.algorithm.objective,
        start_steps=cfg.algorithm.start_steps,
        decisions_per_iteration=cfg.decisions_per_iteration,
        first_step=cfg.algorithm.offline_steps,
    )
    workers = {"actor": OffPolicyActor, "rollout": MultiStepRolloutWorker, "env": EnvWorker}
    supervised = {"env": cfg.env_supervisor}
    return EmbodiedRunner(
        cfg=cfg,
        **launch_all(cfg, cluster, workers, supervisors=supervised, arguments={"rollout": (exploration,)}),
        folder=folder,
        learn=EmbodiedRunner.run_training,
        check=lambda spec: check_actions(cfg, spec),
    )
