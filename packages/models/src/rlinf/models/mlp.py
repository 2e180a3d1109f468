"""The configuration of the MLP policy; light to import, the model is in `mlp_policy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf.models.mlp_policy import MLPPolicy

STATES = "states"


@dataclass(frozen=True, slots=True)
class MLPPolicyConfig:
    """A Gaussian actor and a critic, each a multi-layer perceptron, by name: `model_type: mlp_policy`."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, the same for actor and critic."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """What follows each hidden layer."""
    num_action_chunks: int = 1
    """K, control steps in one decision."""
    logstd_init: float = -0.5
    """The logarithm of each action's standard deviation at the start; it is learned and depends on no state."""

    normalize_observations: bool = False
    """Whether observations are normalised by the mean and standard deviation of all that was seen so far."""

    def __post_init__(self) -> None:
        if self.num_action_chunks < 1:
            raise ConfigError("num_action_chunks", f"expected at least 1, found {self.num_action_chunks}")
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError("hidden_sizes", f"expected sizes of at least 1, found {list(self.hidden_sizes)}")

    def build(self, spec: EnvSpec, *, seed: int) -> MLPPolicy:
        """The policy with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: needs the observation `states` of shape `[D]` and an action of shape `[A]`.
            seed: decides the weights.

        Raises:
            ConfigError: the environment has no such observation or action.
        """
        from rlinf.models.mlp_policy import MLPPolicy

        if STATES not in spec.observation:
            found = f"expected the observation '{STATES}', found {sorted(spec.observation)}"
            raise ConfigError("mlp_policy", found, "Choose an environment with states, or a policy that sees.")
        shape, action = spec.observation[STATES].shape, spec.action.shape
        if len(shape) != 1 or len(action) != 1:
            raise ConfigError("mlp_policy", f"expected states [D] and an action [A], found {shape} and {action}")
        return MLPPolicy(self, states=shape[0], actions=action[0], seed=seed)
