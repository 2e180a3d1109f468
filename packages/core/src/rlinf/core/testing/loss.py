"""The contract of losses, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rlinf.core.data import Batch, LossOutput, Rescored
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.metrics import Statistic, means, merge
from rlinf.core.protocols import Loss
from rlinf.core.testing.checks import run_checks
from rlinf.core.testing.samples import AsArray, random_batch, same


@dataclass(kw_only=True)
class LossContract:
    """Examines a loss that is differentiated as torch does it: `total.backward()`, then `grad`.

        LossContract(loss=PPOClip(), as_array=torch.as_tensor).run()

    Attributes:
        loss: what is examined.
        as_array: makes of a NumPy array what the loss works on.
        chunk: what follows B and T in a log-probability: (), (K,) or (K, A).
        tolerance: the largest difference between results that must agree.
    """

    loss: Loss
    as_array: AsArray
    chunk: tuple[int, ...] = ()
    tolerance: float = 1e-4

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """The sentences that hold, all of them, each told to `report` at once; a ContractError says which doesn't, and why."""
        return run_checks(self, CHECKS, report)

    def case(self, rows: int = 6, horizon: int = 4) -> Case:
        """A batch, and what a policy might say of it."""
        batch = random_batch(rows, horizon, as_array=self.as_array)
        random = np.random.default_rng(11)
        shape = (rows, horizon, *self.chunk)
        old = random.standard_normal(shape, dtype=np.float32)
        logprob = old + 0.3 * random.standard_normal(shape, dtype=np.float32)
        batch = replace(batch, trajectory=replace(batch.trajectory, logprob=self.as_array(old)))
        value, entropy = random.standard_normal((2, rows, horizon), dtype=np.float32)
        return Case(batch, logprob, value, entropy)

    def judge(self, case: Case) -> Verdict:
        """What the loss says of a case, and its gradients."""
        leaves = [self.as_array(x.copy()).requires_grad_() for x in (case.logprob, case.value, case.entropy)]
        logprob, value, entropy = leaves
        output = self.loss(case.batch, Rescored(logprob=logprob, value=value, entropy=entropy))
        output.total.backward()
        return Verdict(output, [np.zeros(x.shape) if x.grad is None else as_numpy(x.grad) for x in leaves])


@dataclass(frozen=True, slots=True)
class Case:
    """One input of a loss."""

    batch: Batch[Any]
    logprob: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    entropy: np.ndarray[Any, Any]

    def rows(self, contract: LossContract, index: np.ndarray[Any, Any]) -> Case:
        """Some rows of it."""
        key = contract.as_array(index)
        return Case(self.batch.rows(key), self.logprob[index], self.value[index], self.entropy[index])


@dataclass(frozen=True, slots=True)
class Verdict:
    """One output of a loss, with its gradients with respect to log-probability, value and entropy."""

    output: LossOutput[Any]
    gradients: list[np.ndarray[Any, Any]]

    @property
    def total(self) -> float:
        """The sum of losses."""
        return float(as_numpy(self.output.total))

    @property
    def weight(self) -> float:
        """The sum of weights."""
        return float(as_numpy(self.output.weight))


def _sums(contract: LossContract) -> None:
    verdict = contract.judge(contract.case())
    for name, number in (("total", verdict.output.total), ("weight", verdict.output.weight)):
        if tuple(number.shape) != ():
            raise ContractError(f"LossOutput.{name}", f"expected a scalar [], found {tuple(number.shape)}")
    if not (np.isfinite(verdict.total) and verdict.weight > 0):
        found = f"found {verdict.total:g} and {verdict.weight:g}"
        raise ContractError("LossOutput", f"expected a finite total and a positive weight, {found}")
    if not any(np.any(gradient) for gradient in verdict.gradients):
        raise ContractError("LossOutput.total", "expected a gradient with respect to the evaluation, found none")
    for name, metric in verdict.output.metrics.items():
        if not isinstance(metric, Statistic):
            raise ContractError(f"LossOutput.metrics.{name}", f"expected a Statistic such as Metric, found {type(metric).__name__}")


def _split(contract: LossContract) -> None:
    case = contract.case()
    whole = contract.judge(case)
    for sizes in ([1, 5], [2, 2, 2], [1] * 6):
        parts = [contract.judge(case.rows(contract, index)) for index in np.split(np.arange(6), np.cumsum(sizes)[:-1])]
        same("LossOutput.total, split", whole.total, sum(part.total for part in parts), contract.tolerance)
        same("LossOutput.weight, split", whole.weight, sum(part.weight for part in parts), contract.tolerance)
        for i, name in enumerate(("logprob", "value", "entropy")):
            found = np.concatenate([part.gradients[i] for part in parts])
            same(f"gradient of {name}, split", whole.gradients[i], found, contract.tolerance)
        expected, merged = means(whole.output.metrics), means(merge(part.output.metrics for part in parts))
        for name in expected:
            same(f"LossOutput.metrics.{name}, split", expected[name], merged[name], contract.tolerance)


def _masked(contract: LossContract) -> None:
    case = contract.case()
    outside = ~as_numpy(case.batch.trajectory.mask)
    noisy = Case(case.batch, case.logprob.copy(), case.value.copy(), case.entropy.copy())
    for array in (noisy.logprob, noisy.value, noisy.entropy):
        # Large, so that even a small weight of it shows.
        array[outside] = 1e3
    expected, found = contract.judge(case), contract.judge(noisy)
    same("LossOutput.total, with noise where masked", expected.total, found.total, contract.tolerance)
    for i, name in enumerate(("logprob", "value", "entropy")):
        if np.any(found.gradients[i][outside] != 0):
            raise ContractError(f"gradient of {name}", "expected 0 where masked, found something else")


def _permutation(contract: LossContract) -> None:
    case = contract.case()
    order = np.ascontiguousarray(np.arange(6)[::-1])
    expected, found = contract.judge(case), contract.judge(case.rows(contract, order))
    same("LossOutput.total after permuting rows", expected.total, found.total, contract.tolerance)
    for i, name in enumerate(("logprob", "value", "entropy")):
        same(f"gradient of {name} after permuting rows", expected.gradients[i][order], found.gradients[i], contract.tolerance)


def _nothing(contract: LossContract) -> None:
    case = contract.case()
    trajectory = replace(case.batch.trajectory, mask=case.batch.trajectory.mask & False)
    empty = contract.judge(replace(case, batch=replace(case.batch, trajectory=trajectory)))
    if empty.total != 0 or empty.weight != 0:
        raise ContractError("LossOutput", f"expected 0 and 0 where everything is masked, found {empty.total} and {empty.weight}")


CHECKS: Final[dict[str, Callable[[LossContract], None]]] = {
    "total and weight are finite sums with a gradient": _sums,
    "the split into micro-batches changes nothing": _split,
    "a masked decision changes nothing": _masked,
    "the order of rows changes nothing": _permutation,
    "a batch without decisions weighs nothing": _nothing,
}
