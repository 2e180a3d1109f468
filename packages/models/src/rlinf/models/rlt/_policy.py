"""The policy that changes what another one proposes.

observation ─▶ frozen base ─┬▶ features ─▶ token z ─┬▶ actor f(z, s, ã) ─▶ a = clip(ã + ρ tanh(f), bounds)
                            └▶ proposal ã ──────────┘
              states s ─▶ actor, critics Q(z, s, a)
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf.core.data import EnvSpec, LossOutput, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import Tree
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.metrics import Metric
from rlinf.core.off_policy import HasPrefixFeatures
from rlinf.models.actor_config import STATES, finite_bounds
from rlinf.models.base import BasePolicy
from rlinf.models.layers.action_distribution import ActionDistribution
from rlinf.models.observations.reading import read_states
from rlinf.models.precision import at_least_float32
from rlinf.models.rlt.policy import IMITATED, REFERENCE, TEXTS, TOKEN, RLTPolicyConfig
from rlinf.models.rlt.token import RLToken
from rlinf.models.small.actor_critic import Context, QFunctions, make_q_head

_TASKS: Final = "task_descriptions"
_LONGEST: Final = 256
"""Characters of a text that is kept."""


class RLTPolicy(QFunctions):
    """Decides by changing what a frozen vision-language-action policy proposes.

    The actor's last layer begins with zeros, so that the policy begins as its base. It takes observations of the environment, of
    which the base is asked, or what it made of them before (`HasReplayFeatures`).

    Args:
        config: the hyper-parameters.
        spec: the environment.
        base: a `HasPrefixFeatures` policy; its weights are frozen.

    Raises:
        ConfigError: the base proposes nothing, or actions have no bounds.
    """

    center: Tensor
    radius: Tensor

    def __init__(self, config: RLTPolicyConfig, spec: EnvSpec, base: BasePolicy) -> None:
        super().__init__()
        if not isinstance(base, HasPrefixFeatures):
            raise ConfigError("rlt.base", f"a {type(base).__name__} shows no features of its prefix", "Choose pi0 or pi05.")
        self.config = config
        self.chunk = (config.num_action_chunks, spec.action.shape[0])
        self.state_size = spec.observation[STATES].shape[0] if STATES in spec.observation else 0
        self.base = cast("Any", base).requires_grad_(False)
        self.token = RLToken(base.prefix_width, config.token_size, config.token_queries, config.token_width)
        self.distribution = ActionDistribution(config, spec.action, "rlt")
        low, high = _bounds(spec)
        # What actions are made of travels with the weights.
        self.register_buffer("center", 0.5 * (low + high))
        self.register_buffer("radius", 0.5 * (high - low))
        known, actions = config.token_size + self.state_size, self.distribution.size
        self.actor = _perceptron((known + actions, *config.hidden_sizes, self.distribution.outputs))
        self.log_std = self.distribution.free_log_std()
        self.q_head = make_q_head(config, known, actions)

    def feature_parameters(self) -> list[str]:
        return [name for name, _ in self.named_parameters() if name.partition(".")[0] in ("base", "token")]

    def replay_features(self, rows: Trajectory[Any]) -> Mapping[str, NDArray[Any]]:
        """See `rlinf.core.off_policy.HasReplayFeatures`; where somebody intervened, what they did is to be imitated.

        What was decided on is in the context of the decisions. The base is asked about what followed the last one of a row alone,
        where the task had not ended.
        """
        context = cast("Mapping[str, Any]", rows.context)
        kept = {key: _with_last(as_numpy(context[key])) for key in self._kept}
        length = np.count_nonzero(as_numpy(rows.mask), axis=1)
        last = np.arange(len(rows)), np.maximum(length - 1, 0)
        going = np.flatnonzero((length > 0) & ~np.asarray(as_numpy(rows.terminated), np.bool_)[last])
        if len(going):
            at = going, length[going]
            shown = {key: leaf[at] for key, leaf in cast("Mapping[str, Any]", rows.observation).items()}
            if TEXTS in context:
                # Rows have observations in numbers alone. What a task asks for stays the same in an episode.
                shown[_TASKS] = _texts(as_numpy(context[TEXTS])[going, length[going] - 1])
            seen = self._context(shown)
            for key, column in kept.items():
                column[at] = as_numpy(seen[key])
        imitated = kept[REFERENCE].copy()
        if rows.intervened is not None:
            acted = np.asarray(as_numpy(rows.intervened), np.bool_)
            imitated[:, :-1][acted] = as_numpy(rows.action)[acted]
        return {**kept, IMITATED: imitated}

    def without_reference(self, env_obs: Tree[Any], hidden: Any) -> dict[str, Any]:
        """The middle of the range in place of the proposal, where `hidden` `[B]`; see `off_policy.HasReferenceAction`."""
        seen = {**self._context(env_obs), IMITATED: self.imitated_action(env_obs)}
        told = torch.where(torch.as_tensor(hidden)[:, None, None], self.center.expand_as(seen[REFERENCE]), seen[REFERENCE])
        return {**seen, REFERENCE: told}

    def imitated_action(self, env_obs: Tree[Any]) -> Tensor:
        seen = cast("Mapping[str, Any]", env_obs)
        found = seen[IMITATED] if IMITATED in seen else self._context(env_obs)[REFERENCE]
        return torch.as_tensor(found).to(self._like)

    def sft_loss(
        self, env_obs: Tree[Any], action: Any, *, mask: Any = None, generator: torch.Generator | None = None
    ) -> LossOutput[Tensor]:
        """How much of the base's features the token loses; see `RLToken`. What was demonstrated is the base's affair.

        Args:
            env_obs: observations.
            action: unused.
            mask: `[B, K]` bool; examples of which no step counts don't. All count if None.
            generator: unused, nothing is drawn.
        """
        found = self.base.propose(env_obs)
        lost = self.token.reconstruction(found.features, found.valid)
        counts = torch.ones_like(lost) if mask is None else torch.as_tensor(mask).any(1).to(lost)
        total, weight = (lost * counts).sum(), counts.sum()
        return LossOutput(total=total, weight=weight, metrics={"sft_loss": Metric(total.item(), weight.item())})

    @property
    def _kept(self) -> tuple[str, ...]:
        return (TOKEN, STATES, REFERENCE) if self.state_size else (TOKEN, REFERENCE)

    @property
    def _like(self) -> Tensor:
        return cast("nn.Linear", self.actor[0]).weight

    def _context(self, env_obs: Tree[Any]) -> dict[str, Tensor]:
        like, shown = self._like, cast("Mapping[str, Any]", env_obs if isinstance(env_obs, Mapping) else {})
        if TOKEN in shown:
            return {key: torch.as_tensor(shown[key]).to(like) for key in self._kept}
        with torch.no_grad():
            found = self.base.propose(env_obs)
            reference = at_least_float32(found.action[:, : self.chunk[0]]).to(like)
            if reference.shape[1] < self.chunk[0]:
                problem = f"the base proposes {reference.shape[1]} steps, expected {self.chunk[0]}"
                raise ShapeError("rlt(env_obs)", problem, "Lower num_action_chunks.")
            low, high = self.center - self.radius, self.center + self.radius
            context = {TOKEN: self.token(found.features, found.valid).to(like), REFERENCE: reference.clamp(low, high)}
        if _TASKS in shown:
            context[TEXTS] = _code_points(shown[_TASKS]).to(like.device)
        if self.state_size:
            context[STATES] = read_states(shown, self.state_size, "rlt", like)
        return context

    def _features(self, context: Context) -> Tensor:
        """`[*, Z + S + K · A]`: what critics know, and the proposal in units of its range."""
        known = [context[key] for key in (TOKEN, STATES) if key in context]
        return torch.cat([*known, self.distribution.unit(context[REFERENCE])], -1).to(self._like)

    def _output(self, features: Tensor) -> Tensor:
        """The mean `[*, K · A]` in the units of the environment, and what else the distribution needs."""
        size = self.distribution.size
        said: Tensor = self.actor(features)
        unit = features[..., -size:] + self.config.max_change * said[..., :size].tanh()
        # The gradient passes the bounds, so that what was changed too far can come back.
        unit = unit + (unit.clamp(-1.0, 1.0) - unit).detach()
        steps = unit.reshape(*unit.shape[:-1], *self.chunk)
        return torch.cat([(self.center + self.radius * steps).flatten(-2), said[..., size:]], -1)

    def _value(self, features: Tensor) -> Tensor | None:
        return None

    def _judged_by_critics(self, env_obs: Tree[Any], action: Any) -> tuple[Tensor, Tensor]:
        features, unit = super()._judged_by_critics(env_obs, action)
        return features[..., : -self.distribution.size], unit


def _code_points(texts: Any) -> Tensor:
    """`[B, 256]` int32, texts as numbers, so that they can be kept with a decision; 0 behind their end.

    Raises:
        ShapeError: one is longer.
    """
    each = np.asarray(texts, np.str_)
    if each.dtype.itemsize > 4 * _LONGEST:
        found = f"expected texts of at most {_LONGEST} characters, found {each.dtype.itemsize // 4}"
        raise ShapeError(f"rlt(env_obs).{_TASKS}", found, "Say it shorter.")
    points = np.ascontiguousarray(each.astype(f"<U{_LONGEST}")).view(np.uint32).reshape(len(each), _LONGEST)
    return torch.from_numpy(points.astype(np.int32))  # pyright: ignore[reportUnknownMemberType]


def _texts(points: NDArray[Any]) -> NDArray[np.str_]:
    """What `_code_points` was given."""
    return np.ascontiguousarray(points.astype(np.uint32)).view(f"<U{_LONGEST}").reshape(len(points))


def _with_last(leaf: NDArray[Any]) -> NDArray[Any]:
    """`[B, T + 1, *]` of `[B, T, *]`, with zeros behind."""
    return np.concatenate([leaf, np.zeros_like(leaf[:, :1])], axis=1)


def _bounds(spec: EnvSpec) -> tuple[Tensor, Tensor]:
    bounds = finite_bounds(spec.action)
    if bounds is None or not (bounds[1] > bounds[0]).all():
        problem = "a proposal is changed within the bounds of actions, found none"
        raise ConfigError("rlt", problem, "Choose another environment.")
    return torch.as_tensor(bounds[0]), torch.as_tensor(bounds[1])


def _perceptron(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them, of which the last one begins with zeros."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    last = cast("nn.Linear", layers[-2])
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers[:-1])
