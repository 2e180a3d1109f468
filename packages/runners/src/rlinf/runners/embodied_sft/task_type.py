"""How fine-tuning on demonstrations is put together: its workers, where they go, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.core.evaluation import EvalReport
from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.checkpoint import MODEL
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.embodied.description import described
from rlinf.runners.embodied.evaluation import EmbodiedEvalRunner
from rlinf.runners.embodied.task_type import evaluation as play
from rlinf.runners.embodied_sft.evaluation import evaluation_config
from rlinf.runners.embodied_sft.rules import EMBODIED_SFT, check_data
from rlinf.runners.embodied_sft.schema import EmbodiedSFTConfig
from rlinf.runners.evaluation.policy import EvaluatedPolicy
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.task_types import launch, register_task_type


def evaluation(cfg: EmbodiedSFTConfig, cluster: Cluster, policy: EvaluatedPolicy) -> EmbodiedEvalRunner:
    """Launches rollout and env workers."""
    return play(evaluation_config(cfg), cluster, policy)


@register_task_type("embodied_sft", config=EmbodiedSFTConfig, rules=EMBODIED_SFT, evaluation=evaluation, check=check_data)
def embodied_sft(cfg: EmbodiedSFTConfig, cluster: Cluster, folder: RunFolder) -> SFTRunner:
    """Launches the actors; rollout and env workers follow when training is over."""
    from rlinf.runners.embodied_sft.actor_worker import PolicySFTActor

    def played(checkpoint: Path) -> EvalReport[Any]:
        state = {"step": cfg.runner.max_steps}
        file, parent = str(checkpoint / MODEL), checkpoint.with_name(f"{checkpoint.name}_eval")
        policy = EvaluatedPolicy(name=str(checkpoint), checkpoint_file=file, state=state, parent=parent)
        runner = evaluation(cfg, cluster, policy)
        runner.init_workers()
        return runner.run()

    spec = None if cfg.env is None else described(cfg.env.eval)
    actor = launch(PolicySFTActor, cfg, cluster, "actor", arguments=(spec,))
    return SFTRunner(cfg=cfg, actor=actor, folder=folder, evaluate=None if cfg.env is None else played)
