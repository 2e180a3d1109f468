"""What reward models are trained by, as sums."""

from __future__ import annotations

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


def _output(name: str, total: Tensor, right: Tensor) -> LossOutput[Tensor]:
    count = float(right.numel())
    metrics = {f"{name}/loss": Metric(float(total.detach()), count), f"{name}/accuracy": Metric(float(right.sum()), count)}
    return LossOutput(total=total, weight=total.new_tensor(count), metrics=metrics)
