"""How an agent's run is put together: the actor and the loop of a reasoning run, with episodes in place of single completions.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.runners.agent.rules import AGENT
from rlinf.runners.agent.schema import AgentConfig
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.sft.warm_starts import warm_start
from rlinf.runners.task_types import launch, register_task_type


def evaluation(cfg: AgentConfig, cluster: Cluster, policy: EvaluatedPolicy) -> ReasoningEvalRunner:
    """Launches rollout and reward workers; the warm start of a recipe is training, and left out."""
    from rlinf.runners.agent.reward_worker import AgentRewardWorker
    from rlinf.runners.agent.rollout_worker import AgentRolloutWorker

    return ReasoningEvalRunner(
        cfg=cfg,
        policy=policy,
        rollout=launch(AgentRolloutWorker, cfg, cluster, "rollout"),
        reward=launch(AgentRewardWorker, cfg, cluster, "reward"),
    )


@register_task_type("agent", config=AgentConfig, rules=AGENT, evaluation=evaluation)
def agent(cfg: AgentConfig, cluster: Cluster, folder: RunFolder) -> ReasoningRunner:
    """Warms the model up where the recipe says so, and launches actor, rollout, reward and, if placed, inference workers."""
    from rlinf.runners.agent.reward_worker import AgentRewardWorker
    from rlinf.runners.agent.rollout_worker import AgentRolloutWorker
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
        rollout=launch(AgentRolloutWorker, cfg, cluster, "rollout", supervisor=restarts),
        reward=launch(AgentRewardWorker, cfg, cluster, "reward"),
        inference=launch(InferenceWorker, cfg, cluster, "inference") if "inference" in placed else None,
        folder=folder,
    )
