"""A reward that is the answer to a question: yes or no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError
from rlinf.models.language.folder import save_language_model
from rlinf.models.language.model import LanguageModel
from rlinf.models.language.policy import CausalLMConfig, VisionLanguageConfig
from rlinf.models.language.tokens import INPUT_IDS, SEGMENT_IDS, last_columns
from rlinf.models.reward_models.losses import success_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class YesNoRewardConfig:
    """A model that is asked a question, with or without images, and answers yes or no in one token."""

    yes_id: int
    """The token of "yes"."""
    no_id: int
    """The token of "no"."""
    vlm: VisionLanguageConfig | None = None
    """Who is asked; exactly one of this and `causal_lm`."""
    causal_lm: CausalLMConfig | None = None
    """Who is asked where there are no images."""

    def __post_init__(self) -> None:
        if (self.vlm is None) == (self.causal_lm is None):
            raise ConfigError("vlm", "expected exactly one of vlm and causal_lm", "Set one of them.")
        if self.yes_id == self.no_id:
            raise ConfigError("yes_id", f"expected two tokens, found {self.yes_id} twice")

    def build(self, *, seed: int) -> YesNoReward:
        """The reward model; see `VisionLanguageConfig.build`."""
        # `__post_init__` refuses none of them.
        asked = cast("VisionLanguageConfig | CausalLMConfig", self.vlm or self.causal_lm)
        return YesNoReward(asked.build(seed=seed), yes_id=self.yes_id, no_id=self.no_id)


class YesNoReward(nn.Module):
    """P(yes) = σ(z_yes − z_no), z the logits of the token that would come after the question.

    What all other tokens get doesn't matter: the reward is in [0, 1] even of a model that would rather say something else.

    Args:
        model: who is asked.
        yes_id: the token of "yes".
        no_id: the token of "no".

    Raises:
        ConfigError: a token is not in the vocabulary.
    """

    def __init__(self, model: LanguageModel, *, yes_id: int, no_id: int) -> None:
        super().__init__()
        self.model = model
        self.yes_id, self.no_id = yes_id, no_id
        vocabulary = model.vocabulary
        for name, token in (("yes_id", yes_id), ("no_id", no_id)):
            if not 0 <= token < vocabulary:
                raise ConfigError(name, f"expected a token in [0, {vocabulary}), found {token}")

    def log_odds(self, context: Mapping[str, Tensor]) -> Tensor:
        """`[B]`, z_yes − z_no after the one sequence of each row of `input_ids` `[B, T]`; differentiable."""
        hidden = self.model.hidden_states(context)
        segments = context.get(SEGMENT_IDS, torch.ones_like(context[INPUT_IDS])).to(hidden.device)
        logits = self.model.logits(hidden[torch.arange(len(hidden), device=hidden.device), last_columns(segments)]).float()
        return logits[:, self.yes_id] - logits[:, self.no_id]

    @torch.no_grad()
    def score(self, context: Mapping[str, Tensor]) -> Tensor:
        """`[B]` in [0, 1], the probability of "yes" among the two answers."""
        return self.log_odds(context).sigmoid()

    def loss(self, context: Mapping[str, Tensor], answer: Tensor) -> LossOutput[Tensor]:
        """Binary cross-entropy against answers `[B]` bool; see `success_loss`."""
        logit = self.log_odds(context)
        return success_loss(logit, answer.to(logit.device))

    def save(self, folder: Path) -> None:
        """Writes the model that is asked in the layout of Hugging Face; the two tokens belong to the configuration."""
        save_language_model(self.model, folder)
