"""The configuration of DSRL; the model is in `_policy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits, traits_of
from rlinf.models.actor_config import acting, check_log_std, expect_sizes
from rlinf.models.frozen_base import base_config, check_base, check_base_tasks

if TYPE_CHECKING:
    from rlinf.models.dsrl._policy import DSRLPolicy


def _flow_policy() -> Mapping[str, Any]:
    return {"model_type": "flow_policy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DSRLPolicyConfig:
    """A policy over the initial noise of another one, by name: `model_type: dsrl`.

    Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (2025), arXiv:2506.15799.
    """

    base: Mapping[str, Any] = field(default_factory=_flow_policy)
    """The steered policy, as `get_model` reads it: `model_type`, `ckpt_path` and hyper-parameters. It must be `HasNoiseSteering`;
    all its weights are frozen."""
    image_size: int = 64
    """Pixels, each way, at which the encoder sees the main camera, if there is one."""
    feature_size: int = 64
    """Units that the encoder makes of the image, and of the states."""
    hidden_sizes: tuple[int, ...] = (128, 128, 128)
    """Units of each hidden layer, the same for actor and critics."""
    num_q_heads: int = 10
    """N, critics Q(s, w)."""
    noise_bound: float = 1.0
    """b: each entry of the noise is b tanh(u), u ~ N(m(s), σ(s)²)."""
    logstd_range: tuple[float, float] = (-5.0, 2.0)
    """The least and the greatest log σ."""

    def __post_init__(self) -> None:
        sizes = (("image_size", self.image_size, 16), ("feature_size", self.feature_size, 1), ("num_q_heads", self.num_q_heads, 1))
        for name, value, least in sizes:
            expect_at_least(name, value, least)
        expect_sizes("hidden_sizes", self.hidden_sizes)
        expect_range("noise_bound", self.noise_bound, 0.0, 100.0, open_low=True)
        check_log_std(None, self.logstd_range)
        base_config(self.base, "base")

    @property
    def traits(self) -> PolicyTraits:
        base = traits_of(base_config(self.base, "base"))
        return replace(
            acting(
                critic=True, entropy=False, q_functions=True, q_batch_norm=False, observations=base.observations, chunk=base.chunk
            ),
            # No key of this policy turns its critics off.
            critic_key="",
            latent_action=True,
        )

    def check(self, place: str) -> None:
        """Refuses a base that can't be built here, or whose weights are not there.

        Raises:
            ConfigError: one of the two, or what the base refuses.
        """
        check_base(self.base, f"{place}.base")

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        check_base_tasks(self.base, texts, f"{place}.base", spec)

    def build(self, spec: EnvSpec, *, seed: int) -> DSRLPolicy:
        """The policy with fresh weights, and its base; torch's global generator is neither read nor moved.

        Args:
            spec: what the base needs; of it, `states` and `main_images` are seen by the steering policy, those that there are.
            seed: decides the weights.

        Raises:
            ConfigError: the base is unknown, wrong, or not `HasNoiseSteering`; or there is nothing to see.
        """
        from rlinf.models.dsrl._policy import DSRLPolicy
        from rlinf.models.registry import get_model
        from rlinf.models.seeding import seeded_weights

        base = get_model(self.base, spec, seed=seed, place="dsrl.base")
        with seeded_weights(seed):
            return DSRLPolicy(self, spec, base)
