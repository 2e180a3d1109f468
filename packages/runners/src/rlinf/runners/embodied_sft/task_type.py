"""How fine-tuning on demonstrations is put together: its workers, where they go, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf.core.evaluation import EvalReport
from rlinf.core.protocols import Cluster, WorkerGroup
from rlinf.runners.checkpoints.checkpoint import peek_checkpoint
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.embodied.task_type import evaluation
from rlinf.runners.embodied.wrapping import described
from rlinf.runners.embodied_sft.evaluation import collection_config, evaluation_config
from rlinf.runners.embodied_sft.rules import EMBODIED_SFT, check_data
from rlinf.runners.embodied_sft.schema import DAggerConfig, EmbodiedSFTConfig
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.task_types import CheckedEvaluation, launch, register_task_type

if TYPE_CHECKING:
    from rlinf.runners.embodied_sft.actor_worker import PolicySFTActor
    from rlinf.runners.embodied_sft.dagger import DatasetAggregation


@register_task_type(
    "embodied_sft",
    config=EmbodiedSFTConfig,
    rules=EMBODIED_SFT,
    evaluation=CheckedEvaluation(evaluation_config, evaluation),
    check=check_data,
)
def embodied_sft(cfg: EmbodiedSFTConfig, cluster: Cluster, folder: RunFolder) -> SFTRunner:
    """Launches the actors; rollout and env workers follow when training is over."""
    from rlinf.runners.embodied_sft.actor_worker import PolicySFTActor

    def played(checkpoint: Path) -> EvalReport[Any]:
        runner = evaluation(evaluation_config(cfg), cluster, EvaluatedPolicy.of(peek_checkpoint(checkpoint)))
        runner.init_workers()
        return runner.run()

    spec = None if cfg.env is None else described(cfg.env.eval)
    actor = launch(PolicySFTActor, cfg, cluster, "actor", arguments=(spec,))
    growth = None if cfg.dagger is None else _aggregation(cfg, cfg.dagger, cluster, actor)
    return SFTRunner(cfg=cfg, actor=actor, folder=folder, evaluate=None if cfg.env is None else played, growth=growth)


def _aggregation(
    cfg: EmbodiedSFTConfig, dagger: DAggerConfig, cluster: Cluster, actor: WorkerGroup[PolicySFTActor]
) -> DatasetAggregation:
    """Launches what plays while the actor waits; the evaluation at the end has workers of its own."""
    from rlinf.runners.embodied.env_worker import EnvWorker
    from rlinf.runners.embodied.rollout_worker import MultiStepRolloutWorker
    from rlinf.runners.embodied_sft.dagger import DatasetAggregation

    config = collection_config(cfg)
    rollout = launch(MultiStepRolloutWorker, config, cluster, "dagger_rollout", component="rollout")
    env = launch(EnvWorker, config, cluster, "dagger_env", component="env")
    return DatasetAggregation(cfg, dagger, actor, rollout, env)
