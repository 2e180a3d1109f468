"""What policy losses are made of, by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlinf.algorithms.required import required
from rlinf.core.data import Rescored
from rlinf.core.trajectory import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The tensors that a policy loss may ask for. A field is None where nobody gave it; `need` refuses that by name.

    `…` stands for the granularity of log-probabilities: nothing, K, or K and A.
    """

    mask: Tensor
    """`[B, T]` bool, False where nothing was decided."""
    logprob: Tensor | None = None
    """`[B, T, …]`, under the current weights; differentiable."""
    logprob_old: Tensor | None = None
    """`[B, T, …]`, under the weights that decided, as the rollout computed it."""
    logprob_proximal: Tensor | None = None
    """`[B, T, …]`, under the trainer's weights before the update."""
    logprob_ref: Tensor | None = None
    """`[B, T]` or the shape of `logprob`, under a reference policy."""
    advantage: Tensor | None = None
    """`[B, T]`."""
    target: Tensor | None = None
    """`[B, T]`, what the critic should say."""
    value: Tensor | None = None
    """`[B, T]`, by the current weights; differentiable."""
    value_old: Tensor | None = None
    """`[B, T]`, by the weights that decided."""
    entropy: Tensor | None = None
    """`[B, T]` or finer, by the current weights; differentiable."""
    version: Tensor | None = None
    """`[B, T]` int, the version of the weights that decided."""
    version_now: int | None = None
    """The version of the current weights."""

    @classmethod
    def of(cls, batch: Batch[Tensor], evaluation: Rescored[Tensor]) -> LossInputs:
        """What a batch and its evaluation hold."""
        t = batch.trajectory
        return cls(
            mask=t.mask,
            logprob=evaluation.logprob,
            logprob_old=t.logprob,
            logprob_proximal=t.proximal,
            logprob_ref=t.reference,
            advantage=batch.credit.advantage,
            target=batch.credit.target,
            value=evaluation.value,
            value_old=None if t.value is None else t.value[:, :-1],
            entropy=evaluation.entropy,
            version=t.version,
            version_now=evaluation.version,
        )

    def need(self, name: str, *, by: str) -> Any:
        """The field `name` for `by`; a `ShapeError` that names both if it is None."""
        return required(self, name, by=by, remedies=_REMEDIES)


_REMEDIES = {
    "value": "Use a policy with a critic.",
    "value_old": "Use a policy with a critic.",
    "target": "Use an advantage with a critic, such as 'gae'.",
    "entropy": "Use a policy that computes entropies, or set entropy_bonus to 0.",
    "logprob_ref": "Score the batch with a reference policy (Trajectory.reference), or set kl_beta to 0.",
    "logprob_proximal": "Score the batch with the trainer before the update (Trajectory.proximal).",
    "version_now": "Use a trainer that counts versions (Evaluation.version).",
}
INPUT_NAMES = tuple(f.name for f in dataclasses.fields(LossInputs))
