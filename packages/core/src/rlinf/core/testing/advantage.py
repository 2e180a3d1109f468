"""The contract of advantages, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rlinf.core.data import Credit, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.protocols import Advantage
from rlinf.core.testing.checks import run_checks
from rlinf.core.testing.samples import AsArray, random_trajectory, same

_PATIENCE_S = 30.0


@dataclass(kw_only=True)
class AdvantageContract:
    """Examines an advantage.

        AdvantageContract(advantage=GAE(gamma=0.9), as_array=torch.as_tensor).run()

    Attributes:
        advantage: what is examined.
        as_array: makes of a NumPy array what the advantage works on.
        group_size: how many consecutive rows form a group.
        tolerance: the largest difference between results that must agree.
    """

    advantage: Advantage
    as_array: AsArray
    group_size: int = 1
    tolerance: float = 1e-5

    def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """The sentences that hold, all of them, each told to `report` at once; a ContractError says which doesn't, and why."""
        return run_checks(self, CHECKS, report)

    def trajectory(self, rows: int = 6, horizon: int = 4) -> Trajectory[Any]:
        """Rows of different lengths; half of them end, in both ways."""
        return random_trajectory(rows, horizon, as_array=self.as_array, group_size=self.group_size)


def _shapes(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    credit = contract.advantage(trajectory)
    for name, found in (("advantage", credit.advantage), ("target", credit.target)):
        if found is None:
            continue
        shape = tuple(found.shape)
        if shape != tuple(trajectory.reward.shape):
            raise ContractError(f"Credit.{name}", f"expected [B, T] = {tuple(trajectory.reward.shape)}, found {shape}")
        if not np.isfinite(as_numpy(found)).all():
            raise ContractError(f"Credit.{name}", "expected finite numbers, found infinity or not a number")


def _masked(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    outside = ~as_numpy(trajectory.mask)
    advantage = as_numpy(contract.advantage(trajectory).advantage)
    if np.any(advantage[outside] != 0):
        raise ContractError("Credit.advantage", f"expected 0 where masked, found {advantage[outside]}")


def _pure(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    before = trajectory.map(lambda leaf: as_numpy(leaf).copy())
    contract.advantage(trajectory)
    for name in ("reward", "value", "terminated", "truncated", "mask", "logprob"):
        if not np.array_equal(as_numpy(getattr(trajectory, name)), getattr(before, name)):
            raise ContractError(f"Trajectory.{name}", "expected to be left as it was, found it changed")


def _padding(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    longer = contract.trajectory(rows=1, horizon=trajectory.horizon + 3)
    # What is joined with a longer trajectory is padded.
    padded = Trajectory.concat([trajectory, longer]).rows(slice(0, len(trajectory)))
    expected, found = contract.advantage(trajectory), contract.advantage(padded)
    columns = as_numpy(found.advantage)[:, : trajectory.horizon]
    same("Credit.advantage after padding", expected.advantage, columns, contract.tolerance)


def _permutation(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    # Groups change places, and the members of each stay together.
    order = np.arange(len(trajectory)).reshape(-1, contract.group_size)[::-1].reshape(-1)
    index = contract.as_array(np.ascontiguousarray(order))
    expected = as_numpy(contract.advantage(trajectory).advantage)[order]
    found = contract.advantage(trajectory.rows(index)).advantage
    same("Credit.advantage after permuting rows", expected, found, contract.tolerance)


def _ranks(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    expected = contract.advantage(trajectory).advantage
    first, second = trajectory.split(2)
    credits = _on_two_ranks(contract.advantage, first, second)
    found = np.concatenate([as_numpy(credit.advantage) for credit in credits])
    same("Credit.advantage over two ranks", expected, found, contract.tolerance)


def _nothing(contract: AdvantageContract) -> None:
    trajectory = contract.trajectory()
    empty = replace(trajectory, mask=trajectory.mask & False)
    advantage = as_numpy(contract.advantage(empty).advantage)
    if np.any(advantage != 0):
        raise ContractError("Credit.advantage", f"expected 0 where everything is masked, found {advantage}")


def _on_two_ranks(advantage: Advantage, *parts: Trajectory[Any]) -> list[Credit[Any]]:
    """Runs each part in a thread of its own; `all_reduce` adds what both hand in."""
    barrier = threading.Barrier(len(parts), timeout=_PATIENCE_S)
    handed: list[Any] = [None] * len(parts)
    results: list[Credit[Any] | Exception | None] = [None] * len(parts)

    def run(rank: int) -> None:
        def all_reduce(value: Any) -> Any:
            handed[rank] = value
            barrier.wait()
            if any(other is None for other in handed):
                raise ContractError("Advantage(all_reduce)", "expected the same number of calls on every rank, found fewer on one")
            # What was handed in is cleared only when both ranks have added it up.
            total = sum(handed[1:], start=handed[0] * 1)
            barrier.wait()
            handed[rank] = None
            return total

        try:
            # The wait behind it meets a rank that asks for one sum more, and finds this one's place empty.
            results[rank] = advantage(parts[rank], all_reduce=all_reduce)
            barrier.wait()
        except Exception as error:  # noqa: BLE001 - raised again by the thread that started this one
            results[rank] = error
            # The other rank would wait for all of its patience.
            barrier.abort()

    # A thread that waits for ever must not keep the process from ending.
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * _PATIENCE_S)
    errors = [result for result in results if isinstance(result, Exception)]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    credits = [result for result in results if isinstance(result, Credit)]
    if errors or len(credits) != len(parts):
        raise ContractError("Advantage(all_reduce)", "expected every rank to return, found one that waits for the other")
    return credits


CHECKS: Final[dict[str, Callable[[AdvantageContract], None]]] = {
    "credit is [B, T] and finite": _shapes,
    "a masked decision gets no advantage": _masked,
    "the trajectory is left as it was": _pure,
    "padding changes nothing": _padding,
    "the order of rows changes nothing": _permutation,
    "the split over ranks changes nothing": _ranks,
    "a trajectory without decisions gives zeros": _nothing,
}
