"""What all advantages chosen by name have in common: their inputs, and what is done to what they say."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from rlinf.algorithms.advantages.grouping import pairs
from rlinf.algorithms.advantages.normalize import LossScale, Normalization, loss_scale, normalize_advantages, turns
from rlinf.algorithms.advantages.score import joint, row_score
from rlinf.algorithms.checks import expect_choice, expect_shape, required
from rlinf.algorithms.elementwise import difference
from rlinf.algorithms.lazy import torch
from rlinf.core.data import Credit, Trajectory
from rlinf.core.protocols import AllReduce

if TYPE_CHECKING:
    from torch import Tensor


class TransitionInputs(TypedDict):
    """What an advantage with a critic is given of each decision and of what followed; shapes as in `CreditInputs`."""

    reward: Tensor
    value: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor | None
    value_next: Tensor | None


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
            baseline=t.baseline,
            logprob=t.logprob,
            logprob_ref=t.reference,
            logprob_proximal=t.proximal,
            sum_pi_squared=t.sum_pi_squared,
        )

    def need(self, name: str, *, by: str) -> Any:
        """The field `name` for `by`; a `ShapeError` that names both if it is None."""
        return required(self, name, by=by, remedies=_REMEDIES)

    def transitions(self, *, by: str) -> TransitionInputs:
        """What `by` needs of each decision and of what followed; a `ShapeError` that names both if something is None."""
        reward, value, terminated, truncated = (self.need(name, by=by) for name in ("reward", "value", "terminated", "truncated"))
        return TransitionInputs(
            reward=reward, value=value, terminated=terminated, truncated=truncated, mask=self.mask, value_next=self.value_next
        )

    def decided(self, *, by: str) -> Tensor:
        """Where something was decided, `[B, T]` bool: the mask, or everywhere if there is none.

        Args:
            by: who needs it, for the message.

        Raises:
            ShapeError: there is neither a mask nor a reward; the message names what is missing.
        """
        if self.mask is not None:
            return self.mask.bool()
        # A score alone does not say how many decisions there are.
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
    "baseline": "Pass the score of what each row is compared with, such as the greedy answer (Trajectory.baseline).",
    "episode": "Say which rows form one episode (Trajectory.episode).",
    "sum_pi_squared": "Pass Σ π² of each token, of the policy that says logprob (Trajectory.sum_pi_squared).",
    "logprob_ref": "Score the batch with the reference policy or the teacher (Trajectory.reference).",
}
INPUT_NAMES = tuple(f.name for f in dataclasses.fields(CreditInputs))


@dataclass(frozen=True, slots=True)
class Estimator(ABC):
    """An advantage by name: it works on a trajectory, or on the tensors themselves."""

    normalize_advantages: bool | Normalization = field(default=False, kw_only=True)
    """Over which decisions advantages are normalised to mean 0 and variance 1: "batch" (or true), all unmasked decisions of all
    ranks; "group", those of the rows of a group; "none" (or false). Targets are never normalised."""

    loss_scale: LossScale = field(default="none", kw_only=True)
    """Which unit counts once in a loss, however many decisions it has: a group ("group"), an episode with all its turns and
    agents ("episode"), a row, which is an agent's branch ("agent"), or each of its turns ("turn"); for the aggregation
    `token-mean`, see `loss_scale`. With "none", each decision counts once."""

    def __post_init__(self) -> None:
        expect_choice("loss_scale", self.loss_scale, get_args(LossScale))
        expect_choice("normalize_advantages", self._normalization, get_args(Normalization))

    def __call__(self, trajectory: Trajectory[Tensor], *, all_reduce: AllReduce | None = None) -> Credit[Tensor]:
        """Credit of each decision.

        Args:
            trajectory: B rows of T decisions.
            all_reduce: sums a tensor over ranks; None if there is one.

        Returns:
            `advantage` and, of an estimator with a critic, `target`; each `[B, T]`, 0 where masked.

        Raises:
            ShapeError: something that the estimator needs is None; the message names it.
        """
        advantage, target = self.normalized(CreditInputs.of(trajectory), all_reduce=all_reduce)
        return Credit(advantage=advantage, target=target)

    def normalized(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor | None]:
        """What `of` says, with advantages normalised over what `normalize_advantages` names, then scaled by `loss_scale`."""
        advantage, target = self.of(x, all_reduce=all_reduce)
        over, by = self._normalization, type(self).__name__
        if over != "none":
            group = x.need("group", by=by) if over == "group" else None
            decided = x.decided(by=by)
            # Before the scale: normalising afterwards would take it out again.
            advantage = normalize_advantages(advantage, decided, all_reduce, over=over, group=group, **self._how())
        if self.loss_scale != "none":
            scale = loss_scale(self._unit(x), x.decided(by=by), all_reduce=all_reduce)
            # A scale of rows, `[B]`, becomes a column; one of turns, `[B, T]`, stays as it is.
            advantage = advantage * scale.to(advantage.dtype).reshape(len(advantage), -1)
        return advantage, target

    def _unit(self, x: CreditInputs) -> Tensor:
        """The number of what counts once, `[B]`, or `[B, T]` for turns."""
        by = type(self).__name__
        if self.loss_scale == "group":
            return x.need("group", by=by)
        if self.loss_scale == "episode" and x.episode is not None:
            return pairs(x.need("group", by=by), x.episode)
        decided = x.decided(by=by)
        return turns(decided) if self.loss_scale == "turn" else torch.arange(len(decided), device=decided.device)

    def _how(self) -> Mapping[str, Any]:
        """`unbiased` and `eps` of the normalisation, where they are not the usual ones."""
        return {}

    @property
    def _normalization(self) -> Normalization:
        over = self.normalize_advantages
        return over if isinstance(over, str) else "batch" if over else "none"

    @abstractmethod
    def of(self, x: CreditInputs, *, all_reduce: AllReduce | None = None) -> tuple[Tensor, Tensor | None]:
        """Advantages and value targets of tensors, each `[B, T]`, not normalised yet; no targets (None) without a critic."""
