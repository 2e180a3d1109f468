"""The configuration of RLT; the model is in `_policy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.declarations import PolicyTraits, traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import DeclaresPrefixFeatures
from rlinf.models.actor_config import STATES, ActorCriticConfig, expect_action, expect_sizes
from rlinf.models.frozen_base import base_config, check_base, check_base_tasks

if TYPE_CHECKING:
    from rlinf.models.rlt._policy import RLTPolicy

TOKEN, REFERENCE, IMITATED = "rl_token", "reference_action", "imitated_action"
"""What is kept of an observation beside its states: the token, what the base proposed, and what the actor should stay near to."""

TEXTS = "task_code_points"
"""What the task asks for, kept with a decision."""


def _pi0() -> Mapping[str, Any]:
    return {"model_type": "pi0", "preset": "tiny"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RLTPolicyConfig(ActorCriticConfig):
    """An actor that changes the chunk of a frozen vision-language-action policy, and its critics: `model_type: rlt`.

    Xu et al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (2026), arXiv:2604.23073.
    """

    base: Mapping[str, Any] = field(default_factory=_pi0)
    """The policy that proposes, as `get_model` reads it: `model_type`, `ckpt_path` and hyper-parameters. It must be
    `HasPrefixFeatures`, as pi0 and pi05 are; all its weights are frozen. The first `num_action_chunks` steps of its chunk count."""
    num_action_chunks: int = 2
    """K, control steps in one decision, at most those of the base."""
    add_value_head: bool = False
    """Whether there is a value function beside the Q-functions; here there is none."""
    num_q_heads: int = 2
    """N, critics Q(s, a), which read the token and the states but not the proposal."""
    token_size: int = 64
    """Z, how many numbers the token has into which the features of the base are pressed."""
    token_queries: int = 4
    """Queries that look through the features of images and prompt, to make the token of."""
    token_width: int = 128
    """Units of the hidden layers that make the token, and features of it again."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the actor."""
    max_change: float = 1.0
    """ρ, how far the actor goes from the proposal (the middle where it is not told it), in halves of the range of an action."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        for name in ("token_size", "token_queries", "token_width", "num_q_heads"):
            expect_at_least(name, getattr(self, name), 1)
        expect_sizes("hidden_sizes", self.hidden_sizes)
        expect_range("max_change", self.max_change, 0.0, 2.0, open_low=True)
        base_config(self.base, "base")
        for name, wanted in (("distribution", "gaussian"), ("q_head", "multi"), ("add_value_head", False)):
            if getattr(self, name) != wanted:
                found = f"expected {wanted}, found {getattr(self, name)}"
                raise ConfigError(name, f"{found}: a proposal is changed within the bounds of actions, and critics judge it")

    @property
    def traits(self) -> PolicyTraits:
        base = traits_of(base_config(self.base, "base"))
        # Of slots: `super()` would look for the class that the decorator replaced.
        own = ActorCriticConfig.traits.__get__(self)
        return replace(
            own, critic_key="", observations=base.observations, any_observation=base.any_observation, reference_action=True
        )

    def kept_observation(self, spec: EnvSpec) -> Mapping[str, ArraySpec]:
        """The token, the states, and two chunks; see `rlinf.core.off_policy.KeepsFeatures`."""
        chunk = ArraySpec(shape=(self.num_action_chunks, *spec.action.shape), dtype="float32")
        token = ArraySpec(shape=(self.token_size,), dtype="float32")
        states = {STATES: replace(spec.observation[STATES], dtype="float32")} if STATES in spec.observation else {}
        return {TOKEN: token, **states, REFERENCE: chunk, IMITATED: chunk}

    def check(self, place: str) -> None:
        """Refuses a base that can't propose, or can't be built here, or whose weights are not there.

        Raises:
            ConfigError: one of the three, or what the base refuses.
        """
        at = f"{place}.base"
        base = base_config(self.base, at)
        if not isinstance(base, DeclaresPrefixFeatures):
            raise ConfigError(f"{at}.model_type", f"'{self.base.get('model_type')}' shows no features of its prefix", _REMEDY)
        chunk = traits_of(base).chunk
        if chunk is not None and chunk < self.num_action_chunks:
            problem = f"a decision has {self.num_action_chunks} steps, and the base proposes {chunk}"
            raise ConfigError(f"{place}.num_action_chunks", problem, f"Lower it, or raise {at}.num_action_chunks.")
        check_base(self.base, at)

    def check_tasks(self, texts: Sequence[str], place: str, spec: EnvSpec | None = None) -> None:
        check_base_tasks(self.base, texts, f"{place}.base", spec)

    def build(self, spec: EnvSpec, *, seed: int) -> RLTPolicy:
        """The policy with fresh weights, and its base; torch's global generator is neither read nor moved.

        Args:
            spec: what the base needs, and an action of shape `[A]` with bounds.
            seed: decides the weights.

        Raises:
            ConfigError: the base is unknown, wrong, or not `HasPrefixFeatures`; or the actions have no bounds.
        """
        from rlinf.models.registry import get_model
        from rlinf.models.rlt._policy import RLTPolicy
        from rlinf.models.seeding import seeded_weights

        expect_action("rlt", spec)
        base = get_model(self.base, spec, seed=seed, place="rlt.base")
        with seeded_weights(seed):
            return RLTPolicy(self, spec, base)


_REMEDY = "Choose pi0 or pi05."
