"""What algorithms for recorded data have in common: the parts of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf.algorithms.off_policy.settings import apart, learned
from rlinf.core.errors import ConfigError
from rlinf.core.off_policy import HasStateValue


def parts_of(policy: Any, *, value: bool) -> dict[str, Sequence[str]]:
    """The parameters of critics, with what makes features, of the actor, and if asked of the value function alone.

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
