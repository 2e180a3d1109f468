"""Policy improvement of flow models by contrast, without likelihoods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from rlinf.algorithms.checks import expect_choice, expect_shape, takes_tensors
from rlinf.algorithms.elementwise import at_least_float32
from rlinf.algorithms.lazy import torch
from rlinf.algorithms.losses.terms import TOKEN_MEAN, Aggregation, Terms, per_decision, summed, zero_masked
from rlinf.core.capabilities import HasFlowRegression
from rlinf.core.config import expect_range
from rlinf.core.data import Batch, LossOutput
from rlinf.core.data.tree import tree_map
from rlinf.core.declarations import Need
from rlinf.core.errors import ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["mse", "dpo"]
TimeWeight = Literal["constant", "t", "1-t", "inv_t2", "inv_t3"]


@takes_tensors
def nft(
    prediction: Tensor,
    prediction_old: Tensor,
    target: Tensor,
    optimality: Tensor,
    mask: Tensor,
    *,
    beta: float = 1.0,
    form: Form = "mse",
    dpo_beta: float = 1.0,
    weight: Tensor | None = None,
    adaptive: bool = False,
    aggregation: Aggregation = TOKEN_MEAN,
) -> LossOutput[Tensor]:
    """Negative-aware fine-tuning of a flow: towards what went well, and away from what went badly, by one regression.

    v± = v_old ± β (v − v_old),   E± = mean w (v± − v*)²,   L = r E₊ + (1 − r) E₋
    or, as a preference, L = softplus(½ β_dpo y (E₊ − E₋)) with y = 2 r − 1

    Zheng et al., "DiffusionNFT: Online Diffusion Reinforcement with Forward Process" (2025), arXiv:2509.16117. The second
    form is the logistic loss of Rafailov et al., "Direct Preference Optimization" (2023), arXiv:2305.18290, with energies in the
    place of log-probabilities. At v = v_old the gradient with respect to v is 2 β (2 r − 1) w (v_old − v*) divided by the number of
    elements: that of flow matching on good samples, its opposite on bad ones.

    Args:
        prediction: `[B, T, …]`, v, by the current weights; differentiable. A velocity, or whatever else is linear in it.
        prediction_old: the same shape, v_old, by the weights that decided; no gradient flows into it.
        target: the same shape, v*, what the sample says the prediction should be.
        optimality: `[B, T]`, r in [0, 1]; see `advantage_to_unit`.
        mask: `[B, T]` bool, False where nothing was decided.
        beta: β > 0, how far v± are moved; at 1 v₊ is v itself.
        form: the regression ("mse") or the preference ("dpo").
        dpo_beta: β_dpo > 0, how sharp the preference is.
        weight: `[B, T]`, w, at least 0; see `time_weight`. None for 1.
        adaptive: whether each of E± is divided by its own mean |v± − v*| (at least 1e-5), which then counts as a constant.
        aggregation: what the total sums and the weight counts; by default decisions.

    Returns:
        The sum over unmasked decisions and its weight. Metrics: `policy_loss`; `energy_positive` and `energy_negative`;
        `old_deviation`, the mean (v − v_old)².

    Raises:
        ShapeError: a shape disagrees; the message names the argument.
        ConfigError: a hyper-parameter is out of its range.
    """
    _check(prediction, prediction_old, target, optimality, mask, weight)
    expect_range("beta", beta, 0.0, float("inf"), open_low=True)
    expect_range("dpo_beta", dpo_beta, 0.0, float("inf"), open_low=True)
    expect_choice("form", form, get_args(Form))
    new, old, aim = (zero_masked(x, mask) for x in (prediction, prediction_old.detach(), target.detach()))
    r = zero_masked(optimality.detach(), mask)
    w = torch.ones_like(r) if weight is None else zero_masked(weight.detach(), mask)
    step = beta * (new - old)
    good, bad = (w * _energy(error, adaptive) for error in (old + step - aim, old - step - aim))
    if form == "mse":
        loss = r * good + (1.0 - r) * bad
    else:
        loss = torch.nn.functional.softplus(0.5 * dpo_beta * (2.0 * r - 1.0) * (good - bad))
    loss = zero_masked(loss, mask)
    deviation = per_decision((new - old).detach().square())
    observed = {"energy_positive": good.detach(), "energy_negative": bad.detach(), "old_deviation": deviation}
    return summed(Terms(loss, {"policy_loss": loss.detach(), **observed}), mask, aggregation)


@dataclass(frozen=True, slots=True)
class NFT:
    """`nft` by name: `algorithm.loss_type: nft`, on the draws that a flow recorded (`sampling.likelihood: matching`).

    The energies of a decision are averaged over its draws. There is no critic: take an advantage in groups, such as `grpo`.
    """

    beta: float = field(default=1.0, kw_only=True)
    """β > 0, how far v± are moved; at 1 v₊ is v itself."""
    form: Form = field(default="mse", kw_only=True)
    """The regression ("mse"), or the preference ("dpo")."""
    dpo_beta: float = field(default=1.0, kw_only=True)
    """β_dpo > 0, how sharp the preference is."""
    adv_clip: float = field(default=1.0, kw_only=True)
    """c > 0, the advantage from which on a decision is certainly good, or bad; see `advantage_to_unit`."""
    weighting: TimeWeight = field(default="constant", kw_only=True)
    """How much the error at a time of the flow counts; see `time_weight`."""
    adaptive: bool = field(default=False, kw_only=True)
    """Whether each energy is divided by its own mean error."""

    def __post_init__(self) -> None:
        for name in ("beta", "dpo_beta", "adv_clip"):
            expect_range(name, getattr(self, name), 0.0, 1e6, open_low=True)
        expect_choice("form", self.form, get_args(Form))
        expect_choice("weighting", self.weighting, get_args(TimeWeight))

    @property
    def needs(self) -> Mapping[Need, str]:
        """A flow that recorded its draws; see `rlinf.core.declarations`."""
        return {"regression": ""}

    def of_policy(self, policy: HasFlowRegression, batch: Batch[Any]) -> LossOutput[Any]:
        """The loss of a micro-batch; see `rlinf.core.capabilities.PolicyLoss`."""
        # The policy is asked about decisions as rows, `[B · T, *]`; to the loss the draws of each are its columns, `[B · T, N]`.
        found = policy.flow_regression(tree_map(lambda leaf: leaf.flatten(0, 1), batch.trajectory.context))
        draws = found.time.shape[1]
        mask, advantage = (x.flatten()[:, None].expand(-1, draws) for x in (batch.trajectory.mask, batch.credit.advantage))
        summed_up = nft(
            found.prediction,
            found.previous,
            found.target,
            advantage_to_unit(advantage, clip=self.adv_clip),
            mask,
            beta=self.beta,
            form=self.form,
            dpo_beta=self.dpo_beta,
            weight=time_weight(found.time, weighting=self.weighting),
            adaptive=self.adaptive,
        )
        # A decision counts once, however many draws it recorded.
        return LossOutput(total=summed_up.total / draws, weight=summed_up.weight / draws, metrics=summed_up.metrics)


@takes_tensors
def advantage_to_unit(advantage: Tensor, *, clip: float) -> Tensor:
    """An advantage as the probability that a decision was a good one.

    r = ½ + ½ clip(Â / c, −1, 1)

    Zheng et al., "DiffusionNFT" (2025), arXiv:2509.16117.

    Args:
        advantage: any shape.
        clip: c > 0, the advantage from which on a decision is certainly good.

    Returns:
        The same shape, in [0, 1].

    Raises:
        ConfigError: c is not above 0.
    """
    expect_range("clip", clip, 0.0, float("inf"), open_low=True)
    return 0.5 + 0.5 * (at_least_float32(advantage) / clip).clamp(-1.0, 1.0)


@takes_tensors
def time_weight(time: Tensor, *, weighting: TimeWeight) -> Tensor:
    """How much the error at a time of the flow counts.

    w = 1, t, 1 − t, 1/t² or 1/t³

    1/t² turns an error of x₀ = x_t − t v into one of v, and t² the other way round: DiffusionNFT (2025), arXiv:2509.16117.

    Args:
        time: any shape, t in (0, 1], 1 at pure noise.
        weighting: one of the names above: "constant", "t", "1-t", "inv_t2", "inv_t3".

    Returns:
        The same shape.

    Raises:
        ConfigError: the weighting is unknown.
    """
    t = at_least_float32(time)
    expect_choice("weighting", weighting, get_args(TimeWeight))
    weights = {"constant": torch.ones_like(t), "t": t, "1-t": 1.0 - t, "inv_t2": t**-2, "inv_t3": t**-3}
    return weights[weighting]


def _energy(error: Tensor, adaptive: bool) -> Tensor:
    energy = per_decision(error.square())
    # The floor keeps an error of 0 from being divided by 0.
    return energy / per_decision(error.detach().abs()).clamp(min=1e-5) if adaptive else energy


def _check(prediction: Tensor, old: Tensor, target: Tensor, optimality: Tensor, mask: Tensor, weight: Tensor | None) -> None:
    if prediction.dim() < 2:
        raise ShapeError("nft(prediction)", f"expected [B, T, …], found {tuple(prediction.shape)}")
    expect_shape("nft(prediction_old)", old, prediction.shape)
    expect_shape("nft(target)", target, prediction.shape)
    expect_shape("nft(optimality)", optimality, prediction.shape[:2])
    expect_shape("nft(mask)", mask, prediction.shape[:2])
    if weight is not None:
        expect_shape("nft(weight)", weight, prediction.shape[:2])
