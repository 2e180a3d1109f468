"""Advantages that are given decision by decision: rewards as they are, and what a teacher says of a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlinf.algorithms.advantages.estimator import CreditInputs, Estimator
from rlinf.algorithms.advantages.score import joint
from rlinf.algorithms.advantages.statistics import whiten
from rlinf.algorithms.checks import expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32, difference
from rlinf.algorithms.lazy import torch
from rlinf.core.config import expect_range
from rlinf.core.declarations import Need
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


@takes_tensors
def raw(
    reward: Tensor,
    mask: Tensor,
    all_reduce: AllReduce | None = None,
    *,
    normalize: bool = False,
    unbiased: bool = True,
    eps: float = 1e-5,
) -> Tensor:
    """The reward of each decision as its advantage.

    Âₜ = rₜ,   or (rₜ − μ) / (σ + ε) with μ and σ over all unmasked decisions of all ranks

    Args:
        reward: `[B, T]`.
        mask: `[B, T]` bool, False where nothing was decided.
        all_reduce: sums a tensor over ranks; called only to normalise. None if there is one rank.
        normalize: whether to shift and scale.
        unbiased: whether the variance is divided by n − 1 (Bessel).
        eps: ε > 0.

    Returns:
        `[B, T]`, 0 where masked; float32 or finer.

    Raises:
        ShapeError: `mask` has another shape than `reward`.
        ConfigError: `eps` is not positive.
    """
    expect_range("raw(eps)", eps, 0.0, float("inf"), open_low=True)
    expect_shape("raw(mask)", mask, reward.shape)
    if normalize:
        return whiten(reward, mask, all_reduce, unbiased=unbiased, eps=eps)
    return torch.where(mask.bool(), at_least_float32(reward), 0.0)


@dataclass(frozen=True, slots=True)
class Raw(Estimator):
    """The reward as the advantage, by name: `algorithm.adv_type: raw`."""

    has_targets: ClassVar[bool] = False

    eps: float = 1e-5
    """What is added to the deviation where `normalize_advantages` asks for one, > 0."""

    def __post_init__(self) -> None:
        Estimator.__post_init__(self)
        expect_range("eps", self.eps, 0.0, float("inf"), open_low=True)

    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, None]:
        reward = x.need("reward", by="Raw")
        return raw(reward, x.decided(by="Raw")), None

    def _how(self) -> Mapping[str, Any]:
        return {"unbiased": True, "eps": self.eps}


@takes_tensors
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
        logprob, teacher = (joint(x.need(name, by="OnPolicyDistillation")) for name in ("logprob", "logprob_ref"))
        return opd_advantage(logprob, teacher, mask=x.mask), None
