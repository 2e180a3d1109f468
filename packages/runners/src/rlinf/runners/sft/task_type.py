"""How supervised fine-tuning is put together: its workers, where they go, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reasoning.language import check_corpus
from rlinf.runners.sft.rules import SFT
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import SFTConfig
from rlinf.runners.task_types import launch, register_task_type


@register_task_type("sft", config=SFTConfig, rules=SFT, check=check_corpus)
def sft(cfg: SFTConfig, cluster: Cluster, folder: RunFolder) -> SFTRunner:
    """Launches the actors."""
    from rlinf.runners.sft.actor_worker import SFTActor

    return SFTRunner(cfg=cfg, actor=launch(SFTActor, cfg, cluster, "actor"), folder=folder)
