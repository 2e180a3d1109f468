"""Losses, advantages and rewards by name, for those who hold tensors and neither a `Batch` nor a `Trajectory`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from rlinf.algorithms.advantages.estimator import INPUT_NAMES as CREDIT_INPUTS
from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.compat.words import ALIASES, ARGUMENTS
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.policy_loss import INPUT_NAMES as LOSS_INPUTS
from rlinf.algorithms.losses.policy_loss import LossInputs, PolicyLoss
from rlinf.core.config import read
from rlinf.core.config.reading import field_names
from rlinf.core.data import Credit, LossOutput
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.metrics import means
from rlinf.core.registry import ADVANTAGES, LOSSES, REWARDS

if TYPE_CHECKING:
    from torch import Tensor


def get_policy_loss(name: str) -> Any:
    """The policy loss of that name, in any case: as a rule a frozen dataclass of its hyper-parameters.

    Raises:
        UnknownName: nobody registered it; the message has the nearest name.
    """
    return LOSSES.get(name, place="loss_type")


def get_adv_and_returns(name: str) -> Any:
    """The advantage of that name, in any case: as a rule a frozen dataclass of its hyper-parameters.

    Raises:
        UnknownName: nobody registered it; the message has the nearest name.
    """
    return ADVANTAGES.get(name, place="adv_type")


def get_reward_class(name: str) -> Any:
    """The reward of that name, in any case: as a rule a frozen dataclass of its hyper-parameters.

    Raises:
        UnknownName: nobody registered it; the message has the nearest name.
    """
    return REWARDS.get(name, place="reward_type")


def policy_loss(*, loss_type: str, **inputs: Any) -> tuple[Tensor, dict[str, float]]:
    """The mean loss of tensors and its metrics, by name.

        loss, metrics = policy_loss(
            loss_type="ppo_clip", logprob=…, logprob_old=…, advantage=…, mask=…, clip_ratio_high=0.28
        )

    Args:
        loss_type: a registered policy loss, in any case.
        inputs: tensors by the names of `LossInputs` (or those of `compat.ALIASES`) and the loss's hyper-parameters. A function
            that was registered is called with them as they are, and returns a `LossOutput` or a pair.

    Returns:
        Σ total / Σ weight, `[]`, 0 where nothing has weight; and the mean of each metric.

    Raises:
        UnknownName: nobody registered the loss; the message has the nearest name.
        ConfigError: an argument is missing, given twice or unknown; the message names it, and the nearest that there is.
        ShapeError: a tensor that the loss needs is missing, or has another shape.
    """
    item = get_policy_loss(loss_type)
    place = f"policy_loss({loss_type})"
    if not _is_a(item, PolicyLoss):
        return _mean(_called(item, inputs, place))
    tensors, params = _sorted_out(LOSS_INPUTS, field_names(item), inputs, place)
    if "mask" not in tensors:
        raise ConfigError(f"{place}.mask", "missing", "Pass a bool tensor [B, T].")
    loss = read(cast("type[PolicyLoss]", item), params, place=place)
    return _mean(loss.of(LossInputs(**tensors)))


def calculate_adv_and_returns(*, adv_type: str, **inputs: Any) -> tuple[Tensor, Tensor | None]:
    """Advantages and value targets of tensors, by name.

        advantage, target = calculate_adv_and_returns(adv_type="gae", reward=…, value=…, terminated=…, truncated=…, gamma=0.99)

    Args:
        adv_type: a registered advantage, in any case.
        inputs: tensors by the names of `CreditInputs` (or those of `compat.ALIASES`), the estimator's hyper-parameters, and
            `all_reduce`. A function that was registered is called with them as they are, and returns a `Credit` or a pair.

    Returns:
        Each `[B, T]`; no targets (None) without a critic. Errors are as of `policy_loss`.
    """
    item = get_adv_and_returns(adv_type)
    place = f"calculate_adv_and_returns({adv_type})"
    if not _is_a(item, Estimator):
        return _pair(_called(item, inputs, place))
    tensors, params = _sorted_out((*CREDIT_INPUTS, "all_reduce"), field_names(item), inputs, place)
    all_reduce = tensors.pop("all_reduce", None)
    estimator = read(cast("type[Estimator]", item), params, place=place)
    return estimator.normalized(CreditInputs(**tensors), all_reduce=all_reduce)


def _is_a(item: object, base: type[Any]) -> bool:
    return isinstance(item, type) and issubclass(item, base)


def _sorted_out(
    tensors: Sequence[str], params: Sequence[str], inputs: Mapping[str, Any], place: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that are tensors and those that are hyper-parameters, under our names; any other is refused."""
    known = {*tensors, *params}
    found: dict[str, Any] = {}
    for given, value in inputs.items():
        # Our own names come first: a loss from elsewhere may have a parameter that is another system's word for something else.
        name = given if given in known else ALIASES.get(given, given)
        if name not in known:
            hint = ARGUMENTS.get(given) or did_you_mean(given, sorted(known))
            raise ConfigError(f"{place}.{given}", "unknown argument", hint)
        if name in found:
            raise ConfigError(f"{place}.{name}", "given twice, under two names", f"Pass '{name}' alone.")
        found[name] = value
    return {k: v for k, v in found.items() if k in tensors}, {k: v for k, v in found.items() if k not in tensors}


def _called(item: Callable[..., Any], inputs: Mapping[str, Any], place: str) -> Any:
    """What a function from elsewhere makes of keyword arguments: only those that it knows, and all that it needs."""
    if isinstance(item, type):
        raise ConfigError(
            place, f"{item.__qualname__} does not work on tensors", "Subclass PolicyLoss, or Estimator for an advantage."
        )
    parameters = {p.name: p for p in inspect.signature(item).parameters.values() if p.kind in _BY_NAME}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(item).parameters.values())
    for given in inputs:
        if given not in parameters and not open_ended:
            raise ConfigError(f"{place}.{given}", "unknown argument", did_you_mean(given, sorted(parameters)))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in inputs:
            raise ConfigError(f"{place}.{name}", "missing", f"{getattr(item, '__qualname__', item)} needs it.")
    return item(**inputs)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _mean(found: LossOutput[Tensor] | tuple[Tensor, dict[str, float]]) -> tuple[Tensor, dict[str, float]]:
    """The loss and its metrics; what a registered function returns as such a pair is passed on."""
    if not isinstance(found, LossOutput):
        return found
    return found.total / torch.where(found.weight == 0, 1.0, found.weight), means(found.metrics)


def _pair(found: Credit[Tensor] | tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    return (found.advantage, found.target) if isinstance(found, Credit) else found
