"""The MLP policy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import ArraySpec, Batch
from rlinf.core.data.tree import Tree
from rlinf.core.protocols import AllReduce
from rlinf.models.actor_config import is_numbered
from rlinf.models.layers.action_distribution import ActionDistribution, PolicyDistribution
from rlinf.models.layers.activations import make_activation
from rlinf.models.layers.categorical import CategoricalDistribution
from rlinf.models.layers.running_norm import RunningNorm
from rlinf.models.observations.reading import read_observation, read_states
from rlinf.models.seeding import seeded_weights
from rlinf.models.small.actor_critic import ActionValues, ActorCritic, Context, QFunctions, make_q_head
from rlinf.models.small.mlp import STATES, MLPPolicyConfig


class MLPPolicy(ActorCritic):
    """a ~ N(actor(s), exp(log_std)²), V = critic(s); the log-probability is that of the whole chunk, `[B]`.

    So by default; the configuration may ask for squashed actions, for a standard deviation that depends on the state, or for
    log-probabilities of smaller parts. Numbered actions are drawn with the probabilities softmax(actor(s)).

    Args:
        config: the hyper-parameters.
        states: D, the size of an observation.
        actions: one control step, a vector `[A]` or numbered; or the size of the vector alone.
        seed: decides the weights.
    """

    def __init__(self, config: MLPPolicyConfig, *, states: int, actions: ArraySpec | int, seed: int) -> None:
        super().__init__()
        action = ArraySpec(shape=(actions,), dtype="float32") if isinstance(actions, int) else actions
        self.distribution = _distribution(config, action)
        self._size = states
        generator = torch.Generator().manual_seed(seed)
        activation = partial(make_activation, config.activation)
        make = partial(perceptron, activation=activation, weight_init=config.weight_init, generator=generator)
        # A small gain: the mean of a fresh policy is near 0 whatever it sees, so that its noise decides.
        self.actor = make((states, *config.hidden_sizes, self.distribution.outputs), last_gain=0.01)
        # In a tuple, so that it is no module twice; to walk through a container takes as long as a small layer.
        self._first = (cast("nn.Linear", self.actor[0]),)
        self.critic: nn.Sequential | None = None
        if config.add_value_head:
            self.critic = make((states, *config.hidden_sizes, 1), last_gain=1.0)
        self.normalize: RunningNorm | None = RunningNorm(states) if config.normalize_observations else None
        self.log_std = self.distribution.free_log_std()

    def observe(self, batch: Batch[Tensor], *, all_reduce: AllReduce | None = None) -> None:
        if self.normalize is not None:
            states = self._states(batch.trajectory.context)
            self.normalize.update(states[batch.trajectory.mask], all_reduce)

    def fit_statistics(self, *, action: Any, states: Any = None) -> None:
        """Normalises observations by those of data `[N, D]` from now on; see `FitsStatistics`."""
        del action
        if self.normalize is not None and states is not None:
            self.normalize.fit(torch.as_tensor(states, device=self._like.device))

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        return {STATES: read_states(env_obs, self._size, "mlp_policy", self._like)}

    def _features(self, context: Context) -> Tensor:
        return self._seen(self._states(context))

    def _output(self, features: Tensor) -> Tensor:
        return cast("Tensor", self.actor(features))

    def _value(self, features: Tensor) -> Tensor | None:
        return None if self.critic is None else cast("Tensor", self.critic(features)).squeeze(-1)

    def _seen(self, states: Tensor) -> Tensor:
        """What actor and critic see."""
        return states if self.normalize is None else self.normalize(states)

    def _states(self, tree: Tree[Any]) -> Tensor:
        like = self._like
        return torch.as_tensor(read_observation(tree, STATES, "mlp_policy"), dtype=like.dtype, device=like.device)

    @property
    def _like(self) -> Tensor:
        """A weight; every pass asks for it."""
        return self._first[0].weight


class MLPQPolicy(QFunctions, MLPPolicy):
    """The MLP policy with Q-functions of the (normalised) states."""

    def __init__(self, config: MLPPolicyConfig, *, states: int, actions: ArraySpec | int, seed: int) -> None:
        super().__init__(config, states=states, actions=actions, seed=seed)
        with seeded_weights(seed):
            self.q_head = make_q_head(config, states, self.distribution.size)


class MLPValuesPolicy(ActionValues, MLPPolicy):
    """The MLP policy of one numbered action, whose scores can be learned as values."""


def _distribution(config: MLPPolicyConfig, action: ArraySpec) -> PolicyDistribution[Any]:
    make = CategoricalDistribution if is_numbered(action) else ActionDistribution
    return make(config, action, "mlp_policy")


def perceptron(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module],
    *,
    last_gain: float,
    generator: torch.Generator,
    weight_init: Literal["orthogonal", "uniform"] = "orthogonal",
) -> nn.Sequential:
    """Linear layers with an activation between them; orthogonal weights and zero biases, or both uniform.

    Orthogonal: Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks" (2014),
    arXiv:1312.6120. Uniform in ±1/√n, n inputs: Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks" (2010), eq. 1; biases too, as `torch.nn.Linear.reset_parameters` draws both.

    Args:
        sizes: units from the input to the output.
        activation: what follows each layer but the last.
        last_gain: the gain of the last layer where weights are orthogonal; that of the others is √2.
        generator: the only source of randomness.
        weight_init: how weights and biases begin.
    """
    layers: list[nn.Module] = []
    for i, (size_in, size_out) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        # On meta first: the weights that nn.Linear draws itself would move torch's global generator. Not `to_empty`, which asks
        # torch's compiler for the strides and so imports it, and sympy: 2 CPU-s in each process that has a policy.
        linear = nn.Linear(size_in, size_out, device="meta")
        linear.weight, linear.bias = nn.Parameter(torch.empty(size_out, size_in)), nn.Parameter(torch.empty(size_out))
        if weight_init == "orthogonal":
            nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2.0), generator=generator)
            nn.init.zeros_(linear.bias)
        else:
            bound = 1.0 / math.sqrt(size_in)
            for parameter in (linear.weight, linear.bias):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
        layers += [linear] if last else [linear, activation()]
    return nn.Sequential(*layers)
