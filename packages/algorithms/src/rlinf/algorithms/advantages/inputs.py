"""What advantages are made of, by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlinf.algorithms.advantages.score import joint, row_score
from rlinf.algorithms.precision import difference
from rlinf.algorithms.required import required
from rlinf.algorithms.shapes import expect_shape
from rlinf.core.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditInputs:
    """The tensors that an advantage may ask for. A field is None where nobody gave it; `need` refuses that by name."""

    reward: Tensor | None = None
    """`[B, T]`, the reward of each decision."""
    mask: Tensor | None = None
    """`[B, T]` bool, False where nothing was decided; None if something was decided everywhere."""
    terminated: Tensor | None = None
    """`[B, T]` bool, the task itself ended here."""
    truncated: Tensor | None = None
    """`[B, T]` bool, a limit cut the episode here."""
    value: Tensor | None = None
    """`[B, T + 1]`, the critic's value; the last column bootstraps. `[B, T]` serves where `value_next` is given."""
    value_next: Tensor | None = None
    """`[B, T]`, the value of the observation after each decision, where a row runs across resets; None where `value` tells."""
    group: Tensor | None = None
    """`[B]` int, rows of one group answer the same question, in any order."""
    episode: Tensor | None = None
    """`[B]` int, rows of one episode (its turns, its agents); None where every row is an episode of its own."""
    score: Tensor | None = None
    """`[B]`, the outcome of each row; None where it is the sum of its rewards."""
    baseline: Tensor | None = None
    """`[B]`, what to compare the score with, such as the score of the greedy answer."""
    logprob: Tensor | None = None
    """`[B, T]`, `[B, T, K]` or `[B, T, K, A]`, under the weights that decided."""
    logprob_ref: Tensor | None = None
    """`[B, T]` (or as `logprob`), under a reference policy or a teacher."""
    logprob_proximal: Tensor | None = None
    """The shape of `logprob`, under the policy that is to learn; None where that is the one that decided."""
    sum_pi_squared: Tensor | None = None
    """`[B, T]`, Σₐ π(a)² over all that could have been decided, in [0, 1]; no trajectory has it."""

    @classmethod
    def of(cls, trajectory: Trajectory[Tensor]) -> CreditInputs:
        """What a trajectory holds."""
        t = trajectory
        return cls(
            reward=t.reward,
            mask=t.mask,
            terminated=t.terminated,
            truncated=t.truncated,
            value=t.value,
            group=t.group,
            episode=t.episode,
            logprob=t.logprob,
            logprob_ref=t.reference,
            logprob_proximal=t.proximal,
        )

    def need(self, name: str, *, by: str) -> Any:
        """The field `name` for `by`; a `ShapeError` that names both if it is None."""
        return required(self, name, by=by, remedies=_REMEDIES)

    def decided(self, *, by: str) -> Tensor:
        """Where something was decided, `[B, T]` bool: the mask, or everywhere if there is none.

        Args:
            by: who needs it, for the message.

        Raises:
            ShapeError: there is neither a mask nor a reward; the message names what is missing.
        """
        if self.mask is not None:
            return self.mask.bool()
        needed = self.need("mask" if self.reward is None and self.score is not None else "reward", by=by)
        return torch.ones_like(needed, dtype=torch.bool)

    def outcome(self, *, by: str) -> Tensor:
        """The score of each row, `[B]`: as given, or else the sum of its unmasked rewards.

        Args:
            by: who needs it, for the message.

        Raises:
            ShapeError: there is neither a score nor a reward; the message names the reward.
        """
        return row_score(self.need("reward", by=by), self.decided(by=by)) if self.score is None else self.score

    def log_ratio(self, over: str, under: str, *, by: str) -> Tensor:
        """By how much likelier each whole decision is under one policy than under another: `[B, T]`, log p_over − log p_under.

        Args:
            over: the field of log-probabilities that counts positive.
            under: the field that counts negative.
            by: who needs it, for the message.

        Raises:
            ShapeError: a field is None, or they are not of the same decisions; the message names it.
        """
        above, below = joint(self.need(over, by=by)), joint(self.need(under, by=by))
        expect_shape(f"{by}({under})", below, above.shape)
        return difference(above, below)


_REMEDIES = {
    "mask": "It says over which decisions a score is spread.",
    "value": "Use a policy with a critic.",
    "baseline": "Pass the score of what each row is compared with, such as the greedy answer.",
    "episode": "Say which rows form one episode (Trajectory.episode).",
    "sum_pi_squared": "Pass Σ π² of each token, of the policy that says logprob.",
    "logprob_ref": "Score the batch with the reference policy or the teacher (Trajectory.reference).",
}
INPUT_NAMES = tuple(f.name for f in dataclasses.fields(CreditInputs))
