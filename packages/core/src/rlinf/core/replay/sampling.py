"""How a replay buffer is sampled: all transitions alike, or those more often that were predicted badly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError
from rlinf.core.replay.rings import Block
from rlinf.core.replay.sum_tree import SumTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which transitions are drawn, and what each then counts in the loss of the critics.

    pᵢ = |δᵢ| + ε,   P(i) = pᵢᵅ / Σⱼ pⱼᵅ,   wᵢ = (N P(i))⁻ᵝ / maxⱼ wⱼ   with the maximum over what was drawn together

    Schaul et al., "Prioritized Experience Replay" (2016), eq. 1–2, alg. 1, arXiv:1511.05952. A batch of B is drawn one from each of
    B equal parts of the sum (sec. 3.3 and B.2.1); a new transition has the largest p that was seen.
    """

    type: Literal["uniform", "prioritized"] = "uniform"
    """"uniform": each transition as likely as any other, all with weight 1. "prioritized": by the error of the critics when it was
    last drawn; all that follows is of this one."""
    alpha: float = 0.6
    """α, how much the error counts: 0 draws uniformly."""
    beta: float = 0.4
    """β at the start of the run, how much the weights undo the preference: 1 undoes it wholly."""
    final_beta: float = 1.0
    """β at the end of the run; in between it goes as a line over updates."""
    epsilon: float = 1e-6
    """ε, so that a transition without error is still drawn."""

    def __post_init__(self) -> None:
        expect_range("alpha", self.alpha, 0.0, 1.0)
        expect_range("beta", self.beta, 0.0, 1.0)
        expect_range("final_beta", self.final_beta, 0.0, 1.0)
        expect_range("epsilon", self.epsilon, 0.0, 1.0, open_low=True)
        given = [f.name for f in dataclasses.fields(self) if f.name != "type" and getattr(self, f.name) != f.default]
        if self.type == "uniform" and given:
            raise ConfigError(given[0], "only prioritized sampling reads it, found type 'uniform'", "Set type: prioritized.")

    def beta_at(self, progress: float) -> float:
        """β when the share `progress` of all updates is done, in [0, 1]; beyond it stays."""
        return self.beta + min(1.0, max(0.0, progress)) * (self.final_beta - self.beta)


class Priorities:
    """The priorities of the slots of a buffer; those that hold no transition have none, and are never drawn.

    Args:
        producers: how many rings there are, one behind the other.
        slots: of each.
        sampling: α and ε.
    """

    def __init__(self, producers: int, slots: int, sampling: Sampling) -> None:
        self._tree, self._sampling = SumTree(producers * slots), sampling
        self._slots, self._producers = slots, producers
        self._largest = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return self._tree.nbytes

    @property
    def largest(self) -> float:
        """The largest p that was seen; 1 before any."""
        return self._largest

    @property
    def powers(self) -> Floats:
        """`[slots]`, pᵅ of each; 0 where there is no transition."""
        return self._tree.values

    def restore(self, powers: Floats, largest: float) -> None:
        """Takes over what a checkpoint has."""
        self._tree.set_all(powers)
        self._largest = largest

    def write(self, slot: Ints, decided: NDArray[np.bool_]) -> None:
        """Slots `[n]` were written: those that hold a transition get the largest priority, the others none."""
        self._tree.set(slot, np.where(decided, self._largest**self._sampling.alpha, 0.0))

    def write_block(self, block: Block) -> None:
        """The same of a block of slots."""
        rings, begin, end = block
        weights = self._tree.values.reshape(self._producers, self._slots)
        weights[rings, begin:end], weights[rings, end] = self._largest**self._sampling.alpha, 0.0
        for ring in range(rings.start, rings.stop):
            self._tree.changed(ring * self._slots + begin, end + 1 - begin)

    def update(self, slot: Ints, error: NDArray[Any]) -> None:
        """The errors of transitions `[B]` are known. One that is not finite, and a slot without a transition, change nothing."""
        error = np.abs(np.asarray(error, np.float64))
        # A slot may have been overwritten since it was drawn, and hold no transition any more.
        known = np.isfinite(error) & (self._tree.get(slot) > 0.0)
        if not known.all():
            slot, error = slot[known], error[known]
        if not len(slot):
            return
        priority = error + self._sampling.epsilon
        self._largest = max(self._largest, float(priority.max()))
        self._tree.set(slot, priority**self._sampling.alpha)

    def draw(self, size: int, random: np.random.Generator) -> Ints:
        """`[size]` slots, one from each of as many equal parts of the sum."""
        part = self._tree.total / size
        return self._tree.find((np.arange(size) + random.random(size)) * part)

    def weights(self, slot: Ints, beta: float) -> NDArray[np.float32]:
        """`[B]`, wᵢ of slots that were drawn together."""
        powers = self._tree.get(slot)
        # N and Σ pᵅ are the same for all, so that they fall out with the maximum.
        return np.power(powers / powers.min(), -beta).astype(np.float32)
