"""How supervised fine-tuning is put together: its workers, where they go, and its loop.

Workers are imported when a run starts, because they load torch: help and most refusals do without.
"""

from __future__ import annotations

from typing import get_args

from rlinf.core.language.problems import Split
from rlinf.core.protocols import Cluster
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.reasoning.language import build_tokenizer, check_corpus, end_tokens, problems_of
from rlinf.runners.sft.conversations import pieces, replies
from rlinf.runners.sft.examples import expect_solved
from rlinf.runners.sft.pairs import check_pairs
from rlinf.runners.sft.rules import REWARD_MODEL, SFT
from rlinf.runners.sft.runner import SFTRunner
from rlinf.runners.sft.schema import RewardModelConfig, SFTConfig
from rlinf.runners.task_types import launch, register_task_type


def check_examples(cfg: SFTConfig) -> None:
    """Refuses examples that can't be learned from, before a worker starts.

    The model's tokens can't write them, they show no solutions, or the chat template does not tell where earlier replies are.

    Raises:
        ConfigError: with the characters that it lacks, the split, or what the template writes.
    """
    check_corpus(cfg.actor.model, cfg.data.task)
    for split in get_args(Split):
        problems = problems_of(cfg.data.task, split)
        expect_solved(problems, split)
        recorded = next((problem for problem in problems if replies(problem)), None)
        # The first one only, as actors look at all; a tokenizer takes seconds to load.
        if recorded is not None and not cfg.data.mask_history:
            tokenizer = build_tokenizer(cfg.actor.model, cfg.data.task)
            pieces(recorded, tokenizer, end_tokens(cfg.actor.model.config, tokenizer))


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
