"""The network that says how much of a task is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import LossOutput
from rlinf.core.data.tree import Tree
from rlinf.models.base import Versioned
from rlinf.models.layers.activations import make_activation
from rlinf.models.normalization import Normalizer
from rlinf.models.observations.cameras import Camera
from rlinf.models.observations.reading import read_images, read_observation, read_states, views_of
from rlinf.models.reward_models.losses import return_cross_entropy
from rlinf.models.reward_models.returns import ReturnModelConfig
from rlinf.models.small._cnn import ViewEncoder
from rlinf.models.small._mlp import perceptron
from rlinf.models.small.word_hashing import PAD, hash_words

_BY: Final = "recap_value_model"
_TEXTS: Final = "task_descriptions"
_VOCABULARY, _WORDS = 512, 32


class ReturnModel(Versioned):
    """V(o) = Σ p_z(o) r_z, with p = softmax(MLP(images, states, words)) over Z returns r from −1 to 0.

    Args:
        config: the hyper-parameters.
        cameras: through which it looks; () for none.
        states: D, None if states are not seen.
        words: whether it is told the task.
        seed: decides the weights of the head.
    """

    def __init__(self, config: ReturnModelConfig, *, cameras: Sequence[Camera], states: int | None, words: bool, seed: int) -> None:
        super().__init__()
        self.config, self.cameras = config, tuple(cameras)
        sizes = [camera.size for camera in cameras for _ in range(camera.views)]
        see = partial(ViewEncoder, config.preset, "spatial_embeddings", features=config.image_features)
        self.encoders = nn.ModuleList(see(size) for size in sizes)
        self.normalize_states = None if states is None else Normalizer(states, "mean_std")
        self.words = nn.EmbeddingBag(_VOCABULARY, config.word_features, mode="mean", padding_idx=PAD) if words else None
        width = len(sizes) * config.image_features + (states or 0) + (config.word_features if words else 0)
        activation, generator = partial(make_activation, config.activation), torch.Generator().manual_seed(seed)
        # A small gain: at first every return is about as likely as any other.
        self.head = perceptron((width, *config.hidden_sizes, config.bins), activation, last_gain=0.01, generator=generator)

    @property
    def returns(self) -> Tensor:
        """r, `[Z]`, ascending."""
        return torch.linspace(-1.0, 0.0, self.config.bins, device=next(self.parameters()).device)

    def logits(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, Z]`, float32 at least; differentiable.

        Args:
            env_obs: observations by key, each leaf `[B, *]`.

        Raises:
            ShapeError: something that it sees is not there, or has another shape.
        """
        like = next(self.head.parameters())
        views = [view for camera in self.cameras for view in views_of(read_images(env_obs, camera, _BY, like.device), camera)]
        seen = [cast("Tensor", encoder(view)) for encoder, view in zip(self.encoders, views, strict=True)]
        if self.normalize_states is not None:
            states = read_states(env_obs, self.normalize_states.first.shape[0], _BY, like)
            seen.append(self.normalize_states.normalize(states))
        if self.words is not None:
            texts = [str(text) for text in read_observation(env_obs, _TEXTS, _BY)]
            numbers = hash_words(texts, vocab_size=_VOCABULARY, max_words=_WORDS)
            seen.append(self.words(numbers.to(like.device)))
        out = cast("Tensor", self.head(torch.cat([part.to(like.dtype) for part in seen], -1)))
        return out.to(torch.promote_types(out.dtype, torch.float32))

    @torch.no_grad()
    def state_values(self, env_obs: Tree[Any]) -> Tensor:
        """`[B]` in [−1, 0], the expected return; see `rlinf.core.rewards.LearnsReturns`."""
        return (self.logits(env_obs).softmax(-1) * self.returns).sum(-1)

    def return_loss(self, env_obs: Tree[Any], returns: Tensor, *, mask: Tensor | None = None) -> LossOutput[Tensor]:
        """How surprising the returns `[B]` of recorded steps are; see `return_cross_entropy`."""
        logit = self.logits(env_obs)
        return return_cross_entropy(logit, returns.to(logit), mask=mask)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        """Takes the statistics of states; see `rlinf.core.capabilities.FitsStatistics`."""
        del action  # nobody shows it one
        if self.normalize_states is not None:
            self.normalize_states.fit(states)
