"""The part of a network that looks at recorded states."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from rlinf.core.data.tree import Tree
from rlinf.models.normalization import Normalizer
from rlinf.models.observations.reading import read_images, read_observation, read_states, views_of
from rlinf.models.reward_models.observed import JudgeConfig, Observed
from rlinf.models.small._cnn import ViewEncoder
from rlinf.models.small.word_hashing import PAD, hash_words

_TEXTS: Final = "task_descriptions"
_VOCABULARY, _WORDS = 512, 32


class ObservationFeatures(nn.Module):
    """Images, states and words as one vector of `width` numbers.

    Args:
        config: the hyper-parameters.
        observed: what there is to see.
        by: who looks, for errors.
    """

    def __init__(self, config: JudgeConfig, observed: Observed, *, by: str) -> None:
        super().__init__()
        self.by, self.cameras = by, tuple(observed.cameras)
        sizes = [camera.size for camera in self.cameras for _ in range(camera.views)]
        see = partial(ViewEncoder, config.preset, "spatial_embeddings", features=config.image_features)
        self.encoders = nn.ModuleList(see(size) for size in sizes)
        self.normalize_states = None if observed.states is None else Normalizer(observed.states, "mean_std")
        self.words = nn.EmbeddingBag(_VOCABULARY, config.word_features, mode="mean", padding_idx=PAD) if observed.words else None
        self.width = len(sizes) * config.image_features + (observed.states or 0) + (config.word_features if observed.words else 0)

    def forward(self, env_obs: Tree[Any], like: Tensor) -> Tensor:
        """`[B, width]`; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.
            like: has the type and the device of the result.

        Raises:
            ShapeError: something that it sees is not there, or has another shape.
        """
        views = [view for camera in self.cameras for view in views_of(read_images(env_obs, camera, self.by, like.device), camera)]
        seen = [cast("Tensor", encoder(view)) for encoder, view in zip(self.encoders, views, strict=True)]
        if self.normalize_states is not None:
            states = read_states(env_obs, self.normalize_states.first.shape[0], self.by, like)
            seen.append(self.normalize_states.normalize(states))
        if self.words is not None:
            texts = [str(text) for text in read_observation(env_obs, _TEXTS, self.by)]
            numbers = hash_words(texts, vocab_size=_VOCABULARY, max_words=_WORDS)
            seen.append(self.words(numbers.to(like.device)))
        return torch.cat([part.to(like.dtype) for part in seen], -1)

    def fit_statistics(self, states: Any) -> None:
        """Takes the statistics of states `[steps, D]`, if it sees any."""
        if self.normalize_states is not None:
            self.normalize_states.fit(states)
