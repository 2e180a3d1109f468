"""The policy that is examined, and how every line of the contract asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlinf.core.data import Batch, Decision, EnvSpec, Trajectory
from rlinf.core.data.arrays import as_numpy
from rlinf.core.protocols import Policy
from rlinf.core.testing.samples import AsArray

ROWS, STEPS = 5, 3
"""What is decided at once, and how often in a row, unless a check says otherwise."""

_TEXTS = ("pick up the red block", "open the drawer", "put the bowl on the plate and close the door of the microwave")


@runtime_checkable
class Module(Protocol):
    """What a module of torch has, and all that is asked of one here."""

    training: bool

    def train(self, mode: bool = True) -> Any:
        """Changes the module's mode."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters, by name."""
        ...


@dataclass(kw_only=True)
class PolicySubject:
    """A policy, and the environment and the library that it works with.

    Attributes:
        policy: what is examined.
        spec: the environment that it was built for.
        as_array: makes of a NumPy array what the policy is trained on.
        generator: makes a source of randomness from a seed.
        tolerance: the largest difference between log-probabilities, or values, that must agree; 1e-5 is for float32, and
            whoever computes in bfloat16 says what to expect of it.
    """

    policy: Policy
    spec: EnvSpec
    as_array: AsArray
    generator: Callable[[int], Any]
    tolerance: float = 1e-5
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5), init=False, repr=False)

    def observation(self, rows: int = ROWS) -> dict[str, Any]:
        """A random observation, each leaf `[rows, *]`, NumPy."""
        return {key: self._leaf((rows, *array.shape), array.dtype) for key, array in self.spec.observation.items()}

    def _leaf(self, shape: tuple[int, ...], dtype: str) -> Any:
        kind = np.dtype(dtype)
        if kind.kind == "U":
            return self._random.choice(_TEXTS, size=shape).astype(kind)
        if np.issubdtype(kind, np.integer):
            return self._random.integers(0, 256 if dtype == "uint8" else 2, size=shape).astype(kind)
        return self._random.standard_normal(shape).astype(kind)

    def decide(self, observation: Mapping[str, Any], seed: int = 0, *, train: bool = True) -> Decision[Any]:
        """A decision whose randomness comes from `seed`."""
        return self.policy.predict_action_batch(observation, "train" if train else "eval", generator=self.generator(seed))

    def batch(self, decisions: Sequence[Decision[Any]]) -> Batch[Any]:
        """Decisions of consecutive steps as a batch, each field `[B, T, …]`."""
        trajectory = Trajectory.of_decisions(decisions)
        return Batch.of(trajectory.map(lambda leaf: self.as_array(as_numpy(leaf))))

    def modes(self) -> Iterator[bool]:
        """Puts the module into each of its modes, and back into the one that it was in; once if it is none."""
        module: Any = self.policy
        if not isinstance(module, Module):
            yield False
            return
        before = module.training
        try:
            for training in (True, False):
                module.train(training)
                yield training
        finally:
            module.train(before)
