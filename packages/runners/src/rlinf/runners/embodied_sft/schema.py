"""The configuration of supervised fine-tuning on demonstrations; YAML holds only what a run changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlinf.core.offline import OfflineConfig
from rlinf.core.registry import DATASETS
from rlinf.runners.config.schema import chosen, positive
from rlinf.runners.embodied.schema import EvalEnvConfig
from rlinf.runners.sft.schema import FineTuningConfig, FineTuningRunnerConfig, SFTActorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationsConfig:
    """`data`; its section also holds the fields of the dataset."""

    type: str = "lerobot"
    """A registered dataset of episodes."""
    dataset: OfflineConfig = field(metadata=chosen(DATASETS, "type", trains=True))
    """The dataset's own fields."""
    val_episodes: int | None = None
    """How many episodes, the last ones, are held out for `eval/loss`; null: a tenth, at least one."""
    chunk_length: int | None = None
    """Actions that follow an observation and are learned with it; those behind the end of an episode don't count. null: as many as
    the policy decides at once. A flow policy learns all of its `horizon` if this is as long."""
    statistics: Literal["dataset", "model"] = "dataset"
    """What normalises states and actions: the statistics of the episodes that are learned, or those that the model has from
    `actor.model.model_path` or `runner.ckpt_path`. They are part of the weights, so that what starts from them needs no file."""

    def __post_init__(self) -> None:
        positive(val_episodes=self.val_episodes, chunk_length=self.chunk_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTEnvSection:
    """`env`."""

    eval: EvalEnvConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedSFTConfig(FineTuningConfig):
    """A whole run; every choice by name is already made and its parameters are checked."""

    runner: FineTuningRunnerConfig
    data: DemonstrationsConfig
    env: SFTEnvSection | None
    """Where the last checkpoint is evaluated; without it, the loss of held out episodes is all that is measured."""
    actor: SFTActorConfig

    @property
    def fits_statistics(self) -> bool:
        """See `RunConfig`."""
        return self.data.statistics == "dataset"
