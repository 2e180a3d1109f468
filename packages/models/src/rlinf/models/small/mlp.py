"""The configuration of the MLP policy; light to import, the model is in `_mlp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlinf.core.data import EnvSpec
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import STATES as STATES
from rlinf.models.actor_config import ActorCriticConfig, acting, expect_sizes, is_numbered

if TYPE_CHECKING:
    from rlinf.models.small._mlp import MLPPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPPolicyConfig(ActorCriticConfig):
    """An actor and a critic, each a multi-layer perceptron, by name: `model_type: mlp_policy`.

    Where actions are numbered (`Discrete`, `MultiDiscrete`, `MultiBinary`) they are drawn from a categorical distribution.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, the same for actor and critic."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """The function after each hidden layer."""
    weight_init: Literal["orthogonal", "uniform"] = "orthogonal"
    """How layers of actor and critic begin: "orthogonal", with biases of 0, or "uniform" in ±1/√n for n inputs, biases too, as
    torch's own layers do."""
    normalize_observations: bool = False
    """Whether observations are normalised by the mean and standard deviation of all that was seen so far; after imitation, by those
    of the demonstrations, which then stay."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)
        expect_sizes("hidden_sizes", self.hidden_sizes)

    @property
    def traits(self) -> PolicyTraits:
        return acting(
            critic=self.add_value_head,
            entropy=self.distribution == "gaussian",
            discrete_actions=True,
            q_functions=self.num_q_heads > 0,
            q_batch_norm=self.q_head == "crossq",
            observations=(STATES,),
            chunk=self.num_action_chunks,
            # Critics of CrossQ are lists of layers.
            blocks=None if self.q_head == "crossq" else False,
        )

    def build(self, spec: EnvSpec, *, seed: int) -> MLPPolicy:
        """The policy with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: needs the observation `states` of shape `[D]` and an action of shape `[A]`, with bounds if it is squashed, or
                numbered actions.
            seed: decides the weights.

        Returns:
            A policy with Q-functions (`rlinf.core.off_policy.HasQFunctions`) if `num_q_heads` is not 0; one with
            `rlinf.core.off_policy.HasActionValues` if it decides for one numbered action.

        Raises:
            ConfigError: the environment has no such observation or action, or numbered actions and a key that only others have.
        """
        from rlinf.models.small._mlp import MLPPolicy, MLPQPolicy, MLPValuesPolicy

        if STATES not in spec.observation:
            found = f"expected the observation '{STATES}', found {sorted(spec.observation)}"
            raise ConfigError("mlp_policy", found, "Choose an environment with states, or a policy that sees.")
        shape, action = spec.observation[STATES].shape, spec.action.shape
        if len(shape) != 1 or (len(action) != 1 and not (is_numbered(spec.action) and not action)):
            raise ConfigError("mlp_policy", f"expected states [D] and an action [A], found {shape} and {action}")
        single = is_numbered(spec.action) and not action and self.num_action_chunks == 1
        # Q-functions of numbered actions are refused there.
        make = MLPQPolicy if self.num_q_heads else MLPValuesPolicy if single else MLPPolicy
        return make(self, states=shape[0], actions=spec.action, seed=seed)
