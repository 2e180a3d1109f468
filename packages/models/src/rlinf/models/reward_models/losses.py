"""What reward models are trained by, as sums."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rlinf.core.data import LossOutput
from rlinf.core.errors import ShapeError
from rlinf.core.metrics import Metric


def bradley_terry(chosen: Tensor, rejected: Tensor) -> LossOutput[Tensor]:
    """How surprising it is that the chosen ones were chosen.

    L = −Σ log σ(r_chosen − r_rejected)

    Bradley and Terry, "Rank Analysis of Incomplete Block Designs" (1952), as in Ouyang et al., "Training language models to
    follow instructions with human feedback" (2022), eq. 1, arXiv:2203.02155.

    Args:
        chosen: `[B]`, the scores of what was preferred.
        rejected: `[B]`, the scores of what it was preferred to.

    Raises:
        ShapeError: the shapes differ.
    """
    if chosen.shape != rejected.shape:
        raise ShapeError("bradley_terry(rejected)", f"expected {tuple(chosen.shape)}, found {tuple(rejected.shape)}")
    total = -functional.logsigmoid(chosen - rejected).sum()
    return _output("reward", total, chosen > rejected)


def success_loss(logit: Tensor, success: Tensor, *, positive_weight: float = 1.0) -> LossOutput[Tensor]:
    """Binary cross-entropy.

    L = −Σ w y log σ(z) + (1 − y) log (1 − σ(z))

    Args:
        logit: `[B]`, z, the log-odds of success.
        success: `[B]` bool, or probabilities in [0, 1].
        positive_weight: w, what a success counts, where successes are rare.

    Raises:
        ShapeError: the shapes differ.
    """
    if logit.shape != success.shape:
        raise ShapeError("success_loss(success)", f"expected {tuple(logit.shape)}, found {tuple(success.shape)}")
    label = success.to(logit.dtype)
    weight = logit.new_tensor(positive_weight)
    total = functional.binary_cross_entropy_with_logits(logit, label, pos_weight=weight, reduction="sum")
    return _output("success", total, (logit > 0) == (label > 0.5))


def return_cross_entropy(logit: Tensor, returns: Tensor, *, mask: Tensor | None = None) -> LossOutput[Tensor]:
    """How surprising returns are to a distribution over Z equal steps from −1 to 0.

    L = −Σ log softmax(x)_z(R),   z(R) = round((R + 1) (Z − 1))

    Physical Intelligence, "π*0.6: a VLA That Learns From Experience" (2025), eq. 1, arXiv:2511.14759.

    Args:
        logit: `[B, Z]`, x; differentiable.
        returns: `[B]`, R; what lies outside of [−1, 0] counts as the nearer end.
        mask: `[B]` bool, False for rows that don't count; all count if None.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    return _binned("return", logit, returns, mask, low=-1.0, high=0.0)


def offset_cross_entropy(logit: Tensor, offsets: Tensor, *, mask: Tensor | None = None) -> LossOutput[Tensor]:
    """How surprising the offsets between frames are to a distribution over Z equal steps from −1 to 1.

    L = −Σ log softmax(x)_z(d),   z(d) = round((d + 1) (Z − 1) / 2)

    Liu et al., "STEAM: Self-Supervised Temporal Ensemble Advantage Modeling for Real-World Robot Learning" (2026),
    arXiv:2606.29834, whose abstract has a distribution over normalised offsets; that it is learned by classification into equal
    steps, as returns are by RECAP, is our reading.

    Args:
        logit: `[B, Z]`, x; differentiable.
        offsets: `[B]`, d; what lies outside of [−1, 1] counts as the nearer end.
        mask: `[B]` bool, False for rows that don't count; all count if None.

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
    """
    return _binned("offset", logit, offsets, mask, low=-1.0, high=1.0)


def _binned(name: str, logit: Tensor, target: Tensor, mask: Tensor | None, *, low: float, high: float) -> LossOutput[Tensor]:
    """The cross-entropy of targets `[B]` with Z equal steps from `low` to `high`, and how far the mean is off."""
    for argument, rows in ((f"{name}s", target), ("mask", target if mask is None else mask)):
        if rows.shape != logit.shape[:1]:
            found = f"expected {tuple(logit.shape[:1])}, found {tuple(rows.shape)}"
            raise ShapeError(f"{name}_cross_entropy({argument})", found)
    last = logit.shape[1] - 1
    step = ((target - low) * (last / (high - low))).round().clamp(0, last).long()
    counts = torch.ones_like(target) if mask is None else mask.to(target)
    total = (functional.cross_entropy(logit, step, reduction="none") * counts).sum()
    expected = logit.detach().softmax(-1) @ torch.linspace(low, high, last + 1).to(logit)
    count, error = float(counts.sum()), float(((expected - target).abs() * counts).sum())
    metrics = {f"{name}/loss": Metric(float(total.detach()), count), f"{name}/error": Metric(error, count)}
    return LossOutput(total=total, weight=counts.sum(), metrics=metrics)


def _output(name: str, total: Tensor, right: Tensor) -> LossOutput[Tensor]:
    count = float(right.numel())
    metrics = {f"{name}/loss": Metric(float(total.detach()), count), f"{name}/accuracy": Metric(float(right.sum()), count)}
    return LossOutput(total=total, weight=total.new_tensor(count), metrics=metrics)
