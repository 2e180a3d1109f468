"""The steering policy.

observation ─▶ encoder ─▶ u ~ N(m, σ²) ─▶ w = b tanh(u) ─▶ the same w for each step ─▶ frozen flow, by its ODE ─▶ action
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.capabilities import HasNoiseSteering
from rlinf.core.data import Batch, Decision, EnvSpec, Rescored
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import Mode
from rlinf.models.base import BasePolicy, flat_context
from rlinf.models.dsrl.encoder import IMAGES, STATES, SmallEncoder
from rlinf.models.dsrl.policy import DSRLPolicyConfig
from rlinf.models.flow import draw_noise
from rlinf.models.heads import MultiQHead
from rlinf.models.layers.gaussian import LOG_2PI, squash_log_slope
from rlinf.models.observations.images import resize
from rlinf.models.observations.reading import read_observation, read_states
from rlinf.models.precision import at_least_float32


class DSRLPolicy(BasePolicy):
    """Decides by choosing the noise that a frozen policy starts from.

    The log-probability is that of the noise w, `[B]`; so PPO works on it as it does on any policy, and soft actor-critic, whose
    actions are the noise (`rlinf.core.off_policy.HasLatentAction`). The value of a decision is what the critics say, on average,
    of the most likely noise.

    Args:
        config: the hyper-parameters.
        spec: the environment.
        base: a `HasNoiseSteering` policy; its weights are frozen.

    Raises:
        ConfigError: the base can't be steered.
    """

    def __init__(self, config: DSRLPolicyConfig, spec: EnvSpec, base: BasePolicy) -> None:
        super().__init__()
        if not isinstance(base, HasNoiseSteering):
            found = f"a {type(base).__name__} has no initial noise"
            raise ConfigError("dsrl.base", found, "Choose a flow policy: flow_policy, pi0, pi05 or gr00t.")
        self.config = config
        self.horizon, size = base.noise_shape
        self.base = base.requires_grad_(False)
        self.encoder = SmallEncoder(spec, config.image_size, config.feature_size)
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((self.encoder.width, *config.hidden_sizes)):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.actor = nn.Sequential(*layers, nn.Linear((self.encoder.width, *config.hidden_sizes)[-1], 2 * size))
        q_head = MultiQHead(self.encoder.width, size, config.num_q_heads, config.hidden_sizes)
        # The critics' own encoder lies below `critic`, with the learning rate of the critics.
        eyes = SmallEncoder(spec, config.image_size, config.feature_size)
        self.critic = nn.ModuleDict({"encoder": eyes, "q_head": q_head})

    @torch.no_grad()
    def predict_action_batch(
        self, env_obs: Tree[Any], mode: Mode = "train", *, generator: torch.Generator | None = None
    ) -> Decision[Tensor]:
        """Decides for whatever observations the base needs; see `BasePolicy`."""
        seen = self._seen(env_obs)
        mean, log_std = self._gaussian(seen)
        raw = mean if mode == "eval" else torch.addcmul(mean, log_std.exp(), draw_noise(mean.shape, mean, generator))
        return Decision(
            action=self.decode(env_obs, self._bounded(raw)),
            logprob=self._logprob(raw, mean, log_std),
            value=self._value(seen, mean),
            # u, not w: where the tanh is flat, u can't be found again from w.
            context={**seen, "raw_noise": raw},
            version=self.version,
        )

    def default_forward(self, batch: Batch[Tensor]) -> Rescored[Tensor]:
        """Log-probability of the noise and value of each decision, `[B, T]`; the entropy has no closed form."""
        context = flat_context(batch, cast("nn.Linear", self.actor[-1]).weight.device)
        mean, log_std = self._gaussian(context)
        axes = tuple(batch.trajectory.reward.shape)
        logprob, value = self._logprob(context["raw_noise"], mean, log_std), self._value(context, mean)
        return Rescored(logprob=logprob.view(axes), value=value.view(axes))

    def actor_parameters(self) -> list[str]:
        """The names of the parameters that choose noise."""
        return [name for name, _ in self.named_parameters() if name.partition(".")[0] in ("encoder", "actor")]

    def sample_action(self, env_obs: Tree[Any], *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Fresh noise w `[B, 1, D]` and its log-probability `[B]`, both differentiable by reparametrisation."""
        mean, log_std = self._gaussian(self._seen(env_obs))
        raw = torch.addcmul(mean, log_std.exp(), draw_noise(mean.shape, mean, generator))
        return self._bounded(raw)[:, None], self._logprob(raw, mean, log_std)

    def most_likely_action(self, env_obs: Tree[Any]) -> Tensor:
        """`[B, 1, D]`, the noise in the middle; differentiable."""
        mean, _ = self._gaussian(self._seen(env_obs))
        return self._bounded(mean)[:, None]

    def q_values(self, env_obs: Tree[Any], action: Tensor) -> Tensor:
        """`[B, N]`, what each critic says of noise `[B, 1, D]`; differentiable."""
        return self._critics(self._seen(env_obs), action.flatten(1))

    def latent_action(self, context: Tree[Any]) -> Tensor:
        """The noise w `[*, 1, D]` of past decisions, from their context: what `q_values` judges, while the base acts."""
        raw = torch.as_tensor(cast("Mapping[str, Any]", context)["raw_noise"])
        return self._bounded(raw)[..., None, :]

    def decode(self, env_obs: Tree[Any], noise: Tensor) -> Tensor:
        """The action `[B, K, A]` that noise `[B, D]` becomes, the same for each step of the horizon."""
        return self.base.steer(env_obs, noise[:, None].expand(-1, self.horizon, -1))

    def _gaussian(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and log σ of u, each `[B, D]`, float32 at least."""
        mean, log_std = at_least_float32(self.actor(self.encoder(seen))).chunk(2, -1)
        low, high = self.config.logstd_range
        return mean, low + 0.5 * (high - low) * (log_std.tanh() + 1.0)

    def _bounded(self, raw: Tensor) -> Tensor:
        return self.config.noise_bound * raw.tanh()

    def _logprob(self, raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """Of w: log N(u; m, σ²) − Σ log(b (1 − tanh² u)), `[B]`."""
        z = (raw - mean) * (-log_std).exp()
        stretch = squash_log_slope(raw) + math.log(self.config.noise_bound)
        return (-0.5 * (z.square() + LOG_2PI) - log_std - stretch).sum(-1)

    def _critics(self, seen: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        return cast("Tensor", self.critic["q_head"](self.critic["encoder"](seen), noise))

    def _value(self, seen: Mapping[str, Tensor], mean: Tensor) -> Tensor:
        # Detached: a value loss trains the critics, not the actor.
        return self._critics(seen, self._bounded(mean.detach())).mean(-1)

    def _seen(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        """What the encoders need, small enough to be kept."""
        like = cast("nn.Linear", self.actor[-1]).weight
        seen: dict[str, Tensor] = {}
        if IMAGES in self.encoder.keys:
            images = torch.as_tensor(read_observation(env_obs, IMAGES, "dsrl"))
            seen[IMAGES] = resize(images, self.config.image_size).to(like.device, copy=True)
        if STATES in self.encoder.keys:
            states = cast("nn.Linear", cast("nn.Sequential", self.encoder.parts[STATES])[0])
            seen[STATES] = read_states(env_obs, states.in_features, "dsrl", like)
        return seen
