"""Losses beside the policy's own term, what corrects it, and what is left out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from reference.policy import reinforce
from reference.terms import TOKEN_MEAN, Aggregation, Mask, Nested, Rows, Summed, aggregate, at, leaves, per_decision, summed


def at_granularity(x: list[list[Any]], granularity: str, executed: list[list[list[bool]]] | None = None) -> list[list[Any]]:
    """Each decision as it is (`token_level`), as a sum for each step (`action_level`), or as one sum (`chunk_level`)."""
    result: list[list[Any]] = []
    for b, row in enumerate(x):
        decisions: list[Any] = []
        for t, decision in enumerate(row):
            if executed is not None:
                decision = [step if executed[b][t][k] else _zeros(step) for k, step in enumerate(decision)]
            decisions.append(_added_up(decision, granularity))
        result.append(decisions)
    return result


def _zeros(step: Any) -> Any:
    return [0.0 for _ in step] if isinstance(step, list) else 0.0  # pyright: ignore[reportUnknownVariableType]


def _added_up(decision: Any, granularity: str) -> Any:
    if granularity == "chunk_level":
        return sum(leaves(decision))
    if granularity == "action_level" and isinstance(decision, list):
        return [sum(leaves(step)) for step in decision]  # pyright: ignore[reportUnknownVariableType]
    return decision


def entropy_loss(
    entropy: list[list[Any]], mask: list[list[bool]], mode: str = "token-mean", length: int | None = None
) -> tuple[float, float]:
    """The sum of −H and its weight."""
    return aggregate([[-h for h in row] for row in per_decision(entropy)], mask, mode, length)


def kl_penalty(logprob: Any, logprob_ref: Any, kind: str) -> Any:
    """An estimate of KL(π ‖ π_ref) for each pair of numbers; a `+` changes the gradient alone."""
    if isinstance(logprob, list):
        return [kl_penalty(p, q, kind) for p, q in zip(logprob, logprob_ref, strict=True)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    kind = kind.rstrip("+")
    ratio_log = logprob_ref - logprob
    if kind in ("k1", "kl"):
        return logprob - logprob_ref
    if kind == "abs":
        return abs(logprob - logprob_ref)
    if kind in ("k2", "mse"):
        return (logprob - logprob_ref) ** 2 / 2
    if kind == "k3":
        return math.exp(ratio_log) - 1 - ratio_log
    if kind == "low_var_kl":
        near = max(-20.0, min(20.0, ratio_log))
        return max(-10.0, min(10.0, math.exp(near) - 1 - near))
    raise ValueError(kind)


def kl_loss(
    logprob: list[list[Any]],
    logprob_ref: list[list[Any]],
    mask: list[list[bool]],
    kind: str = "k3",
    mode: str = "token-mean",
    length: int | None = None,
) -> tuple[float, float]:
    """The sum of the estimates and its weight; a reference without elements is compared with the sum over elements."""
    loss: list[list[float]] = []
    for row, row_ref, valid in zip(logprob, logprob_ref, mask, strict=True):
        found: list[float] = []
        for decision, reference, counts in zip(row, row_ref, valid, strict=True):
            if not counts:
                found.append(0.0)
            elif isinstance(reference, list):
                found.append(per_decision([[kl_penalty(decision, reference, kind)]])[0][0])
            else:
                found.append(kl_penalty(sum(leaves(decision)), reference, kind))
        loss.append(found)
    return aggregate(loss, mask, mode, length)


def reward_with_kl(
    reward: list[list[float]],
    logprob: list[list[float]],
    logprob_ref: list[list[float]],
    mask: list[list[bool]],
    beta: float,
    kind: str = "k1",
) -> list[list[float]]:
    """The reward minus β times the estimate, where something was decided."""
    result = [list(row) for row in reward]
    for b, row in enumerate(mask):
        for t, valid in enumerate(row):
            if valid:
                result[b][t] -= beta * kl_penalty(logprob[b][t], logprob_ref[b][t], kind)
    return result


def opd(logprob: Nested, advantage: Rows, mask: Mask, *, aggregation: Aggregation = TOKEN_MEAN) -> Summed:
    """L = −Â log π."""
    total, weight, means = reinforce(logprob, advantage, mask, aggregation=aggregation)
    _, _, reward = summed(mask, lambda b, t: {"loss": 0.0, "opd_reward": advantage[b][t], "opd_reverse_kl": -advantage[b][t]})
    return total, weight, means | {name: mean for name, mean in reward.items() if name != "loss"}


def forward_kl(
    student: Nested, teacher: Nested, mask: Mask, *, temperature: float = 1.0, aggregation: Aggregation = TOKEN_MEAN
) -> Summed:
    """L = Σᵥ p_T (log p_T − log p_S)."""
    return generalized_jsd(student, teacher, mask, beta=0.0, temperature=temperature, aggregation=aggregation)


def reverse_kl(
    student: Nested, teacher: Nested, mask: Mask, *, temperature: float = 1.0, aggregation: Aggregation = TOKEN_MEAN
) -> Summed:
    """L = Σᵥ p_S (log p_S − log p_T)."""
    return generalized_jsd(student, teacher, mask, beta=1.0, temperature=temperature, aggregation=aggregation)


def generalized_jsd(
    student: Nested,
    teacher: Nested,
    mask: Mask,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = β KL(p_T ‖ m) + (1 − β) KL(p_S ‖ m), m = β p_T + (1 − β) p_S; KL(p_T ‖ p_S) at β = 0, KL(p_S ‖ p_T) at β = 1."""

    def decide(b: int, t: int) -> dict[str, float]:
        p_student, p_teacher = softmax(at(student, b, t), temperature), softmax(at(teacher, b, t), temperature)
        if beta == 0:
            loss = kl(p_teacher, p_student)
        elif beta == 1:
            loss = kl(p_student, p_teacher)
        else:
            mixture = [beta * good + (1 - beta) * own for good, own in zip(p_teacher, p_student, strict=True)]
            loss = beta * kl(p_teacher, mixture) + (1 - beta) * kl(p_student, mixture)
        return {"loss": loss, "divergence": loss}

    return summed(mask, decide, aggregation)


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """exp(x / τ), normalised."""
    top = max(logits)
    weights = [math.exp((x - top) / temperature) for x in logits]
    return [weight / sum(weights) for weight in weights]


def kl(p: Sequence[float], q: Sequence[float]) -> float:
    """Σ p (log p − log q)."""
    return sum(a * (math.log(a) - (math.log(b) if b > 0 else -math.inf)) for a, b in zip(p, q, strict=True) if a > 0)


def clipped_value_loss(
    value: Rows,
    value_old: Rows,
    target: Rows,
    mask: Mask,
    *,
    value_clip: float | None = None,
    huber_delta: float | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = max(ℓ(V − y), ℓ(V_old + clip(V − V_old, ±ε) − y)); ℓ is half the square, or Huber's."""

    def decide(b: int, t: int) -> dict[str, float]:
        new, old, aim = value[b][t], value_old[b][t], target[b][t]
        loss = _distance(new - aim, huber_delta)
        found: dict[str, float] = {}
        if value_clip is not None:
            near = min(max(new, old - value_clip), old + value_clip)
            loss = max(loss, _distance(near - aim, huber_delta))
            found["value_clip_fraction"] = float(abs(new - old) > value_clip)
        return {"loss": loss, "value_loss": loss, **found}

    total, weight, means = summed(mask, decide, aggregation)
    pairs = [(target[b][t], target[b][t] - value[b][t]) for b, row in enumerate(mask) for t, valid in enumerate(row) if valid]
    means["explained_variance"] = _explained([y for y, _ in pairs], [error for _, error in pairs])
    return total, weight, means


def _distance(error: float, delta: float | None) -> float:
    if delta is None or abs(error) <= delta:
        return error * error / 2
    return delta * (abs(error) - delta / 2)


def _explained(target: list[float], error: list[float]) -> float:
    spread = _variance(target)
    return 1 - _variance(error) / spread if spread > 0 else math.nan


def _variance(x: list[float]) -> float:
    if not x:
        return 0.0
    mean = sum(x) / len(x)
    return sum((number - mean) ** 2 for number in x) / len(x)


def sft_loss(
    logprob: list[list[float]],
    mask: list[list[bool]],
    logprob_mean: list[list[float]] | None = None,
    label_smoothing: float = 0.0,
    dft: bool = False,
    mode: str = "token-mean",
    length: int | None = None,
) -> tuple[float, float]:
    """The sum of the cross-entropies and its weight."""
    loss: list[list[float]] = []
    for b, row in enumerate(logprob):
        found: list[float] = []
        for t, log_p in enumerate(row):
            smooth = 0.0 if logprob_mean is None else logprob_mean[b][t]
            entropy = -((1 - label_smoothing) * log_p + label_smoothing * smooth) if mask[b][t] else 0.0
            found.append(math.exp(log_p) * entropy if dft and mask[b][t] else entropy)
        loss.append(found)
    return aggregate(loss, mask, mode, length)


def dpo(
    logprob_chosen: list[float],
    logprob_rejected: list[float],
    logprob_ref_chosen: list[float],
    logprob_ref_rejected: list[float],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    mask: list[bool] | None = None,
) -> Summed:
    """L = −(1 − ε) log σ(h) − ε log σ(−h)."""

    def decide(b: int, _: int) -> dict[str, float]:
        chosen = beta * (logprob_chosen[b] - logprob_ref_chosen[b])
        rejected = beta * (logprob_rejected[b] - logprob_ref_rejected[b])
        h = chosen - rejected
        loss = (1 - label_smoothing) * _softplus(-h) + label_smoothing * _softplus(h)
        rewards = {"reward_chosen": chosen, "reward_rejected": rejected, "reward_margin": h, "reward_accuracy": float(h > 0)}
        return {"loss": loss, "dpo_loss": loss, **rewards}

    return summed([[valid] for valid in mask or [True] * len(logprob_chosen)], decide)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def nft(
    prediction: Nested,
    prediction_old: Nested,
    target: Nested,
    optimality: Rows,
    mask: Mask,
    *,
    beta: float = 1.0,
    form: Literal["mse", "dpo"] = "mse",
    dpo_beta: float = 1.0,
    weight: Rows | None = None,
    adaptive: bool = False,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = r E₊ + (1 − r) E₋, or log(1 + exp(½ β_dpo (2 r − 1) (E₊ − E₋)))."""

    def energy(errors: list[float], b: int, t: int) -> float:
        square = sum(error * error for error in errors) / len(errors)
        size = sum(abs(error) for error in errors) / len(errors)
        return (1.0 if weight is None else weight[b][t]) * (square / max(size, 1e-5) if adaptive else square)

    def decide(b: int, t: int) -> dict[str, float]:
        new, old, aim = at(prediction, b, t), at(prediction_old, b, t), at(target, b, t)
        count, r = len(new), optimality[b][t]
        good = energy([beta * new[i] + (1 - beta) * old[i] - aim[i] for i in range(count)], b, t)
        bad = energy([(1 + beta) * old[i] - beta * new[i] - aim[i] for i in range(count)], b, t)
        preference = math.log(1 + math.exp(dpo_beta / 2 * (2 * r - 1) * (good - bad)))
        loss = r * good + (1 - r) * bad if form == "mse" else preference
        deviation = sum((new[i] - old[i]) ** 2 for i in range(count)) / count
        found = {"energy_positive": good, "energy_negative": bad, "old_deviation": deviation}
        return {"loss": loss, "policy_loss": loss, **found}

    return summed(mask, decide, aggregation)


def advantage_to_unit(advantage: Any, *, clip: float) -> list[float]:
    """The probability r = ½ + ½ clip(Â / c, −1, 1), of every element in order."""
    return [0.5 + 0.5 * min(max(x / clip, -1), 1) for x in leaves(advantage)]


def time_weight(time: Any, *, weighting: Literal["constant", "t", "1-t", "inv_t2", "inv_t3"]) -> list[float]:
    """The weight 1, t, 1 − t, 1/t² or 1/t³, of every element in order."""
    return [_weight(t, weighting) for t in leaves(time)]


def _weight(t: float, weighting: str) -> float:
    if weighting == "constant":
        return 1.0
    if weighting == "t":
        return t
    if weighting == "1-t":
        return 1 - t
    return 1 / (t * t) if weighting == "inv_t2" else 1 / (t * t * t)
