"""How supervised fine-tuning is put together: its workers, where they go, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from typing import get_args

from rlinf.core.language.problems import Split
from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reasoning.language import check_corpus, problems_of
from rlinf.runners.sft.examples import expect_solved
from rlinf.runners.sft.pairs import check_pairs
from rlinf.runners.sft.rules import REWARD_MODEL, SFT
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import RewardModelConfig, SFTConfig
from rlinf.runners.task_types import launch, register_task_type


def check_examples(cfg: SFTConfig) -> None:
    """Refuses examples that the model's tokens can't write, or that show no solutions, before a worker starts.

    Raises:
        ConfigError: with the characters that it lacks, or the split.
    """
    check_corpus(cfg.actor.model, cfg.data.task)
    for split in get_args(Split):
        expect_solved(problems_of(cfg.data.task, split), split)


@register_task_type("sft", config=SFTConfig, rules=SFT, check=check_examples)
def sft(cfg: SFTConfig, cluster: Cluster, folder: RunFolder) -> SFTRunner:
    """Launches the actors."""
    from rlinf.runners.sft.actor_worker import SFTActor

    return SFTRunner(cfg=cfg, actor=launch(SFTActor, cfg, cluster, "actor"), folder=folder)


@register_task_type("reward_model", config=RewardModelConfig, rules=REWARD_MODEL, check=check_pairs)
def reward_model(cfg: RewardModelConfig, cluster: Cluster, folder: RunFolder) -> SFTRunner:
    """Launches the actors, which learn from pairs of responses."""
    from rlinf.runners.sft.reward_model_worker import RewardModelActor

    return SFTRunner(cfg=cfg, actor=launch(RewardModelActor, cfg, cluster, "actor"), folder=folder)
