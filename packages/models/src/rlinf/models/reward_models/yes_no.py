"""A reward from one question: the odds of "yes" against "no"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rlinf.core.data import LossOutput
from rlinf.core.errors import ConfigError
from rlinf.models.language.folder import save_language_model
from rlinf.models.language.model import LanguageModel
from rlinf.models.language.tokens import INPUT_IDS, SEGMENT_IDS, last_columns
from rlinf.models.reward_models.losses import success_loss


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
