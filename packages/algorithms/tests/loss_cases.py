"""Random inputs of losses, and what holds for every loss."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from rlinf.algorithms.losses.terms import Aggregation
from rlinf.core.metrics import means

AGGREGATIONS = [
    Aggregation(),
    Aggregation("seq-mean-token-sum"),
    Aggregation("seq-mean-token-mean"),
    Aggregation("constant-length", 5),
]


@dataclass(frozen=True)
class Case:
    """What a policy loss may be called with; log-probabilities `[B, T, …]`, the rest `[B, T]`."""

    logprob: Tensor
    logprob_old: Tensor
    logprob_proximal: Tensor
    advantage: Tensor
    mask: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "Case":
        return Case(*(change(getattr(self, name)) for name in self.__dataclass_fields__))

    def lists(self) -> list:
        return [getattr(self, name).tolist() for name in self.__dataclass_fields__]


def case(seed: int, rows: int = 4, horizon: int = 3, chunk: tuple[int, ...] = (), scale: float = 0.4) -> Case:
    """Some rows have no decision, some no advantage; `scale` is how far the policies are apart, in nats."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    old = normal(rows, horizon, *chunk) - 1.0
    proximal = old + scale * normal(*old.shape)
    new = proximal + scale * normal(*old.shape)
    advantage = normal(rows, horizon) * (torch.rand(rows, 1, generator=g) < 0.8)
    mask = (torch.rand(rows, horizon, generator=g) < 0.7) & (torch.rand(rows, 1, generator=g) < 0.9)
    return Case(new, old, proximal, advantage, mask)


CASES = st.builds(
    case,
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 4),
    horizon=st.integers(1, 4),
    chunk=st.sampled_from([(), (1,), (2,), (2, 3)]),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
)


def expect_same(output, expected, rel=1e-9):
    """A loss's output is what the reference says: total, weight and every metric."""
    total, weight, metrics = expected
    assert output.total.item() == pytest.approx(total, rel=rel, abs=rel)
    assert output.weight.item() == weight
    if weight:
        found = means(output.metrics)
        assert found == pytest.approx({name: x for name, x in metrics.items() if name != "loss"}, rel=1e-6, abs=1e-9, nan_ok=True)


def row_constant(x: Case) -> Case:
    """The case with one advantage for all decisions of a row."""
    return replace(x, advantage=x.advantage[:, :1].expand_as(x.advantage))


def gradient(loss: Callable[[Case], object], x: Case) -> Tensor:
    """d total / d logprob."""
    leaf = x.logprob.detach().clone().requires_grad_()
    loss(replace(x, logprob=leaf)).total.backward()
    return leaf.grad


def two_policies(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities under two policies, in float64, and the mask `[B, T]` of decisions."""
    random = np.random.default_rng(seed)
    one, other = (torch.tensor(random.normal(size=shape)) for _ in range(2))
    return one, other, torch.tensor(random.random(shape[:2]) < 0.7)
