"""Lines of the policy contract: what is decided, and what is said of it later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlinf.core.data import Decision
from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ContractError
from rlinf.core.testing.policy.subject import PolicySubject
from rlinf.core.testing.samples import same

_SIZES = (5, 1, 3)


def shapes(subject: PolicySubject) -> None:
    """A decision has its shapes, its version, and finite numbers."""
    decision = subject.decide(subject.observation())
    rows, spec = decision.action.shape[0], subject.spec.action.shape
    action, logprob = tuple(decision.action.shape), tuple(decision.logprob.shape)
    # One number out of several (a `Discrete` space) has no axis A.
    if len(action) != 2 + len(spec) or (action[0], action[2:]) != (_SIZES[0], spec):
        raise ContractError("Decision.action", f"expected [B, K, A] = ({_SIZES[0]}, K, *{spec}), found {action}")
    if logprob not in (action[:1], action[:2], action):
        raise ContractError("Decision.logprob", f"expected {action[:1]}, {action[:2]} or {action}, found {logprob}")
    if decision.value is not None and tuple(decision.value.shape) != (rows,):
        raise ContractError("Decision.value", f"expected ({rows},), found {tuple(decision.value.shape)}")
    for path, leaf in tree_leaves(decision.context):
        if leaf.shape[0] != rows:
            raise ContractError(f"Decision.context.{path}", f"expected {rows} rows, found {tuple(leaf.shape)}")
    for name in ("action", "logprob", "value"):
        _finite(f"Decision.{name}", getattr(decision, name))
    if decision.version != subject.policy.version:
        raise ContractError("Decision.version", f"expected that of the policy, {subject.policy.version}, found {decision.version}")


def agreement(subject: PolicySubject) -> None:
    """What was sampled is scored the same, in both modes and for any number of rows."""
    for train in (True, False):
        for rows in _SIZES:
            decisions = [subject.decide(subject.observation(rows), seed, train=train) for seed in range(3)]
            _agrees(subject, decisions, f"mode '{'train' if train else 'eval'}', {rows} rows")


def module_modes(subject: PolicySubject) -> None:
    """What was decided in one mode of the module is scored the same in the other."""
    kept: list[tuple[bool, list[Decision[Any]]]] = []
    for training in subject.modes():
        kept.append((training, [subject.decide(subject.observation(), seed) for seed in range(2)]))
    for training in subject.modes():
        for decided, decisions in kept:
            words = [f".{'train' if mode else 'eval'}()" for mode in (decided, training)]
            _agrees(subject, decisions, f"decided in {words[0]}, scored in {words[1]}; is dropout on?")


def parts(subject: PolicySubject) -> None:
    """A batch is scored as its rows, one by one, are."""
    batch = subject.batch([subject.decide(subject.observation(), seed) for seed in range(3)])
    whole = subject.policy.default_forward(batch)
    for row in range(len(batch)):
        alone = subject.policy.default_forward(batch.rows(slice(row, row + 1)))
        for name in ("logprob", "entropy", "value"):
            one, other = getattr(whole, name), getattr(alone, name)
            if one is not None and other is not None:
                same(f"Rescored.{name} of row {row} alone", one[row : row + 1], other, subject.tolerance)


def no_rows(subject: PolicySubject) -> None:
    """No rows are decided and scored as some are, with 0 for B: a rank may be left without any."""
    batches: list[tuple[Decision[Any], Any]] = []
    for rows in (_SIZES[0], 0):
        decisions = [subject.decide(subject.observation(rows), seed) for seed in range(2)]
        batches.append((decisions[0], subject.policy.default_forward(subject.batch(decisions))))
    (some, some_scores), (none, none_scores) = batches
    pairs = [(f"Decision.{name}", getattr(some, name), getattr(none, name)) for name in ("action", "logprob", "value")]
    pairs += [
        (f"Rescored.{name}", getattr(some_scores, name), getattr(none_scores, name)) for name in ("logprob", "entropy", "value")
    ]
    context = dict(tree_leaves(none.context))
    pairs += [(f"Decision.context.{path}", leaf, context.get(path)) for path, leaf in tree_leaves(some.context)]
    for place, expected, found in pairs:
        wanted = None if expected is None else (0, *expected.shape[1:])
        shape = None if found is None else tuple(found.shape)
        if shape != wanted:
            raise ContractError(f"{place} of no rows", f"expected shape {wanted}, found {shape}")


def evaluation_shapes(subject: PolicySubject) -> None:
    """One entropy for each decision or for each of its parts, one value for each decision."""
    decisions = [subject.decide(subject.observation(), seed) for seed in range(3)]
    evaluation = subject.policy.default_forward(subject.batch(decisions))
    size = (_SIZES[0], len(decisions))
    action = (*size, *decisions[0].action.shape[1:])
    if evaluation.entropy is not None and tuple(evaluation.entropy.shape) not in (action[:2], action[:3], action):
        found = tuple(evaluation.entropy.shape)
        raise ContractError("Rescored.entropy", f"expected {action[:2]}, {action[:3]} or {action}, found {found}")
    if evaluation.value is not None and tuple(evaluation.value.shape) != size:
        raise ContractError("Rescored.value", f"expected {size}, found {tuple(evaluation.value.shape)}")
    for name in ("logprob", "entropy", "value"):
        _finite(f"Rescored.{name}", getattr(evaluation, name))


def _agrees(subject: PolicySubject, decisions: Sequence[Decision[Any]], circumstance: str) -> None:
    evaluation = subject.policy.default_forward(subject.batch(decisions))
    for name in ("logprob", "value"):
        kept = [getattr(decision, name) for decision in decisions]
        if kept[0] is None:
            continue
        expected = np.stack([as_numpy(part) for part in kept], axis=1)
        found = getattr(evaluation, name)
        if found is None:
            raise ContractError(f"Rescored.{name}", "expected what predict_action_batch gives too, found None")
        same(f"Rescored.{name} against Decision.{name} ({circumstance})", expected, found, subject.tolerance)


def _finite(place: str, array: Any) -> None:
    if array is not None and not np.isfinite(as_numpy(array)).all():
        raise ContractError(place, "expected finite numbers, found infinity or not a number")
