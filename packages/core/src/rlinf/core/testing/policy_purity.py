"""Lines of the policy contract: a decision depends on its arguments and the weights, and on nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlinf.core.arrays import as_numpy
from rlinf.core.errors import ContractError, RLinfError
from rlinf.core.testing.samples import same
from rlinf.core.tree import tree_leaves

if TYPE_CHECKING:
    from rlinf.core.testing.policy import PolicyContract


def no_graph(contract: PolicyContract) -> None:
    """A decision holds no graph."""
    decision = contract.decide(contract.observation())
    fields = [(f"Decision.{name}", getattr(decision, name)) for name in ("action", "logprob", "value")]
    for place, array in fields + [(f"Decision.context.{path}", leaf) for path, leaf in tree_leaves(decision.context)]:
        if array is not None and getattr(array, "requires_grad", False):
            raise ContractError(place, "expected no graph, found one that keeps memory alive")


def seeds(contract: PolicyContract) -> None:
    """The same seed decides the same, another seed something else."""
    observation = contract.observation()
    one, again, other = (as_numpy(contract.decide(observation, seed).action) for seed in (1, 1, 2))
    same("Decision.action from the same seed", one, again, 0.0)
    if np.array_equal(one, other):
        raise ContractError("Decision.action", "expected another action from another seed, found the same")


def mode(contract: PolicyContract) -> None:
    """Mode "eval" uses no randomness."""
    observation = contract.observation()
    one, other = (contract.decide(observation, seed, train=False).action for seed in (1, 2))
    same("Decision.action in mode 'eval' from two seeds", one, other, 0.0)


def rows(contract: PolicyContract) -> None:
    """A row does not depend on its neighbours."""
    observation = contract.observation()
    together = contract.decide(observation, train=False)
    for row in range(len(together.action)):
        one = slice(row, row + 1)
        alone = contract.decide({key: leaf[one] for key, leaf in observation.items()}, train=False)
        same(f"Decision.action of row {row} alone", together.action[one], alone.action, contract.tolerance)


def no_state(contract: PolicyContract) -> None:
    """Nothing is remembered from one call to the next."""
    first, second = contract.observation(), contract.observation(3)
    for train in (True, False):
        before = contract.decide(first, 1, train=train)
        contract.policy.default_forward(contract.batch([contract.decide(second, 2), contract.decide(second, 3, train=False)]))
        after = contract.decide(first, 1, train=train)
        for name in ("action", "logprob"):
            same(f"Decision.{name} of the same call after others", getattr(before, name), getattr(after, name), 0.0)


def not_finite(contract: PolicyContract) -> None:
    """Not-a-numbers don't become actions: whoever meets one refuses it, or decides as if it were not there."""
    clean = contract.observation()
    expected = contract.decide(clean, 1).action
    for key, leaf in clean.items():
        if leaf.dtype.kind != "f" or leaf[0].size == 0:
            continue
        spoilt = leaf.copy()
        spoilt.reshape(len(leaf), -1)[1, 0] = np.nan
        try:
            found = contract.decide({**clean, key: spoilt}, 1).action
        except RLinfError:
            continue
        same(f"Decision.action with a not-a-number in row 1 of '{key}', which was not refused", expected, found, 0.0)


def own_memory(contract: PolicyContract) -> None:
    """An observation is neither changed nor kept."""
    observation = contract.observation()
    before = {key: leaf.copy() for key, leaf in observation.items()}
    decision = contract.decide(observation)
    for key, leaf in observation.items():
        if not np.array_equal(before[key], leaf):
            raise ContractError(f"env_obs.{key}", "expected to be left as it was, found it changed")
    kept = [(path, as_numpy(leaf).copy()) for path, leaf in tree_leaves(decision.context)]
    for leaf in observation.values():
        leaf[...] = np.zeros((), leaf.dtype)
    for (path, old), (_, new) in zip(kept, tree_leaves(decision.context), strict=True):
        if not np.array_equal(old, as_numpy(new)):
            raise ContractError(f"Decision.context.{path}", "expected a copy, found the memory of the observation")
