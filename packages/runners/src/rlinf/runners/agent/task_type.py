"""How an agent's run is put together: the actor and the loop of a reasoning run, with episodes in place of single completions.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from typing import Any

from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.runners.agent.rules import AGENT
from rlinf.runners.agent.schema import TOOLS, AgentConfig
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.assembly import evaluated, trained
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner
from rlinf.runners.reasoning.language import check_corpus
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.task_types import launch, register_task_type


def evaluation(cfg: AgentConfig, cluster: Cluster, policy: EvaluatedPolicy) -> ReasoningEvalRunner:
    """Rollout and reward workers alone."""
    from rlinf.runners.agent.reward_worker import AgentRewardWorker
    from rlinf.runners.agent.rollout_worker import AgentRolloutWorker

    tools = _tools(cfg, cluster)
    return evaluated(cfg, cluster, policy, rollout=AgentRolloutWorker, reward=AgentRewardWorker, tools=tools)


@register_task_type("agent", config=AgentConfig, rules=AGENT, evaluation=evaluation, check=check_corpus)
def agent(cfg: AgentConfig, cluster: Cluster, folder: RunFolder) -> ReasoningRunner:
    """All workers of an agent's run, after its warm start."""
    from rlinf.runners.agent.reward_worker import AgentRewardWorker
    from rlinf.runners.agent.rollout_worker import AgentRolloutWorker

    def tools() -> WorkerGroup[Any] | None:
        return _tools(cfg, cluster)

    return trained(cfg, cluster, folder, rollout=AgentRolloutWorker, reward=AgentRewardWorker, tools=tools)


def _tools(cfg: AgentConfig, cluster: Cluster) -> WorkerGroup[Any] | None:
    """The workers in which tools run, where the recipe places them."""
    from rlinf.runners.agent.tool_worker import ToolWorker

    if TOOLS not in cluster.placement.components:
        return None
    supervisor = {"policy": "restart", "max_restarts": cfg.agent.tool_workers.max_restarts}
    return launch(ToolWorker, cfg, cluster, TOOLS, supervisor=supervisor)
