"""From a mapping to an `SFTConfig`, and the rules across its sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.runners.config.rules import Rule, no_idle_reference, placement
from rlinf.runners.config.sections import Section
from rlinf.runners.reasoning.language import HasTokenizer
from rlinf.runners.sft.schema import FineTuningConfig, RewardModelConfig, SFTConfig
from rlinf.runners.task_types import read_run


def _placement(cfg: FineTuningConfig) -> ConfigError | None:
    return placement(cfg.cluster, ("actor",))


def _writes(cfg: SFTConfig) -> ConfigError | None:
    if traits_of(cfg.actor.model.config).language is not False:
        return None
    return ConfigError("actor.model.model_type", f"'{cfg.actor.model.model_type}' writes no text", "Choose a language model.")


def no_reference(cfg: FineTuningConfig) -> ConfigError | None:
    """Fine-tuning compares with no reference policy."""
    return no_idle_reference(cfg.actor, used=False, remedy="Leave it out: fine-tuning has none.")


SFT: Final[Sequence[Rule[SFTConfig]]] = (_placement, _writes, no_reference)


def _learns_pairs(cfg: RewardModelConfig) -> ConfigError | None:
    if isinstance(cfg.actor.model.config, HasTokenizer) and traits_of(cfg.actor.model.config).judges == "texts":
        return None
    found = f"'{cfg.actor.model.model_type}' is no reward model"
    return ConfigError(
        "actor.model.model_type", found, "Choose sequence_reward; its model_path may be a language model with fresh_head."
    )


REWARD_MODEL: Final[Sequence[Rule[RewardModelConfig]]] = (_placement, _learns_pairs, no_reference)


def read_sft(data: Section) -> SFTConfig:
    """The typed configuration of `sft`, to which no rule objects; `ConfigError` with one line per fault otherwise."""
    return read_run(SFTConfig, data, task_type="sft", rules=SFT)
