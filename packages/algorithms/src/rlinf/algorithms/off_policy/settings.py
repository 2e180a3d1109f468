"""What off-policy algorithms have in common: settings, which parameters a part trains, when a part is due, how targets move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf.algorithms.objectives.critic import Bootstrap
from rlinf.algorithms.objectives.rows import Aggregate
from rlinf.algorithms.objectives.targets import polyak, update_due
from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.data import ArraySpec
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import HasActor, HasReplayFeatures, HasStateValue, Judges

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticSettings:
    """The settings of critics of actions, of which a policy has several."""

    agg_q: Aggregate = "min"
    """How critics become one value, which is learned from."""
    bootstrap_type: Bootstrap = "standard"
    """"standard" bootstraps unless the task ended the episode; "always" bootstraps in either case, for tasks that continue after
    success."""
    huber_delta: float | None = None
    """Beyond which error the critics' loss is linear; null for the square alone."""

    def __post_init__(self) -> None:
        expect_range("huber_delta", self.huber_delta, 0.0, open_low=True)

    @property
    def judges(self) -> Judges:
        return "q_functions"

    def parameters(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCriticSettings(CriticSettings):
    """The same with target weights that follow after every update."""

    tau: float = 0.005
    """How far target weights go towards the weights."""

    def __post_init__(self) -> None:
        CriticSettings.__post_init__(self)
        check_targets(self.tau)

    def moved(self, target: Mapping[str, Any], online: Mapping[str, Any], update: int) -> Mapping[str, Any] | None:
        """θ̄ ← (1 − τ) θ̄ + τ θ after every update."""
        return moved(target, online, update, tau=self.tau, every=1)


def check_targets(tau: float, target_update_freq: int = 1) -> None:
    """Refuses targets that never move, or move beyond the weights.

    Raises:
        ConfigError: one of the two is out of range.
    """
    expect_range("tau", tau, 0.0, 1.0, open_low=True)
    expect_at_least("target_update_freq", target_update_freq, 1)


def apart(policy: Any) -> dict[str, Sequence[str]]:
    """The parameters of an actor and of all that is not the actor's, such as critics and the features that these learn.

    Frozen ones belong to neither.

    Raises:
        ConfigError: the policy does not tell them apart.
    """
    if not isinstance(policy, HasActor):
        found = f"{type(policy).__name__} does not say which parameters are its actor's"
        raise ConfigError("actor.model.model_type", found, "Choose mlp_policy or cnn_policy with num_q_heads.")
    actor = list(policy.actor_parameters())
    return {"critic": [name for name in learned(policy) if name not in actor], "actor": learned(policy, actor)}


def learned(policy: Any, names: Sequence[str] | None = None) -> list[str]:
    """Those of these parameters, or of all, that are not frozen, and make nothing that a replay buffer keeps."""
    asked: object = policy
    kept = set(asked.feature_parameters()) if isinstance(asked, HasReplayFeatures) else set[str]()
    free: list[str] = [name for name, parameter in policy.named_parameters() if parameter.requires_grad and name not in kept]
    return free if names is None else [name for name in names if name in free]


def parts_of(policy: Any, *, value: bool) -> dict[str, Sequence[str]]:
    """For recorded data: parameters of critics and what makes features, of the actor, and if asked of the value function alone.

    Args:
        policy: what is trained.
        value: whether there must be a value function, which is the part `value`; otherwise none is trained.

    Raises:
        ConfigError: the policy does not tell them apart, can't score recorded actions, or has no value function.
    """
    found = apart(policy)
    if not isinstance(policy, HasStateValue):
        problem = f"{type(policy).__name__} can't say how likely a recorded action is"
        raise ConfigError("actor.model.model_type", problem, "Choose mlp_policy or cnn_policy with num_q_heads.")
    values = list(policy.value_parameters())
    if value and not values:
        problem = "expected true, as a value function is learned, found false"
        raise ConfigError("actor.model.add_value_head", problem, "Set it to true.")
    found["critic"] = [name for name in found["critic"] if name not in values]
    return {"value": learned(policy, values), **found} if value else found


def moved(
    target: Mapping[str, Tensor], online: Mapping[str, Tensor], update: int, *, tau: float, every: int
) -> dict[str, Tensor] | None:
    """Target weights after an update, see `polyak`; None if they stay."""
    return polyak(target, online, tau=tau) if update_due(update, every=every) else None


def half_range(spec: ArraySpec, like: Tensor) -> tuple[Tensor, Tensor]:
    """Middle and half the width of the range of each action, `[A]`.

    Raises:
        ConfigError: actions have no finite bounds, or a number that can't be but one.
    """
    if spec.low is None or spec.high is None:
        raise ConfigError("algorithm.loss_type", "expected actions with bounds, found none", "Choose sac, or another environment.")
    low, high = (like.new_tensor(bound) for bound in (spec.low, spec.high))
    center, radius = (low + high) / 2, (high - low) / 2
    if not bool(radius.isfinite().all()):
        raise ConfigError("algorithm.loss_type", "expected finite bounds of actions", "Choose sac, or another environment.")
    if not bool((radius > 0).all()):
        fixed = int((radius <= 0).reshape(-1).nonzero()[0])
        found = f"found {float(low.reshape(-1)[fixed]):g} … {float(high.reshape(-1)[fixed]):g} for number {fixed}"
        problem = f"expected bounds of actions between which there is room, {found}"
        raise ConfigError("algorithm.loss_type", problem, "Choose sac, or an environment whose actions leave that number out.")
    return center, radius
