"""Advantages by comparison, and the statistics that they take."""

from __future__ import annotations

import math
from fractions import Fraction

from reference.returns import discounted_returns


def variance(line: list[float], *, unbiased: bool) -> float:
    """The variance of a list; 0 of fewer than two numbers."""
    if len(line) < 2:
        return 0.0
    mean = _mean(line)
    square = sum((x - mean) ** 2 for x in line)
    return square / (len(line) - 1) if unbiased else square / len(line)


def divisor(count: float, *, unbiased: bool) -> float:
    """What a sum of squares is divided by to be a variance: at least 1."""
    wanted = count - 1 if unbiased else count
    return 1 if wanted < 1 else wanted


def root(variance: float) -> float:
    """√σ²."""
    return math.sqrt(variance)


def _mean(line: list[float]) -> float:
    return sum(line) / len(line) if line else 0.0


def moments(x: list[list[float]], mask: list[list[bool]], *, unbiased: bool = False) -> tuple[float, float]:
    """μ and σ of the entries that count."""
    kept = [x[b][t] for b in range(len(x)) for t in range(len(x[b])) if mask[b][t]]
    mean = sum(kept) / len(kept) if kept else 0.0
    return mean, math.sqrt(variance(kept, unbiased=unbiased))


def whiten(
    x: list[list[float]],
    mask: list[list[bool]],
    *,
    shift_mean: bool = True,
    unbiased: bool = False,
    eps: float = 1e-8,
) -> list[list[float]]:
    """(x − μ) / (σ + ε), to which μ is added again if it should stay; 0 where masked."""
    mean, deviation = moments(x, mask, unbiased=unbiased)
    white = [[0.0 for _ in row] for row in x]
    for b, row in enumerate(x):
        for t, value in enumerate(row):
            if mask[b][t]:
                white[b][t] = (value - mean) / (deviation + eps)
                if not shift_mean:
                    white[b][t] += mean
    return white


def normalize_advantages(
    advantage: list[list[float]],
    mask: list[list[bool]],
    *,
    over: str = "batch",
    group: list[int] | None = None,
    unbiased: bool = False,
    eps: float = 1e-8,
) -> list[list[float]]:
    """(Â − μ) / (σ + ε) over the rows that are compared: all of them, or those of the group; 0 where masked."""
    found = [[0.0 for _ in row] for row in advantage]
    for b, row in enumerate(advantage):
        compared = [i for i in range(len(advantage)) if over == "batch" or (group is not None and group[i] == group[b])]
        mean, deviation = moments([advantage[i] for i in compared], [mask[i] for i in compared], unbiased=unbiased)
        for t, value in enumerate(row):
            if mask[b][t]:
                found[b][t] = value if over == "none" else (value - mean) / (deviation + eps)
    return found


def raw(
    reward: list[list[float]],
    mask: list[list[bool]],
    *,
    normalize: bool = False,
    unbiased: bool = True,
    eps: float = 1e-5,
) -> list[list[float]]:
    """The reward, or (r − μ) / (σ + ε); 0 where masked."""
    if normalize:
        return whiten(reward, mask, unbiased=unbiased, eps=eps)
    return [[r if decided else 0.0 for r, decided in zip(*pair, strict=True)] for pair in zip(reward, mask, strict=True)]


Nested = float | list[float] | list[list[float]]


def row_score(reward: list[list[float]], mask: list[list[bool]]) -> list[float]:
    """Σₜ of the unmasked rewards of each row."""
    return [sum(r for r, m in zip(*pair, strict=True) if m) for pair in zip(reward, mask, strict=True)]


def at_last_decision(score: list[float], mask: list[list[bool]]) -> list[list[float]]:
    """The score in the last unmasked column of its row, 0 elsewhere."""
    paid = [[0.0 for _ in row] for row in mask]
    for b, row in enumerate(mask):
        columns = [t for t, decided in enumerate(row) if decided]
        if columns:
            paid[b][columns[-1]] = score[b]
    return paid


def to_decisions(advantage: list[float], mask: list[list[bool]]) -> list[list[float]]:
    """The row's advantage in each unmasked column, 0 elsewhere."""
    return [[a if decided else 0.0 for decided in row] for a, row in zip(advantage, mask, strict=True)]


def joint(logprob: list[list[Nested]]) -> list[list[float]]:
    """The sum over whatever a decision's entry holds: a number, a list of numbers, or a list of lists."""
    return [[_total(entry) for entry in row] for row in logprob]


def _total(entry: Nested) -> float:
    return sum(_total(part) for part in entry) if isinstance(entry, list) else entry


def numbered(name: list[int]) -> tuple[list[int], int]:
    """The rank of each name among all names, and how many names there are."""
    names = sorted(set(name))
    return [names.index(x) for x in name], len(names)


def pairs(first: list[int], second: list[int]) -> list[int]:
    """The rank of each pair among all pairs."""
    both = list(zip(first, second, strict=True))
    names = sorted(set(both))
    return [names.index(pair) for pair in both]


def grpo(
    score: list[float],
    group: list[int],
    *,
    valid: list[bool] | None = None,
    scale: str = "group",
    unbiased: bool = True,
    eps: float = 1e-6,
    leave_one_out: bool = False,
) -> list[float]:
    """(sᵢ − mean of the group, with or without i) / (deviation of the group or of the batch + ε)."""
    everyone = [s for i, s in enumerate(score) if counts(valid, i)]
    found = [0.0 for _ in score]
    for i in range(len(score)):
        mine = members(score, group, valid, group[i])
        others = members(score, group, valid, group[i], without=i) if leave_one_out else mine
        if not counts(valid, i) or len(mine) == 1:
            continue
        found[i] = float(Fraction(score[i]) - mean(others))
        compared = {"group": mine, "batch": everyone}.get(scale)
        if compared is not None and found[i] != 0:
            found[i] /= math.sqrt(variance(compared, unbiased=unbiased)) + eps
    return found


def rloo(score: list[float], group: list[int], *, valid: list[bool] | None = None) -> list[float]:
    """sᵢ less the mean of the others of the group; 0 where there are none."""
    found = [0.0 for _ in score]
    for i in range(len(score)):
        others = members(score, group, valid, group[i], without=i)
        if counts(valid, i) and others:
            found[i] = float(Fraction(score[i]) - mean(others))
    return found


def opo(score: list[float], group: list[int], length: list[int], *, valid: list[bool] | None = None) -> list[float]:
    """sᵢ less the mean of the group, in which each score counts as often as it has decisions."""
    found = [0.0 for _ in score]
    for i in range(len(score)):
        rows = [j for j in range(len(score)) if group[j] == group[i] and counts(valid, j)]
        repeated = [score[j] for j in rows for _ in range(length[j])]
        if counts(valid, i):
            found[i] = float(Fraction(score[i]) - (mean(repeated) if repeated else mean([score[j] for j in rows])))
    return found


def remax(score: list[float], baseline: list[float], *, valid: list[bool] | None = None) -> list[float]:
    """sᵢ − bᵢ."""
    return [s - b if counts(valid, i) else 0.0 for i, (s, b) in enumerate(zip(score, baseline, strict=True))]


def counts(valid: list[bool] | None, i: int) -> bool:
    """Whether row i takes part."""
    return valid is None or valid[i]


def members(
    score: list[float], group: list[int], valid: list[bool] | None, name: int, *, without: int | None = None
) -> list[float]:
    """The scores of the rows of a group that take part, one row left out or none."""
    return [s for j, s in enumerate(score) if group[j] == name and counts(valid, j) and j != without]


def mean(numbers: list[float]) -> Fraction:
    """The exact mean."""
    return sum((Fraction(x) for x in numbers), Fraction()) / len(numbers)


def grpo_dynamic(
    score: list[float],
    episode: list[int],
    group: list[int],
    *,
    mode: str = "turn",
    valid: list[bool] | None = None,
    scale: str = "group",
    unbiased: bool = True,
    eps: float = 1e-6,
) -> list[float]:
    """GRPO of all turns of a question, or of the mean scores of its episodes."""
    if mode == "turn":
        return grpo(score, group, valid=valid, scale=scale, unbiased=unbiased, eps=eps)
    turns: dict[tuple[int, int], list[float]] = {}
    for i, s in enumerate(score):
        if counts(valid, i):
            turns.setdefault((group[i], episode[i]), []).append(s)
    means = [float(mean(scores)) for scores in turns.values()]
    compared = grpo(means, [question for question, _ in turns], scale=scale, unbiased=unbiased, eps=eps)
    advantage = dict(zip(turns, compared, strict=True))
    return [advantage[group[i], episode[i]] if counts(valid, i) else 0.0 for i in range(len(score))]


def grpo_video(
    reward: list[list[float]],
    group: list[int],
    mask: list[list[bool]],
    *,
    mode: str,
    unbiased: bool = True,
    eps: float = 1e-6,
) -> list[list[float]]:
    """GRPO of the frames of a group at the same step, or of all its frames."""
    found = [[0.0 for _ in row] for row in reward]
    names = {(g, t if mode == "frame" else 0) for g in group for t in range(len(reward[0]))}
    for name in names:
        places = [
            (b, t)
            for b in range(len(reward))
            for t in range(len(reward[b]))
            if mask[b][t] and (group[b], t if mode == "frame" else 0) == name
        ]
        compared = grpo([reward[b][t] for b, t in places], [0 for _ in places], unbiased=unbiased, eps=eps)
        for (b, t), advantage in zip(places, compared, strict=True):
            found[b][t] = advantage
    return found


def grpo_passk(
    score: list[float],
    group: list[int],
    *,
    valid: list[bool] | None = None,
    scale: str = "group",
    unbiased: bool = True,
    eps: float = 1e-6,
) -> list[float]:
    """What the maximum of the group would lose without the best row, over the deviation + ε; 0 for every other row."""
    everyone = [s for i, s in enumerate(score) if counts(valid, i)]
    found = [0.0 for _ in score]
    for name in set(group):
        rows = [i for i in range(len(score)) if group[i] == name and counts(valid, i)]
        if len(rows) < 2:
            continue
        best = max(rows, key=lambda i: score[i])
        gain = float(Fraction(score[best]) - max(Fraction(score[i]) for i in rows if i != best))
        compared = {"group": [score[i] for i in rows], "batch": everyone}.get(scale)
        if compared is not None and gain != 0:
            gain /= math.sqrt(variance(compared, unbiased=unbiased)) + eps
        found[best] = gain
    return found


def optimal_token_baseline(
    reward: list[list[float]],
    mask: list[list[bool]],
    group: list[int],
    logprob: list[list[float]],
    sum_pi_squared: list[list[float]],
    *,
    gamma: float = 1.0,
    handle_zero_tail: bool = True,
    eps: float = 1e-8,
) -> list[list[float]]:
    """Gᵢₜ − Σⱼ Wⱼₜ Gⱼₜ / (Σⱼ Wⱼₜ + ε) over the rows j of the group that are at work in column t."""
    never = [[False for _ in row] for row in reward]
    returns = discounted_returns(reward, never, never, gamma=gamma, mask=mask)
    found = [[0.0 for _ in row] for row in reward]
    for i, row in enumerate(reward):
        for t in range(len(row)):
            rows = [j for j in range(len(reward)) if group[j] == group[i] and mask[j][t]]
            if not mask[i][t]:
                continue
            weight = {j: sum(_energy(logprob[j][k], sum_pi_squared[j][k]) for k in range(t + 1) if mask[j][k]) for j in rows}
            baseline = sum(weight[j] * returns[j][t] for j in rows) / (sum(weight.values()) + eps)
            found[i][t] = returns[i][t] - (0.0 if handle_zero_tail and len(rows) == 1 else baseline)
    return found


def _energy(logprob: float, sum_pi_squared: float) -> float:
    return max(0.0, 1.0 - 2.0 * math.exp(logprob) + sum_pi_squared)


def reinforce_plus_plus(
    reward: list[list[float]],
    mask: list[list[bool]],
    *,
    gamma: float = 1.0,
    kl: list[list[float]] | None = None,
    kl_beta: float = 0.0,
    group: list[int] | None = None,
    unbiased: bool = False,
) -> tuple[list[list[float]], list[list[float]]]:
    """The penalised rewards to go, normalised over all unmasked tokens; and as they were before."""
    returns = [[0.0 for _ in row] for row in reward]
    columns = [[t for t, decided in enumerate(row) if decided] for row in mask]
    for b, mine in enumerate(columns):
        later = 0.0
        for t in reversed(mine):
            paid = reward[b][t]
            if kl is not None:
                paid -= kl_beta * kl[b][t]
            if group is not None and t == mine[-1]:
                peers = [i for i in range(len(reward)) if group[i] == group[b] and columns[i]]
                paid -= float(mean([sum(reward[i][c] for c in columns[i]) for i in peers]))
            later = paid + gamma * later
            returns[b][t] = later
    return whiten(returns, mask, unbiased=unbiased), returns


def opd_advantage(
    logprob: list[list[float]], logprob_teacher: list[list[float]], *, mask: list[list[bool]] | None = None
) -> list[list[float]]:
    """Returns log π_teacher − log π; 0 where masked."""
    found = [[0.0 for _ in row] for row in logprob]
    for b, row in enumerate(logprob):
        for t, student in enumerate(row):
            if mask is None or mask[b][t]:
                found[b][t] = logprob_teacher[b][t] - student
    return found


def loss_scale(unit: list[int], mask: list[list[bool]]) -> list[float]:
    """(N / U) / n_u for each row; 0 for a unit without decisions."""
    decisions = dict.fromkeys(unit, 0)
    for name, row in zip(unit, mask, strict=True):
        decisions[name] += sum(row)
    counted = [n for n in decisions.values() if n]
    return [sum(counted) / len(counted) / decisions[name] if decisions[name] else 0.0 for name in unit]
