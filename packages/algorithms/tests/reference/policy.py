"""Policy losses, decision by decision and in each element by element."""

from __future__ import annotations

import math
from typing import Literal

from reference.terms import SEQUENCE_MEAN, TOKEN_MEAN, Aggregation, Mask, Nested, Rows, Summed, at, average, decided, summed


def ppo_clip(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    clip_log_ratio_min: float | None = None,
    clip_log_ratio_max: float | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â), at most −c Â where Â < 0."""
    least = -20.0 if clip_log_ratio_min is None else clip_log_ratio_min
    most = 20.0 if clip_log_ratio_max is None else clip_log_ratio_max

    def decide(b: int, t: int) -> dict[str, float]:
        parts: list[dict[str, float]] = []
        for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True):
            log = clip(new - old, least, most)
            found = surrogate(math.exp(log), advantage[b][t], clip_ratio_low, clip_ratio_high, clip_ratio_c)
            parts.append({**found, **observed_ratio(log)})
        return average(parts)

    return summed(mask, decide, aggregation)


def clip(x: float, low: float, high: float) -> float:
    """The nearest number in [low, high]."""
    return min(max(x, low), high)


def observed_ratio(log: float) -> dict[str, float]:
    """What is logged of a ratio."""
    ratio = math.exp(log)
    return {"ratio": ratio, "ratio_abs": abs(ratio - 1), "approx_kl": ratio - 1 - log}


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> dict[str, float]:
    """The pessimistic loss of one ratio, and which bound holds it."""
    free = -ratio * advantage
    clipped = -clip(ratio, 1 - low, 1 + high) * advantage
    loss = max(free, clipped)
    too_much = dual is not None and advantage < 0 and loss > dual * -advantage
    if dual is not None and too_much:
        loss = dual * -advantage
    return {"loss": loss, "policy_loss": loss, "clip_fraction": float(clipped > free), "dual_clip_fraction": float(too_much)}


def decoupled_ppo(
    logprob: Nested,
    logprob_old: Nested,
    logprob_proximal: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    behave_weight_threshold: float | None = None,
    behave_weight_cap: Literal["drop", "truncate"] = "drop",
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = w max(−ρ Â, −clip(ρ, 1 − ε_low, 1 + ε_high) Â), ρ = π / π_prox, w = π_prox / π_old."""

    def decide(b: int, t: int) -> dict[str, float]:
        parts: list[dict[str, float]] = []
        for new, old, near in zip(at(logprob, b, t), at(logprob_old, b, t), at(logprob_proximal, b, t), strict=True):
            update, behave = observed_ratio(clip(new - near, -20, 20)), observed_ratio(clip(near - old, -20, 20))
            weight = behave["ratio"]
            above = behave_weight_threshold is not None and weight > behave_weight_threshold
            if behave_weight_threshold is not None and above:
                weight = 0.0 if behave_weight_cap == "drop" else behave_weight_threshold
            found = surrogate(update["ratio"], advantage[b][t], clip_ratio_low, clip_ratio_high, clip_ratio_c)
            loss = weight * found["loss"]
            parts.append(
                {
                    "loss": loss,
                    "policy_loss": loss,
                    "proximal_ratio": update["ratio"],
                    "clipped_proximal_ratio": clip(update["ratio"], 1 - clip_ratio_low, 1 + clip_ratio_high),
                    "proximal_approx_kl": update["approx_kl"],
                    "behave_ratio": behave["ratio"],
                    "behave_approx_kl": behave["approx_kl"],
                    "behave_clip_fraction": float(above),
                    "clip_fraction": found["clip_fraction"],
                    "dual_clip_fraction": found["dual_clip_fraction"],
                }
            )
        return average(parts)

    return summed(mask, decide, aggregation)


def interpolated_proximal(logprob: Nested, logprob_old: Nested, version: Rows, *, version_now: int) -> list[list[list[float]]]:
    """Log-linear between: log π_old + α (log π − log π_old), α = (v − 1 − v_old) / (v − v_old), 0 at v_old ≥ v."""

    def share(old: float) -> float:
        return 0.0 if old >= version_now else (version_now - 1 - old) / (version_now - old)

    def between(b: int, t: int) -> list[float]:
        alpha = share(version[b][t])
        return [old + alpha * (new - old) for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True)]

    return [[between(b, t) for t in range(len(row))] for b, row in enumerate(version)]


def cispo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = −clip(ρ, 1 − ε_low, 1 + ε_high) Â log π."""

    def decide(b: int, t: int) -> dict[str, float]:
        parts: list[dict[str, float]] = []
        for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True):
            log = clip(new - old, -20, 20)
            ratio = math.exp(log)
            weight = clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)
            loss = -weight * advantage[b][t] * new
            clipped = float(not 1 - clip_ratio_low <= ratio <= 1 + clip_ratio_high)
            parts.append({"loss": loss, "policy_loss": loss, "clip_fraction": clipped, **observed_ratio(log)})
        return average(parts)

    return summed(mask, decide, aggregation)


def gspo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    token_level: bool = False,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> Summed:
    """One ratio, s = exp(mean log-ratio of the row, within ±20), clipped as in PPO; `token_level` changes gradients alone."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]) / len(columns[b]), -20, 20)
        found = surrogate(math.exp(log), advantage[b][t], clip_ratio_low, clip_ratio_high, clip_ratio_c)
        return {**found, **observed_ratio(log)}

    return summed(mask, decide, aggregation)


def mean_log_ratio(logprob: Nested, logprob_old: Nested, b: int, t: int) -> float:
    """The mean over a decision's elements of log π − log π_old."""
    pairs = list(zip(at(logprob, b, t), at(logprob_old, b, t), strict=True))
    return sum(new - old for new, old in pairs) / len(pairs)


def gmpo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    clip_log_ratio_low: float = 0.4,
    clip_log_ratio_high: float = 0.4,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> Summed:
    """L = −Â exp(mean over the row of pessimistically clipped log-ratios)."""
    columns = decided(mask)

    def logs(b: int, t: int) -> list[float]:
        return [new - old for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True)]

    def kept(b: int, t: int) -> list[float]:
        good = advantage[b][t] > 0
        return [min(log, clip_log_ratio_high) if good else max(log, -clip_log_ratio_low) for log in logs(b, t)]

    def decide(b: int, t: int) -> dict[str, float]:
        row = [sum(kept(b, k)) / len(kept(b, k)) for k in columns[b]]
        loss = -advantage[b][t] * math.exp(clip(sum(row) / len(row), -20, 20))
        lost = [float(one != two and advantage[b][t] != 0) for one, two in zip(logs(b, t), kept(b, t), strict=True)]
        near = [clip(log, -20, 20) for log in logs(b, t)]
        observed = [{"clip_fraction": share, **observed_ratio(log)} for share, log in zip(lost, near, strict=True)]
        return {"loss": loss, "policy_loss": loss, **average(observed)}

    return summed(mask, decide, aggregation)


def sapo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    sequence_level: bool = False,
    aggregation: Aggregation = SEQUENCE_MEAN,
) -> Summed:
    """L = −4/τ σ(τ (ρ − 1)) Â, with the geometric mean of a row's ratios for ρ if `sequence_level`."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        tau = tau_pos if advantage[b][t] > 0 else tau_neg
        parts: list[dict[str, float]] = []
        logs = [new - old for new, old in zip(at(logprob, b, t), at(logprob_old, b, t), strict=True)]
        if sequence_level:
            logs = [sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]) / len(columns[b])]
        for log in (clip(x, -20, 20) for x in logs):
            gate = _sigmoid(tau * (math.exp(log) - 1))
            loss = -4 / tau * gate * advantage[b][t]
            parts.append({"loss": loss, "policy_loss": loss, "gate": 4 * gate * (1 - gate), **observed_ratio(log)})
        return average(parts)

    return summed(mask, decide, aggregation)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def vespo(
    logprob: Nested,
    logprob_old: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    c1_pos: float = 2.0,
    c2_pos: float = 3.0,
    c1_neg: float = 3.0,
    c2_neg: float = 2.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = −W^c₁ exp(c₂ (1 − W)) Â log π, with W the product of a row's ratios."""
    columns = decided(mask)

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(sum(mean_log_ratio(logprob, logprob_old, b, k) for k in columns[b]), -20, 20)
        c1, c2 = (c1_pos, c2_pos) if advantage[b][t] >= 0 else (c1_neg, c2_neg)
        weight = math.exp(log) ** c1 * math.exp(c2 * (1 - math.exp(log)))
        elements = at(logprob, b, t)
        loss = -weight * advantage[b][t] * sum(elements) / len(elements)
        return {"loss": loss, "policy_loss": loss, "sequence_weight": weight, "sequence_log_ratio": log}

    return summed(mask, decide, aggregation)


def reinforce(
    logprob: Nested,
    advantage: Rows,
    mask: Mask,
    *,
    logprob_old: Nested | None = None,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = −Â log π, times ρ if the policy that decided is given."""

    def decide(b: int, t: int) -> dict[str, float]:
        parts: list[dict[str, float]] = []
        for i, new in enumerate(at(logprob, b, t)):
            weight, observed = 1.0, dict[str, float]()
            if logprob_old is not None:
                log = clip(new - at(logprob_old, b, t)[i], -20, 20)
                weight, observed = math.exp(log), observed_ratio(log)
            loss = -weight * advantage[b][t] * new
            parts.append({"loss": loss, "policy_loss": loss, **observed})
        return average(parts)

    return summed(mask, decide, aggregation)


def opmd(logprob: Nested, advantage: Rows, mask: Mask, *, tau: float = 1.0, aggregation: Aggregation = TOKEN_MEAN) -> Summed:
    """L = −Â log π / (1 + τ)."""

    def decide(b: int, t: int) -> dict[str, float]:
        elements = at(logprob, b, t)
        loss = -advantage[b][t] * sum(elements) / len(elements) / (1 + tau)
        return {"loss": loss, "policy_loss": loss}

    return summed(mask, decide, aggregation)


def covariance(logprob: Rows, advantage: Rows, mask: Mask) -> list[list[float]]:
    """The product of what log π and Â are above their means; 0 where masked."""
    places = [(b, t) for b, columns in enumerate(decided(mask)) for t in columns]
    mean_logprob = sum(logprob[b][t] for b, t in places) / max(len(places), 1)
    mean_advantage = sum(advantage[b][t] for b, t in places) / max(len(places), 1)
    found = [[0.0] * len(row) for row in mask]
    for b, t in places:
        found[b][t] = (logprob[b][t] - mean_logprob) * (advantage[b][t] - mean_advantage)
    return found


def kl_cov(
    logprob: Rows,
    logprob_old: Rows,
    advantage: Rows,
    mask: Mask,
    *,
    share: float = 2e-4,
    kl_coef: float = 1.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """L = −ρ Â, and β |log ρ| more where the covariance is greatest."""
    score = covariance(logprob, advantage, mask)
    places = [(b, t) for b, columns in enumerate(decided(mask)) for t in columns]
    ranked = sorted(places, key=lambda place: -score[place[0]][place[1]])
    chosen = set(ranked[: max(1, int(share * len(places)))])

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(logprob[b][t] - logprob_old[b][t], -20, 20)
        held = (b, t) in chosen
        observed = observed_ratio(log)
        loss = -observed["ratio"] * advantage[b][t] + (kl_coef * abs(log) if held else 0.0)
        return {"loss": loss, "policy_loss": loss, "chosen_fraction": float(held), **observed}

    return summed(mask, decide, aggregation)


def clip_cov(
    logprob: Rows,
    logprob_old: Rows,
    advantage: Rows,
    mask: Mask,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    low: float = 1.0,
    high: float = 5.0,
    aggregation: Aggregation = TOKEN_MEAN,
) -> Summed:
    """PPO's surrogate without all decisions that may be left out: what the fast one gives with a share of 1."""
    score = covariance(logprob, advantage, mask)

    def decide(b: int, t: int) -> dict[str, float]:
        log = clip(logprob[b][t] - logprob_old[b][t], -20, 20)
        observed = observed_ratio(log)
        found = surrogate(observed["ratio"], advantage[b][t], clip_ratio_low, clip_ratio_high, None)
        out = low < score[b][t] < high and not found["clip_fraction"]
        loss = 0.0 if out else found["loss"]
        return {**found, **observed, "loss": loss, "policy_loss": loss, "chosen_fraction": float(out)}

    return summed(mask, decide, aggregation)
