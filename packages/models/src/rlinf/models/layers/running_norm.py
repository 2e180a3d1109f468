"""Normalisation of observations by statistics that grow with experience."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlinf.core.protocols import AllReduce


class RunningNorm(nn.Module):
    """x ↦ clip((x − μ) / max(σ, floor), ±limit), μ and σ of everything that `update` has seen, or of the data given to `fit`.

    The statistics are buffers: they travel and are saved with the weights, and no forward pass changes them, so that the
    log-probabilities of a rollout and of its re-scoring agree. Before the first update x is only clipped.

    Args:
        size: D, the size of an observation.
        floor: the least σ, for observations that hardly vary.
        limit: the largest absolute value of the result.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, size: int, *, floor: float = 1e-2, limit: float = 5.0) -> None:
        super().__init__()
        self.floor, self.limit = floor, limit
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        # float32 can't count beyond 2²⁴. Below 0 after `fit`.
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `[*, D]`."""
        return ((x - self.mean) / self.variance.sqrt().clamp_min(self.floor)).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, x: Tensor, all_reduce: AllReduce | None = None) -> None:
        """Adds observations to the statistics; where no rank has any, or after `fit`, they stay as they are.

        n = n₁ + n₂,  δ = μ₂ − μ₁,  μ = μ₁ + δ n₂/n,  n σ² = n₁σ₁² + n₂σ₂² + δ² n₁n₂/n

        Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), eq. 2.1.

        Args:
            x: `[n, D]`.
            all_reduce: adds a tensor over ranks; None where there is one rank.
        """
        if self.count < 0:
            return
        rows = x.double()
        sums = torch.cat([rows.new_tensor([len(rows)]), rows.sum(0)])
        sums = sums if all_reduce is None else all_reduce(sums)
        # On every rank alike, so that none waits for the second reduction.
        if sums[0] == 0:
            return
        n2, mean2 = sums[0], sums[1:] / sums[0]
        # Around the mean over all ranks, hence two reductions: sums of squares around 0 would cancel.
        squares = (rows - mean2).square().sum(0)
        squares = squares if all_reduce is None else all_reduce(squares)
        n1, delta = self.count.clone(), mean2 - self.mean
        n = n1 + n2
        self.mean += (delta * n2 / n).to(self.mean.dtype)
        self.variance.copy_((n1 * self.variance + squares + delta.square() * n1 * n2 / n) / n)
        self.count.copy_(n)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Takes the statistics of data `[n, D]` for good: what imitates data would act differently if they moved."""
        self.count.zero_()
        self.update(x)
        self.count.neg_()
