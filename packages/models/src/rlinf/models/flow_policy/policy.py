"""The configuration of the flow policy; the models, with and without Q-functions, are in `_policy`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf.core.config import expect_at_least
from rlinf.core.data import EnvSpec
from rlinf.core.data.sequences import Granularity
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.models.actor_config import acting
from rlinf.models.flow import AdvantageCondition, FlowSampling
from rlinf.models.layers.choices import Activation

if TYPE_CHECKING:
    from rlinf.models.flow_policy._policy import FlowPolicy

STATES = "states"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPolicyConfig:
    """A flow from noise to action chunks, given states, by name: `model_type: flow_policy`.

    It is trained like π0, without its eyes: by demonstrations (SFT), by PPO or GRPO on its denoising steps, by regression on its
    own decisions (NFT, FPO), or, with Q-functions, by soft actor-critic on the unrolled flow (SAC-Flow).
    """

    num_action_chunks: int = 4
    """K, control steps in one decision."""
    horizon: int | None = None
    """H, control steps that the flow makes, of which K are executed; None for K."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the flow, and of the critics."""
    token_width: int = 32
    """W, units for each control step in the flow's last hidden layer; the noise network of flow_noise reads them."""
    activation: Activation = "silu"
    """What follows each hidden layer."""
    sampling: FlowSampling = field(default_factory=FlowSampling)
    """How chunks are made, and where exploration comes from."""
    logprob_type: Granularity = "chunk_level"
    """What has one log-probability, and so one ratio: "chunk_level", the whole decision; "action_level", each control step;
    "token_level", each dimension of it."""
    condition: AdvantageCondition | None = None
    """Lets it learn from labels which actions were good, and act as those; None: it learns all that it is shown."""
    add_value_head: bool = True
    """Whether there is a critic V(s): GAE needs one, GRPO and its kin do not."""
    num_q_heads: int = 0
    """N, critics Q(s, a) of soft actor-critic; 0 for none."""
    q_layer_norm: bool = False
    """Whether hidden layers of those critics are normalised, as RLPD does."""
    squash: bool = False
    """Whether actions are the tanh of what the flow makes, so that they always lie within the bounds of the environment."""

    def __post_init__(self) -> None:
        for name, value in (("num_action_chunks", self.num_action_chunks), ("token_width", self.token_width)):
            expect_at_least(name, value, 1)
        if self.horizon is not None and self.horizon < self.num_action_chunks:
            problem = f"expected at least num_action_chunks = {self.num_action_chunks}, found {self.horizon}"
            raise ConfigError("horizon", problem, "Leave it out for the same.")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ConfigError("hidden_sizes", f"expected sizes of at least 1, found {list(self.hidden_sizes)}")
        expect_at_least("num_q_heads", self.num_q_heads, 0)
        self._check_density()

    def _check_density(self) -> None:
        if self.num_q_heads and self.horizon not in (None, self.num_action_chunks):
            raise ConfigError("horizon", "with Q-functions every step of the flow is executed", "Leave it out.")
        if self.sampling.density == "chain" and self.logprob_type != "chunk_level":
            raise ConfigError("logprob_type", f"'{self.logprob_type}' has no sampling.density 'chain'", "Use chunk_level.")
        if self.num_q_heads and self.sampling.noise_method in ("flow_ode", "flow_cps"):
            found = f"'{self.sampling.noise_method}' has steps without noise, so that an action has no density"
            raise ConfigError("sampling.noise_method", found, "Use flow_noise or flow_sde with Q-functions.")

    @property
    def traits(self) -> PolicyTraits:
        return acting(
            critic=self.add_value_head,
            observations=("states",),
            chunk=self.num_action_chunks,
            q_functions=self.num_q_heads > 0,
            q_batch_norm=False,
            sampling=self.sampling,
            blocks=False,
        )

    @property
    def conditioned(self) -> bool:
        return self.condition is not None

    def build(self, spec: EnvSpec, *, seed: int) -> FlowPolicy:
        """The policy with fresh weights; torch's global generator is neither read nor moved.

        Args:
            spec: needs the observation `states` of shape `[D]` and an action of shape `[A]`.
            seed: decides the weights.

        Raises:
            ConfigError: the environment has no such observation or action.
        """
        from rlinf.models.flow_policy._policy import FlowPolicy, SoftFlowPolicy
        from rlinf.models.seeding import seeded_weights

        if STATES not in spec.observation:
            found = f"expected the observation '{STATES}', found {sorted(spec.observation)}"
            raise ConfigError("flow_policy", found, "Choose an environment with states, or a policy that sees.")
        shape, action = spec.observation[STATES].shape, spec.action.shape
        if len(shape) != 1 or len(action) != 1:
            raise ConfigError("flow_policy", f"expected states [D] and an action [A], found {shape} and {action}")
        kind = SoftFlowPolicy if self.num_q_heads else FlowPolicy
        with seeded_weights(seed):
            return kind(self, states=shape[0], action=spec.action)
