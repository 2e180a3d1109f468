"""How an agent's run is put together: the actor and the loop of a reasoning run, with episodes in place of single completions.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from typing import Any

from rlinf.core.protocols import Cluster
from rlinf.runners.agent.rules import AGENT
from rlinf.runners.agent.schema import TOOLS, AgentConfig
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.assembly import evaluated, trained
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner, check_asked, check_problems
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.task_types import CheckedEvaluation, register_task_type


def evaluation(cfg: AgentConfig, cluster: Cluster, policy: EvaluatedPolicy) -> ReasoningEvalRunner:
    """Rollout and reward workers, and those of tools where the recipe places them."""
    return evaluated(cfg, cluster, policy, _workers(cluster), {TOOLS: cfg.tool_supervisor})


@register_task_type(
    "agent",
    config=AgentConfig,
    rules=AGENT,
    evaluation=CheckedEvaluation(check_asked, evaluation),
    check=check_problems,
)
def agent(cfg: AgentConfig, cluster: Cluster, folder: RunFolder) -> ReasoningRunner:
    """All workers of an agent's run, after its warm start."""
    return trained(cfg, cluster, folder, _workers(cluster), {TOOLS: cfg.tool_supervisor})


def _workers(cluster: Cluster) -> dict[str, type[Any]]:
    """The classes of what plays and scores episodes, and of what runs tools where the recipe places it."""
    from rlinf.runners.agent.reward_worker import AgentRewardWorker
    from rlinf.runners.agent.rollout_worker import AgentRolloutWorker
    from rlinf.runners.agent.tool_worker import ToolWorker

    tools: dict[str, type[Any]] = {TOOLS: ToolWorker} if TOOLS in cluster.placement.components else {}
    return {"rollout": AgentRolloutWorker, "reward": AgentRewardWorker, **tools}
