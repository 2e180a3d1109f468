"""Why a trainer and a rollout may disagree about the same decisions, and what speaks for each cause."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf.core.data import Scores as Scores

STRAIGHT, SLANTED = 0.8, 0.05
"""When a line through both sides' log-probabilities tells of a temperature: its R² at least, and how far its slope is from 1."""
SHIFTS = (-2, -1, 1, 2)
TEMPERATURES = tuple(2 ** (step / 8) for step in range(-16, 17) if step)
"""Factors that are tried: 1/4 … 4."""
LIKELY = 0.5
"""A cause that explains less of the gap is not named."""
ROUNDING = 0.05
"""A mean |Δ| above this is not rounding: 8-bit mantissas give about 0.01 a token."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason, and its evidence."""

    name: str
    """`weights`, `temperature`, `shift`, `ends`, `noise`, `precision` or `not finite`."""
    explains: float
    """The share of the gap, 0 … 1, that it accounts for."""
    evidence: str
    """What was measured."""
    remedy: str


@torch.no_grad()
def likely_causes(scores: Scores[Tensor]) -> list[Cause]:
    """What accounts for at least half of the gap, the strongest first."""
    gap = gap_of(scores)
    size = float(gap.abs().mean())
    # The other tests measure means, which such numbers spoil.
    if not torch.isfinite(gap).all():
        return [_not_finite(scores)]
    tests = (_weights, _noise, _temperature, _shift, _ends, _precision)
    found = [cause for cause in (test(scores, size) for test in tests) if cause is not None and cause.explains >= LIKELY]
    return sorted(found, key=lambda cause: -cause.explains)


def _not_finite(scores: Scores[Tensor]) -> Cause:
    sides = {"rollout": scores.rollout, "trainer": scores.trainer}
    bad = {side: int((~torch.isfinite(of[scores.mask.bool()])).sum()) for side, of in sides.items()}
    evidence = ", ".join(f"{count} of the {side}'s log-probabilities are not finite" for side, count in bad.items() if count)
    return Cause("not finite", 1.0, evidence, "Find the module with FiniteWatch.")


def _weights(scores: Scores[Tensor], size: float) -> Cause | None:
    """Other weights: by version, and by checksum."""
    remedy = "Synchronise weights before the rollout, and check that a sync takes effect (caches, tied heads)."
    if scores.checksums is not None:
        rollout, trainer = scores.checksums
        differ = sorted(name for name in rollout.keys() | trainer.keys() if rollout.get(name) != trainer.get(name))
        if differ:
            return Cause("weights", 1.0, f"{len(differ)} of {len(trainer)} tensors differ, the first is {differ[0]}", remedy)
        # Equal checksums rule other weights out, whatever the versions say.
        return None
    if scores.version is None or scores.trainer_version is None:
        return None
    other = (scores.version != scores.trainer_version) & scores.mask.bool()
    share = float((gap_of(scores).abs() * other).mean()) / size
    if not other.any():
        return None
    oldest, newest = int(scores.version[other].min()), int(scores.version[other].max())
    evidence = f"{int(other.sum())} decisions are of versions {oldest} to {newest}, the trainer has {scores.trainer_version}"
    return Cause("weights", share, f"{evidence}; they have {share:.0%} of the gap", remedy)


def _noise(scores: Scores[Tensor], size: float) -> Cause | None:
    """The trainer does not agree with itself: dropout, or another source of chance."""
    if scores.rescore is None:
        return None
    twice = float(_gap(scores.rescore(1.0), scores.rescore(1.0), scores.mask).abs().mean())
    evidence = f"two scorings by the trainer differ by {twice:.2g} on average, the gap is {size:.2g}"
    return Cause("noise", min(1.0, twice / size), evidence, "Put the trainer's model into evaluation mode: dropout is on.")


def _temperature(scores: Scores[Tensor], size: float) -> Cause | None:
    """One factor of all logits: tried out, or else seen as a slope."""
    remedy = "Give rollout.sampling_params.temperature and the trainer's model the same temperature."
    if scores.rescore is not None:
        left = {t: float(_gap(scores.rescore(t), scores.rollout, scores.mask).abs().mean()) for t in TEMPERATURES}
        best = min(left, key=lambda t: left[t])
        explains = 1 - left[best] / size
        evidence = f"at {best:.3g} times the trainer's temperature {explains:.0%} of the gap is gone"
        return Cause("temperature", explains, evidence, remedy)
    mask = scores.mask.bool()
    x, y = scores.trainer[mask].double(), scores.rollout[mask].double()
    if x.numel() < 3 or not float(x.var()) > 0 or not float(y.var()) > 0:
        return None
    fit = float(torch.corrcoef(torch.stack([x, y]))[0, 1]) ** 2
    slope = float(((x - x.mean()) * (y - y.mean())).mean() / x.var(correction=0))
    evidence = f"the rollout's log-probabilities rise by {slope:.3g} for 1 of the trainer's, all along one line (R² = {fit:.2f})"
    told = fit > STRAIGHT and abs(slope - 1) > SLANTED
    return Cause("temperature", fit if told else 0.0, evidence, remedy)


def _shift(scores: Scores[Tensor], size: float) -> Cause | None:
    """Scores that belong to a neighbour's token."""
    length = scores.rollout.shape[-1]
    mask = scores.mask.bool()
    left: dict[int, float] = {}
    for shift in SHIFTS:
        if abs(shift) >= length:
            continue
        mine, other = (slice(shift, None), slice(None, -shift)) if shift > 0 else (slice(None, shift), slice(-shift, None))
        both = mask[..., mine] & mask[..., other]
        if both.any():
            left[shift] = float((scores.trainer[..., mine].double() - scores.rollout[..., other].double())[both].abs().mean())
    if not left:
        return None
    best = min(left, key=lambda shift: left[shift])
    # Over what counts, as those that are left; `size` is over all columns.
    before = float(gap_of(scores)[mask].abs().mean())
    explains = 1 - left[best] / before
    where = f"{abs(best)} {'later' if best > 0 else 'earlier'}"
    evidence = f"the trainer's scores of {where} leave {left[best]:.2g} of a mean gap of {before:.2g}"
    return Cause("shift", explains, evidence, "Logits at position t score token t + 1: compare the slices of both sides.")


def _ends(scores: Scores[Tensor], size: float) -> Cause | None:
    """Only the first or the last decisions of rows: the boundary of the prompt, the stop token."""
    mask = scores.mask.bool()
    order = mask.long().cumsum(-1)
    parts = {"first": (order == 1) & mask, "last": (order == mask.sum(-1, keepdim=True)) & mask}
    share = {name: float((gap_of(scores).abs() * part).mean()) / size for name, part in parts.items()}
    name = max(share, key=lambda part: share[part])
    # In rows of one or two decisions, the ends are most of what there is.
    if int(parts[name].sum()) * 2 > int(mask.sum()):
        return None
    remedy = "Look at the stop token: it belongs to the response." if name == "last" else "Look at where the prompt ends."
    return Cause("ends", share[name], f"the {name} decision of each row has {share[name]:.0%} of the gap", remedy)


def _precision(scores: Scores[Tensor], size: float) -> Cause | None:
    """Small gaps without a direction."""
    gap = gap_of(scores)[scores.mask.bool()]
    mean, typical = float(gap.mean()), float(gap.abs().mean())
    if typical > ROUNDING or abs(mean) > 0.3 * typical:
        return None
    evidence = f"the gap is {typical:.2g} on average and has no direction (its mean is {mean:.2g})"
    remedy = "Score and generate in the same type and with the same kernels, or raise actor.logprob_tolerance."
    # As little as is named at all, so that whatever explains more comes first.
    return Cause("precision", LIKELY, evidence, remedy)


def gap_of(scores: Scores[Tensor]) -> Tensor:
    """`[B, T]` float64, trainer − rollout, 0 where nothing counts."""
    return _gap(scores.trainer, scores.rollout, scores.mask)


def _gap(one: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), one.double() - other.double(), 0.0)
