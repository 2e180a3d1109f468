"""The MLP policy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.data import Decision, Evaluation
from rlinf.core.errors import ShapeError
from rlinf.core.protocols import AllReduce, Mode
from rlinf.core.trajectory import Batch
from rlinf.core.tree import Tree
from rlinf.models.base import BasePolicy
from rlinf.models.gaussian import gaussian_entropy, gaussian_logprob
from rlinf.models.mlp import STATES, MLPPolicyConfig
from rlinf.models.running_norm import RunningNorm

_ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class MLPPolicy(BasePolicy):
    """a ~ N(actor(s), exp(log_std)²), V = critic(s); the log-probability is that of the whole chunk, `[B]`.

    Actions are not clipped: bounds belong to the environment, and the log-probability is that of what was drawn.

    Args:
        config: the hyper-parameters.
        states: D, the size of an observation.
        actions: A, the size of one control step.
        seed: decides the weights.
    """

    def __init__(self, config: MLPPolicyConfig, *, states: int, actions: int, seed: int) -> None:
        super().__init__()
        self.chunk = (config.num_action_chunks, actions)
        width = config.num_action_chunks * actions
        generator = torch.Generator().manual_seed(seed)
        activation = _ACTIVATIONS[config.activation]
        self.actor = perceptron((states, *config.hidden_sizes, width), activation, last_gain=0.01, generator=generator)
        self.critic = perceptron((states, *config.hidden_sizes, 1), activation, last_gain=1.0, generator=generator)
        self.normalize: RunningNorm | None = RunningNorm(states) if config.normalize_observations else None
        self.log_std = nn.Parameter(torch.full((width,), config.logstd_init))

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for observations `{"states": [B, D]}`; see `BasePolicy`."""
        states = self._states(env_obs).clone()
        seen = self._seen(states)
        mean = cast("Tensor", self.actor(seen))
        action = mean
        if mode == "train":
            noise = torch.randn(mean.shape, generator=generator, device=mean.device)
            action = torch.addcmul(mean, noise, self.log_std.exp())
        return Decision(
            action=action.view(-1, *self.chunk),
            logprob=gaussian_logprob(action, mean, self.log_std),
            value=cast("Tensor", self.critic(seen)).squeeze(-1),
            context={STATES: states},
            version=self.version,
        )

    def default_forward(self, batch: Batch[Tensor]) -> Evaluation[Tensor]:
        """Log-probability, entropy and value of each decision, `[B, T]`."""
        seen = self._seen(self._states(batch.trajectory.context))
        logprob = gaussian_logprob(batch.trajectory.action.flatten(-2), self.actor(seen), self.log_std)
        value = cast("Tensor", self.critic(seen)).squeeze(-1)
        return Evaluation(logprob=logprob, entropy=gaussian_entropy(self.log_std).expand_as(logprob), value=value)

    def observe(self, batch: Batch[Tensor], *, all_reduce: AllReduce | None = None) -> None:
        """Adds the observations of a batch to the statistics that normalise them; see `rlinf.core.protocols.Observing`."""
        if self.normalize is not None:
            states = self._states(batch.trajectory.context)
            self.normalize.update(states[batch.trajectory.mask], all_reduce)

    def _seen(self, states: Tensor) -> Tensor:
        """What actor and critic see."""
        return states if self.normalize is None else self.normalize(states)

    def _states(self, tree: Tree[Any]) -> Tensor:
        if not isinstance(tree, Mapping) or STATES not in tree:
            found = sorted(cast("Mapping[str, Any]", tree)) if isinstance(tree, Mapping) else type(tree).__name__
            raise ShapeError("mlp_policy(env_obs)", f"expected the key '{STATES}', found {found}")
        leaf = cast("Mapping[str, Any]", tree)[STATES]
        return torch.as_tensor(leaf, dtype=self.log_std.dtype, device=self.log_std.device)


def perceptron(
    sizes: Sequence[int], activation: Callable[[], nn.Module], *, last_gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers with an activation between them; orthogonal weights, zero biases.

    Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks" (2014), arXiv:1312.6120.

    Args:
        sizes: units from the input to the output.
        activation: what follows each layer but the last.
        last_gain: the gain of the last layer; that of the others is √2.
        generator: the only source of randomness.
    """
    layers: list[nn.Module] = []
    for i, (size_in, size_out) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        linear = nn.Linear(size_in, size_out, device="meta").to_empty(device="cpu")
        nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, activation()]
    return nn.Sequential(*layers)
