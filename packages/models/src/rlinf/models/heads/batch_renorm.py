"""Batch renormalisation: batch statistics in training that agree with the running ones of inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlinf.core.errors import ConfigError, ShapeError


class BatchRenorm(nn.Module):
    """x ↦ γ x̂ + β, normalised by a batch's statistics in training and by running ones otherwise.

    training:   x̂ = (x − μ_B)/σ_B · r + d,   r = clip(σ_B/σ, 1/r_max, r_max),   d = clip((μ_B − μ)/σ, ±d_max),   no gradient by r, d
                μ ← μ + α (μ_B − μ),   σ ← σ + α (σ_B − σ),   σ_B² = Var_B(x) + ε
    otherwise:  x̂ = (x − μ)/σ

    Ioffe, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models" (2017), alg. 1,
    arXiv:1702.03275. Where nothing is clipped both agree. For the first passes r = 1 and d = 0, which is batch normalisation;
    then both bounds grow linearly, as in sec. 3 of the paper. The running statistics are buffers: they travel with the weights.

    Args:
        size: of the normalised features: D, or `(N, D)` for N networks side by side.
        r_max: at least 1, the bound in the end.
        d_max: at least 0, the bound in the end.
        momentum: α in (0, 1].
        r_ramp: the passes between which `r_max` grows from 1.
        d_ramp: the passes between which `d_max` grows from 0.
        eps: ε.

    Raises:
        ConfigError: an argument is out of range.
    """

    mean: Tensor
    std: Tensor
    passes: Tensor

    def __init__(
        self,
        size: int | tuple[int, ...],
        *,
        r_max: float = 3.0,
        d_max: float = 5.0,
        momentum: float = 0.01,
        r_ramp: tuple[int, int] = (5_000, 40_000),
        d_ramp: tuple[int, int] = (5_000, 25_000),
        eps: float = 1e-3,
    ) -> None:
        super().__init__()
        if r_max < 1.0 or d_max < 0.0 or not 0.0 < momentum <= 1.0:
            found = f"r_max {r_max}, d_max {d_max}, momentum {momentum}"
            raise ConfigError("BatchRenorm", f"expected r_max ≥ 1, d_max ≥ 0 and momentum in (0, 1], found {found}")
        for name, (start, end) in (("r_ramp", r_ramp), ("d_ramp", d_ramp)):
            if not 0 <= start <= end:
                raise ConfigError(f"BatchRenorm({name})", f"expected 0 ≤ start ≤ end, found {(start, end)}")
        self.size = (size,) if isinstance(size, int) else tuple(size)
        self.r_max, self.d_max, self.momentum, self.eps = r_max, d_max, momentum, eps
        self.r_ramp, self.d_ramp = r_ramp, d_ramp
        self.weight = nn.Parameter(torch.ones(self.size))
        self.bias = nn.Parameter(torch.zeros(self.size))
        self.register_buffer("mean", torch.zeros(self.size))
        self.register_buffer("std", torch.ones(self.size))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, *, training: bool | None = None) -> Tensor:
        """Normalises over all axes in front of the features.

        Args:
            x: `[*, *size]`.
            training: whether the batch's statistics are used, and added to the running ones; the module's mode if None.

        Returns:
            The shape of `x`.

        Raises:
            ShapeError: the features have another size, or a batch of one row has no statistics.
        """
        if x.shape[-len(self.size) :] != self.size:
            raise ShapeError("BatchRenorm(x)", f"expected [*, {', '.join(map(str, self.size))}], found {tuple(x.shape)}")
        if not (self.training if training is None else training):
            return (x - self.mean) / self.std * self.weight + self.bias
        rows = x.flatten(0, -len(self.size) - 1)
        if len(rows) < 2:
            raise ShapeError("BatchRenorm(x)", f"expected at least 2 rows in training, found {len(rows)}", "Pass training=False.")
        mean = rows.mean(0)
        # The paper's variance of a batch is the biased one.
        std = (rows.var(0, correction=0) + self.eps).sqrt()
        with torch.no_grad():
            r_max = 1.0 + (self.r_max - 1.0) * self._ramp(self.r_ramp)
            d_max = self.d_max * self._ramp(self.d_ramp)
            # r and d compare with the running statistics before this batch; the update must come after them.
            r = (std / self.std).clamp(1.0 / r_max, r_max)
            d = ((mean - self.mean) / self.std).clamp(-d_max, d_max)
            self._update(mean, std)
        return ((x - mean) / std * r + d) * self.weight + self.bias

    def _ramp(self, ramp: tuple[int, int]) -> Tensor:
        """How much of a bound is allowed by now, in [0, 1]."""
        start, end = ramp
        passed = self.passes.to(self.mean.dtype) - start
        return (passed >= 0).to(passed.dtype) if start == end else (passed / (end - start)).clamp(0.0, 1.0)

    def _update(self, mean: Tensor, std: Tensor) -> None:
        self.mean += self.momentum * (mean - self.mean)
        self.std += self.momentum * (std - self.std)
        self.passes += 1
