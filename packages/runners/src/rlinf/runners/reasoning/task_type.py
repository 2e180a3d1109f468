"""How a reasoning run is put together: its workers, where each of them goes, the warm start before it, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.reasoning.assembly import evaluated, trained
from rlinf.runners.reasoning.evaluation import ReasoningEvalRunner, check_asked, check_problems
from rlinf.runners.reasoning.rules import REASONING
from rlinf.runners.reasoning.runner import ReasoningRunner
from rlinf.runners.reasoning.schema import ReasoningConfig
from rlinf.runners.task_types import CheckedEvaluation, register_task_type


def evaluation(cfg: ReasoningConfig, cluster: Cluster, policy: EvaluatedPolicy) -> ReasoningEvalRunner:
    """Rollout and reward workers alone."""
    from rlinf.runners.reasoning.reward_worker import RewardWorker
    from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker

    return evaluated(cfg, cluster, policy, {"rollout": ReasoningRolloutWorker, "reward": RewardWorker})


@register_task_type(
    "reasoning",
    config=ReasoningConfig,
    rules=REASONING,
    evaluation=CheckedEvaluation(check_asked, evaluation),
    check=check_problems,
)
def reasoning(cfg: ReasoningConfig, cluster: Cluster, folder: RunFolder) -> ReasoningRunner:
    """All workers of a reasoning run, after its warm start."""
    from rlinf.runners.reasoning.reward_worker import RewardWorker
    from rlinf.runners.reasoning.rollout_worker import ReasoningRolloutWorker

    return trained(cfg, cluster, folder, {"rollout": ReasoningRolloutWorker, "reward": RewardWorker})
