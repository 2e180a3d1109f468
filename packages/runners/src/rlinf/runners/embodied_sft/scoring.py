"""What models that judge states say of recorded episodes, for the labels of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.rewards import LearnsOffsets, LearnsReturns
from rlinf.runners.embodied_sft.demonstrations import TEXTS, frames_of
from rlinf.runners.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_AT_ONCE = 256
"""Steps that are judged in one pass."""


def values_of(model: LearnsReturns, episode: OfflineEpisode) -> Tensor:
    """What a model expects before each step, `[T]`."""
    return _in_parts(episode, lambda steps: model.state_values(_seen(episode, steps)))


def progress_of(model: LearnsOffsets, episode: OfflineEpisode, *, steps: int) -> Tensor:
    """How far each critic believes that the next steps led, `[N, T]`.

    âᵢₜ = Σ_z p_z(oₜ, oₜ₊ₙ) d_z of critic i

    Nobody saw what is more than the episode behind its steps: the last ones are judged by the last n steps together, and those of
    an episode that is shorter by the whole of it.

    Args:
        model: the critics.
        episode: T steps.
        steps: n, at least 1.
    """
    last = frames_of(episode) - 1

    def judge(rows: NDArray[np.int64]) -> Tensor:
        begin = np.minimum(rows, max(last - steps, 0))
        return model.expected_offsets(_seen(episode, begin), _seen(episode, np.minimum(begin + steps, last)))

    return _in_parts(episode, judge)


def _in_parts(episode: OfflineEpisode, judge: Callable[[NDArray[np.int64]], Tensor]) -> Tensor:
    """What is said of all steps, of some of them at once, joined along the last axis."""
    parts = [np.arange(begin, min(begin + _AT_ONCE, len(episode))) for begin in range(0, len(episode), _AT_ONCE)]
    return torch.cat([judge(part) for part in parts], -1)


def _seen(episode: OfflineEpisode, steps: NDArray[np.int64]) -> dict[str, Any]:
    seen: dict[str, Any] = {key: np.asarray(leaf[steps]) for key, leaf in episode.observation.items()}
    return {**seen, TEXTS: np.full(len(steps), episode.task)}
