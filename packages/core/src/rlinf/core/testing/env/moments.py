"""What an examined environment said, copied, and how two answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.core.data.arrays import as_numpy
from rlinf.core.data.tree import tree_leaves
from rlinf.core.errors import ContractError
from rlinf.core.testing.checks import expect


@dataclass(frozen=True, slots=True)
class Moment:
    """What one call said, copied, so that nothing that happens later can change it."""

    observation: dict[str, Any]
    reward: Any = None
    terminated: Any = None
    truncated: Any = None

    @classmethod
    def of(cls, answer: tuple[Any, ...]) -> Moment:
        """The copy of what `reset` or `step` returned."""
        observation = copied(answer[0])
        return cls(observation) if len(answer) == 2 else cls(observation, *(np.array(as_numpy(part)) for part in answer[1:4]))

    @property
    def done(self) -> Any:
        """`[N]` bool, which episodes ended with this step."""
        return self.terminated | self.truncated

    def row(self, index: int) -> bytes:
        """All that was said of one environment, to the bit."""
        parts = [array[index] for array in self.observation.values()]
        parts += [flags[index] for flags in (self.reward, self.terminated, self.truncated) if flags is not None]
        return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)

    def seen(self, index: int) -> bytes:
        """The observation of one environment, to the bit."""
        return b"".join(np.ascontiguousarray(array[index]).tobytes() for array in self.observation.values())


def copied(observation: Any) -> dict[str, Any]:
    """An observation as NumPy arrays of its own, by key."""
    return {key: np.array(as_numpy(leaf)) for key, leaf in tree_leaves(observation)}


def same(first: Any, second: Any) -> bool:
    """Whether two arrays agree in shape, type and every bit; a number that is none agrees with itself."""
    a, b = as_numpy(first), as_numpy(second)
    # The bytes of an array of objects are addresses.
    if a.dtype == object:
        return np.array_equal(a, b)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def first_only(count: int) -> Any:
    """The mask `[count]` of environment 0 alone."""
    mask = np.zeros(count, np.bool_)
    mask[0] = True
    return mask


def expect_same(first: Sequence[Moment], second: Sequence[Moment], place: str, problem: str) -> None:
    """Two sequences of answers must agree to the bit."""
    expect(len(first) == len(second), place, f"{problem}: {len(first) - 1} steps the first time, {len(second) - 1} the second")
    for step, (a, b) in enumerate(zip(first, second, strict=True)):
        for index in range(len(next(iter(a.observation.values())))):
            expect(a.row(index) == b.row(index), place, f"{problem}: environment {index} differs at step {step}")


def expect_error(call: Callable[[], object], place: str, wanted: str) -> None:
    """A call must fail, and say why."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - of any class, as long as it says something
        text = str(error)
        expect(bool(text.strip()), place, f"expected {wanted} that says something, found an empty {type(error).__name__}")
        return
    raise ContractError(place, f"expected {wanted}, found none")


@dataclass(slots=True)
class Episode:
    """The first episode of one environment after a reset of all."""

    observations: list[bytes]
    """Its observations, the one after the reset first."""
    answers: list[bytes]
    """All that was said at the reset and at each step."""
    terminated: bool = False
    truncated: bool = False

    @property
    def length(self) -> int:
        """Steps taken."""
        return len(self.observations) - 1

    @property
    def moves(self) -> bool:
        """Whether no observation but the last came twice, as in every world of real numbers."""
        return len(set(self.observations[:-1])) == self.length
