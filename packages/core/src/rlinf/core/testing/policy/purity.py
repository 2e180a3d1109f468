"""Lines of the policy contract: a decision depends on its arguments and the weights, and on nothing else."""

from __future__ import annotations

import numpy as np

from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ContractError, RLinfError
from rlinf.core.testing.policy.subject import PolicySubject
from rlinf.core.testing.samples import same


def no_graph(subject: PolicySubject) -> None:
    """A decision holds no graph."""
    decision = subject.decide(subject.observation())
    fields = [(f"Decision.{name}", getattr(decision, name)) for name in ("action", "logprob", "value")]
    for place, array in fields + [(f"Decision.context.{path}", leaf) for path, leaf in tree_leaves(decision.context)]:
        if array is not None and getattr(array, "requires_grad", False):
            raise ContractError(place, "expected no graph, found one that keeps memory alive")


def seeds(subject: PolicySubject) -> None:
    """The same seed decides the same, another seed something else."""
    observation = subject.observation()
    one, again, other = (as_numpy(subject.decide(observation, seed).action) for seed in (1, 1, 2))
    same("Decision.action from the same seed", one, again, 0.0)
    if np.array_equal(one, other):
        raise ContractError("Decision.action", "expected another action from another seed, found the same")


def mode(subject: PolicySubject) -> None:
    """Mode "eval" uses no randomness."""
    observation = subject.observation()
    one, other = (subject.decide(observation, seed, train=False).action for seed in (1, 2))
    same("Decision.action in mode 'eval' from two seeds", one, other, 0.0)


def rows(subject: PolicySubject) -> None:
    """A row does not depend on its neighbours."""
    observation = subject.observation()
    together = subject.decide(observation, train=False)
    for row in range(len(together.action)):
        one = slice(row, row + 1)
        alone = subject.decide({key: leaf[one] for key, leaf in observation.items()}, train=False)
        same(f"Decision.action of row {row} alone", together.action[one], alone.action, subject.tolerance)


def no_state(subject: PolicySubject) -> None:
    """Nothing is remembered from one call to the next."""
    first, second = subject.observation(), subject.observation(3)
    for train in (True, False):
        before = subject.decide(first, 1, train=train)
        subject.policy.default_forward(subject.batch([subject.decide(second, 2), subject.decide(second, 3, train=False)]))
        after = subject.decide(first, 1, train=train)
        for name in ("action", "logprob"):
            same(f"Decision.{name} of the same call after others", getattr(before, name), getattr(after, name), 0.0)


def not_finite(subject: PolicySubject) -> None:
    """Not-a-numbers don't become actions: whoever meets one refuses it, or decides as if it were not there."""
    clean = subject.observation()
    expected = subject.decide(clean, 1).action
    for key, leaf in clean.items():
        if leaf.dtype.kind != "f" or leaf[0].size == 0:
            continue
        spoilt = leaf.copy()
        spoilt.reshape(len(leaf), -1)[1, 0] = np.nan
        try:
            found = subject.decide({**clean, key: spoilt}, 1).action
        except RLinfError:
            continue
        same(f"Decision.action with a not-a-number in row 1 of '{key}', which was not refused", expected, found, 0.0)


def own_memory(subject: PolicySubject) -> None:
    """An observation is neither changed nor kept."""
    observation = subject.observation()
    before = {key: leaf.copy() for key, leaf in observation.items()}
    decision = subject.decide(observation)
    for key, leaf in observation.items():
        if not np.array_equal(before[key], leaf):
            raise ContractError(f"env_obs.{key}", "expected to be left as it was, found it changed")
    # `as_numpy` may share the memory of the tensor.
    kept = [(path, as_numpy(leaf).copy()) for path, leaf in tree_leaves(decision.context)]
    for leaf in observation.values():
        leaf[...] = np.zeros((), leaf.dtype)
    for (path, old), (_, new) in zip(kept, tree_leaves(decision.context), strict=True):
        if not np.array_equal(old, as_numpy(new)):
            raise ContractError(f"Decision.context.{path}", "expected a copy, found the memory of the observation")
