"""On-policy distillation: the teacher says of each token that the student wrote how much likelier it found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlinf.algorithms.advantages.estimator import Estimator
from rlinf.algorithms.advantages.inputs import CreditInputs
from rlinf.algorithms.advantages.score import joint
from rlinf.algorithms.precision import difference
from rlinf.algorithms.shapes import expect_shape
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce


def opd_advantage(logprob: Tensor, logprob_teacher: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The advantage of on-policy distillation.

    Âₜ = log π_teacher(aₜ | sₜ) − log π(aₜ | sₜ),   a ~ π

    Its expectation under the student is the reverse Kullback–Leibler divergence of each token, negated. Agarwal et al.,
    "On-Policy Distillation of Language Models" (2024), arXiv:2306.13649; Gu et al., "MiniLLM" (2024), arXiv:2306.08543. Nothing is
    normalised: the advantage is 0 exactly where the two agree.

    Args:
        logprob: `[B, T]`, under the student, which wrote the tokens.
        logprob_teacher: `[B, T]`, of the same tokens under the teacher.
        mask: `[B, T]` bool, False where the student decided nothing; None if it did everywhere.

    Returns:
        `[B, T]`, 0 where masked; float32 or finer.

    Raises:
        ShapeError: the shapes differ.
    """
    expect_shape("opd_advantage(logprob_teacher)", logprob_teacher, logprob.shape)
    found = difference(logprob_teacher, logprob)
    if mask is None:
        return found
    expect_shape("opd_advantage(mask)", mask, logprob.shape)
    return torch.where(mask.bool(), found, 0.0)


@dataclass(frozen=True, slots=True)
class OnPolicyDistillation(Estimator):
    """On-policy distillation by name: `algorithm.adv_type: opd`. The teacher is `Trajectory.reference`."""

    needs: ClassVar[Mapping[Need, str]] = {"reference": ""}
    has_targets: ClassVar[bool] = False

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        """Advantages `[B, T]`; no targets."""
        logprob, teacher = (joint(x.need(name, by="OnPolicyDistillation")) for name in ("logprob", "logprob_ref"))
        return opd_advantage(logprob, teacher, mask=x.mask), None
