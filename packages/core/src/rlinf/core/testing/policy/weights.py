"""Lines of the policy contract: weights that travel."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf.core.data import Weights
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError, WeightSyncError
from rlinf.core.testing.policy.subject import PolicySubject
from rlinf.core.testing.samples import same


def round_trip(subject: PolicySubject) -> None:
    """Other weights decide otherwise; the old ones, loaded back, decide as before to the bit. Names come sorted."""
    policy, observation = subject.policy, subject.observation()
    tensors = policy.weights().tensors
    if list(tensors) != sorted(tensors):
        raise ContractError("weights()", "expected sorted names, found another order", "Sort them: every rank must agree.")
    old = Weights(tensors={name: tensor.clone() for name, tensor in tensors.items()}, version=policy.version)
    before = subject.decide(observation, 1)
    try:
        policy.load(Weights(tensors={name: _moved(tensor) for name, tensor in old.tensors.items()}, version=old.version + 7))
        other = subject.decide(observation, 1)
    finally:
        policy.load(old)
    if other.version != old.version + 7:
        raise ContractError("load(weights)", f"expected to take over version {old.version + 7}, found {other.version}")
    if all(np.array_equal(as_numpy(getattr(before, name)), as_numpy(getattr(other, name))) for name in ("action", "logprob")):
        raise ContractError("load(weights)", "expected other decisions from other weights, found the same", "Are all in weights()?")
    after = subject.decide(observation, 1)
    for name in ("action", "logprob"):
        same(f"Decision.{name} after the weights came back", getattr(before, name), getattr(after, name), 0.0)


def misfit(subject: PolicySubject) -> None:
    """A missing name is refused, and nothing is changed."""
    policy = subject.policy
    old = {name: tensor.clone() for name, tensor in policy.weights().tensors.items()}
    # Other numbers, so that a load which stops in the middle shows.
    short = {name: _moved(tensor) for name, tensor in list(old.items())[1:]}
    try:
        policy.load(Weights(tensors=short, version=policy.version))
    except WeightSyncError:
        pass
    else:
        policy.load(Weights(tensors=old, version=policy.version))
        raise ContractError("load(weights)", f"expected a WeightSyncError for a missing '{next(iter(old))}', found none")
    now = policy.weights().tensors
    changed = [name for name, tensor in old.items() if not bool((now[name] == tensor).all())]
    if changed:
        policy.load(Weights(tensors=old, version=policy.version))
        raise ContractError("load(weights)", f"expected to change nothing when it refuses, found '{changed[0]}' changed")


def _moved(tensor: Any) -> Any:
    """Other numbers of the same kind: floats 10 % larger and a little more, the rest as it is."""
    return tensor * 1.1 + 0.01 if tensor.dtype.is_floating_point else tensor
