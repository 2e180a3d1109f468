"""Rules across the sections of supervised fine-tuning; see `rlinf.runners.config.rules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.runners.config.rules import Rule, no_idle_reference, placement
from rlinf.runners.sft.schema import SFTConfig


def _placement(cfg: SFTConfig) -> ConfigError | None:
    return placement(cfg.cluster, ("actor",))


def _writes(cfg: SFTConfig) -> ConfigError | None:
    if traits_of(cfg.actor.model.config).language is not False:
        return None
    return ConfigError("actor.model.model_type", f"'{cfg.actor.model.model_type}' writes no text", "Choose a language model.")


def _reference(cfg: SFTConfig) -> ConfigError | None:
    return no_idle_reference(cfg.actor, used=False, remedy="Leave it out: fine-tuning has none.")


SFT: Final[Sequence[Rule[SFTConfig]]] = (_placement, _writes, _reference)
