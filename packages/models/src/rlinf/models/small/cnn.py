"""The configuration of the CNN policy; light to import, the model is in `_cnn`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES, ActorCriticConfig, expect_action, expect_sizes
from rlinf.models.layers.choices import Activation, Pooling, Preset
from rlinf.models.observations.cameras import CAMERAS, cameras_of

if TYPE_CHECKING:
    from rlinf.models.small._cnn import CNNPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class CNNPolicyConfig(ActorCriticConfig):
    """An actor and a critic on what residual networks see through one or several cameras: `model_type: cnn_policy`."""

    preset: Preset = "base"
    """The size of the residual network: `base`, ResNet-10; `tiny`, the same with few channels, for images of some 32 pixels."""
    cameras: tuple[str, ...] | None = None
    """Which keys of the observation: `main_images`, `wrist_images`, `extra_view_images`; all that there are if None."""
    share_encoder: bool = False
    """Whether all views go through one network; otherwise each has one of its own."""
    pooling: Pooling = "spatial_embeddings"
    """How feature maps become vectors: "spatial_embeddings", with a learned weight for each place; "spatial_softmax", where each
    channel looks; "mean", how much of each channel there is."""
    image_features: int = 256
    """How many numbers the image of each camera becomes."""
    use_states: bool = True
    """Whether `states` are seen, too, where the environment has them."""
    state_features: int = 64
    """How many numbers `states` become before they join those of the images."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, the same for actor and critic."""
    activation: Activation = "tanh"
    """The function after each hidden layer of actor and critic."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        for name in ("image_features", "state_features"):
            expect_at_least(name, getattr(self, name), 1)
        expect_sizes("hidden_sizes", self.hidden_sizes)

    @property
    def traits(self) -> PolicyTraits:
        # With `slots` the decorator makes another class, which a bare `super()` does not know.
        return replace(super(CNNPolicyConfig, self).traits, observations=self.cameras, any_observation=CAMERAS)

    def build(self, spec: EnvSpec, *, seed: int) -> CNNPolicy:
        """The policy with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: needs images of a camera and an action of shape `[A]`, with bounds if it is squashed.
            seed: decides the weights.

        Returns:
            A policy with Q-functions (`rlinf.core.off_policy.HasQFunctions`) if `num_q_heads` is not 0.

        Raises:
            ConfigError: the environment has no such observation or action.
        """
        from rlinf.models.small._cnn import CNNPolicy, CNNQPolicy

        expect_action("cnn_policy", spec)
        cameras = cameras_of(spec, self.cameras, "cnn_policy")
        if self.share_encoder and len({camera.size for camera in cameras}) > 1:
            sizes = {camera.key: camera.size for camera in cameras}
            raise ConfigError("cnn_policy.share_encoder", f"expected views of one size, found {sizes}", "Set it to false.")
        states = spec.observation[STATES].shape if self.use_states and STATES in spec.observation else None
        if states is not None and len(states) != 1:
            raise ConfigError("cnn_policy", f"expected states [D], found {states}", "Set use_states: false.")
        make = CNNQPolicy if self.num_q_heads else CNNPolicy
        return make(self, cameras=cameras, states=None if states is None else states[0], action=spec.action, seed=seed)
