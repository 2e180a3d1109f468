"""The CNN policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import ArraySpec
from rlinf.core.data.tree import Tree
from rlinf.models.actor_config import STATES
from rlinf.models.heads import ValueHead
from rlinf.models.layers.action_distribution import ActionDistribution
from rlinf.models.layers.activations import make_activation
from rlinf.models.layers.choices import Pooling, Preset
from rlinf.models.layers.resnet import SHAPES, ResNetEncoder, make_pooling
from rlinf.models.observations.cameras import Camera
from rlinf.models.observations.reading import read_images, read_states, views_of
from rlinf.models.seeding import seeded_weights
from rlinf.models.small._mlp import perceptron
from rlinf.models.small.actor_critic import ActorCritic, Context, QFunctions, make_q_head
from rlinf.models.small.cnn import CNNPolicyConfig


class ViewEncoder(nn.Module):
    """A vector of an image: residual network, pooling, a layer normalised and bounded by tanh.

    Args:
        preset: the size of the residual network.
        pooling: how its maps become a vector.
        size: of images, in pixels.
        features: F, of the result.
    """

    def __init__(self, preset: Preset, pooling: Pooling, size: tuple[int, int], features: int) -> None:
        super().__init__()
        self.resnet = ResNetEncoder(SHAPES[preset])
        self.pooling = make_pooling(pooling, self.resnet.channels, self.resnet.map_size(*size))
        self.bottleneck = nn.Sequential(nn.Linear(self.pooling.width, features), nn.LayerNorm(features), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        """`[n, F]`, of images `[n, H, W, 3]` uint8."""
        return self.bottleneck(self.pooling(self.resnet(images)))


class CameraEncoder(nn.Module):
    """What is seen through cameras, and the states, as one vector.

    Args:
        config: of the policy.
        cameras: through which it looks.
        states: D, None if states are not seen.
    """

    def __init__(self, config: CNNPolicyConfig, cameras: Sequence[Camera], states: int | None) -> None:
        super().__init__()
        self.cameras = tuple(cameras)
        sizes = [camera.size for camera in cameras for _ in range(camera.views)]
        make = partial(ViewEncoder, config.preset, config.pooling, features=config.image_features)
        self.encoders = nn.ModuleList(make(size) for size in (sizes[:1] if config.share_encoder else sizes))
        self.state_size = states
        self.states: nn.Sequential | None = None
        if states is not None:
            layers = (nn.Linear(states, config.state_features), nn.LayerNorm(config.state_features), nn.Tanh())
            self.states = nn.Sequential(*layers)
        self.width = len(sizes) * config.image_features + (0 if states is None else config.state_features)

    def forward(self, context: Context) -> Tensor:
        """`[*, W]`, of images `[*, H, W, 3]` or `[*, V, H, W, 3]` and states `[*, D]`."""
        views = [view for camera in self.cameras for view in views_of(context[camera.key], camera)]
        leading = views[0].shape[:-3]
        rows = [view.flatten(0, -4) for view in views]
        if len(self.encoders) == len(rows):
            seen = [encoder(row) for encoder, row in zip(self.encoders, rows, strict=True)]
        else:
            # All views in one pass, as they have the same size and the same number of rows.
            seen = list(cast("Tensor", self.encoders[0](torch.cat(rows))).chunk(len(rows)))
        if self.states is not None:
            # A rollout in bfloat16 records states in bfloat16, which an actor in float32 scores.
            seen.append(self.states(context[STATES].flatten(0, -2).to(seen[0].dtype)))
        return torch.cat(seen, -1).reshape(*leading, self.width)


class CNNPolicy(ActorCritic):
    """Actor and critic on the same features of images and states.

    Residual networks, pooling and bottleneck as in RLPD and SERL (Luo et al., 2024, arXiv:2401.16013). Images are kept as they
    came, as bytes.

    Args:
        config: the hyper-parameters.
        cameras: through which it looks.
        states: D, the size of the states; None if they are not seen.
        action: one control step.
        seed: decides the weights.
    """

    def __init__(
        self, config: CNNPolicyConfig, *, cameras: Sequence[Camera], states: int | None, action: ArraySpec, seed: int
    ) -> None:
        super().__init__()
        self.distribution = ActionDistribution(config, action, "cnn_policy")
        self.log_std = self.distribution.free_log_std()
        with seeded_weights(seed):
            self.camera_encoder = CameraEncoder(config, cameras, states)
            self.value_head: ValueHead | None = None
            if config.add_value_head:
                self.value_head = ValueHead(self.camera_encoder.width, config.hidden_sizes, config.activation)
        sizes = (self.camera_encoder.width, *config.hidden_sizes, self.distribution.outputs)
        generator = torch.Generator().manual_seed(seed)
        self.actor = perceptron(sizes, partial(make_activation, config.activation), last_gain=0.01, generator=generator)

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        like = next(self.actor.parameters())
        context = {camera.key: read_images(env_obs, camera, "cnn_policy", like.device) for camera in self.camera_encoder.cameras}
        if self.camera_encoder.state_size is not None:
            context[STATES] = read_states(env_obs, self.camera_encoder.state_size, "cnn_policy", like)
        return context

    def _features(self, context: Context) -> Tensor:
        return self.camera_encoder(context)

    def _output(self, features: Tensor) -> Tensor:
        return cast("Tensor", self.actor(features))

    def _value(self, features: Tensor) -> Tensor | None:
        return None if self.value_head is None else self.value_head(features)


class CNNQPolicy(QFunctions, CNNPolicy):
    """The CNN policy with Q-functions of the same features, which the critics alone train."""

    def __init__(
        self, config: CNNPolicyConfig, *, cameras: Sequence[Camera], states: int | None, action: ArraySpec, seed: int
    ) -> None:
        super().__init__(config, cameras=cameras, states=states, action=action, seed=seed)
        with seeded_weights(seed):
            self.q_head = make_q_head(config, self.camera_encoder.width, self.distribution.size)
