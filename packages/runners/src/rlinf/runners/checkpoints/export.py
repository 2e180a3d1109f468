"""A folder that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.data import Weights
from rlinf.core.language.problems import ImageProcessor, Tokenizer

HUGGINGFACE = "huggingface"
"""Its name."""


def export_network(
    policy: LanguageModelPolicy, weights: Weights[Any], tokenizer: Tokenizer, images: ImageProcessor | None, folder: Path
) -> None:
    """Writes model, tokenizer and image processor in the layout of Hugging Face, adapters merged and without a critic.

    Args:
        policy: takes the weights, and is of no use to anybody afterwards.
        weights: whole.
        tokenizer: that of the model.
        images: how it reads pictures; None if it is shown none.
        folder: where; made if it is not there.
    """
    policy.network_weights(weights)
    policy.save_network(folder)
    tokenizer.save_pretrained(str(folder))
    if images is not None:
        images.save_pretrained(str(folder))
