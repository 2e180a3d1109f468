"""Several rewards as one."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rlinf.algorithms.rewards.pool import VerifierPool
from rlinf.algorithms.rewards.reward import Pairs, RuleReward
from rlinf.algorithms.rewards.scores import Scores, checked_scores
from rlinf.algorithms.rewards.scoring import score
from rlinf.core.declarations import Checks
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import Metric, Statistic
from rlinf.core.protocols import Reward
from rlinf.core.registry import REWARDS
from rlinf.core.rewards import HasOpinion, RewardSample, SampleReward, WeightedScores


def weighted(parts: Mapping[str, tuple[float, Scores]]) -> Scores:
    """The weighted sum of the scores of one batch.

    rᵢ = Σ_p w_p · r_{p,i}

    Args:
        parts: the weight of each part and its scores, by name; at least one.

    Returns:
        One score for each pair. Metrics: `score`, the mean of the sum; `p`, the mean of part p before its weight; what else part p
        counts as `p/…`. A pair has failed where any part failed.

    Raises:
        ShapeError: the parts have different numbers of scores.
        NonFiniteError: a score is infinite or not a number.
    """
    count = max(len(scores.values) for _, scores in parts.values())
    for name, (_, scores) in parts.items():
        checked_scores(scores, f"weighted({name})", count)
    rows = zip(*(scores.values for _, scores in parts.values()), strict=True)
    weights = [weight for weight, _ in parts.values()]
    # fsum: the order of the parts, which a mapping decides, must not change a score.
    values = [math.fsum(w * r for w, r in zip(weights, row, strict=True)) for row in rows]
    metrics: dict[str, Statistic] = {"score": Metric(math.fsum(values), float(len(values)))}
    failures: dict[int, str] = {}
    for name, (_, scores) in parts.items():
        metrics |= {name if key == "score" else f"{name}/{key}": metric for key, metric in scores.metrics.items()}
        for index, problem in scores.failures.items():
            failures.setdefault(index, f"{name}: {problem}")
    return Scores(values=values, metrics=metrics, failures=dict(sorted(failures.items())))


@dataclass(frozen=True, slots=True)
class Part:
    """One of several rewards."""

    reward: str | Reward | SampleReward
    """A registered name, or a reward."""
    weight: float = 1.0
    """What its score is multiplied by; negative for a penalty that is counted positive."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The hyper-parameters, if it is chosen by name."""
    built: Any = field(init=False, repr=False, compare=False)
    """The reward itself."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError("weight", f"expected a finite number, found {self.weight}")
        if isinstance(self.reward, str):
            REWARDS.get(self.reward, place="reward")
            built = REWARDS.build(self.reward, self.params, place="params")
        elif not callable(self.reward) and not isinstance(self.reward, SampleReward):
            raise ConfigError("reward", f"expected a name or a reward, found {self.reward!r}")
        elif self.params:
            raise ConfigError("params", "given for a reward that is built already", "Give its name instead.")
        else:
            built = self.reward
        object.__setattr__(self, "built", built)


@dataclass(frozen=True, slots=True)
class Composite(RuleReward):
    """The weighted sum of named rewards, by name: `composite`. A part that fails counts its lowest score, 0 as a rule.

    As configuration: `{parts: {accuracy: {reward: math}, shape: {reward: think_format, weight: 0.1, params: {tag: think}}}}`.
    A run logs the mean and the standard deviation of each part; its parts are asked at the same time.
    """

    parts: Mapping[str, Part]
    """The rewards; their names name metrics."""

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("parts", "expected at least one part, found none")
        if "score" in self.parts:
            raise ConfigError("parts.score", "'score' is the name of the sum", "Name the part otherwise.")

    @property
    def rewards(self) -> Mapping[str, object]:
        """The reward of each part, by name."""
        return {name: part.built for name, part in self.parts.items()}

    @property
    def opinion(self) -> bool:
        """Whether a model's opinion is in the sum."""
        return any(part.weight and isinstance(part.built, HasOpinion) and part.built.opinion for part in self.parts.values())

    def check(self, place: str) -> None:
        """Refuses what a part refuses, such as a machine on which no sandbox can confine programs as far as it must."""
        for name, part in self.parts.items():
            if isinstance(part.built, Checks):
                part.built.check(f"{place}.parts.{name}.params")

    async def score_samples(self, samples: Sequence[RewardSample]) -> Mapping[str, WeightedScores]:
        """What each part says of whole responses; a part that only knows texts and answers is given these."""
        said = await asyncio.gather(*(_said(part.built, samples) for part in self.parts.values()))
        return {
            name: WeightedScores(values=values, weight=part.weight)
            for (name, part), values in zip(self.parts.items(), said, strict=True)
        }

    def score_pairs(self, pairs: Pairs, timeout_s: float | None, pool: VerifierPool | None) -> Scores:
        """The weighted sum; each part's mean is a metric."""
        for name, part in self.parts.items():
            if isinstance(part.built, SampleReward) and not callable(part.built):
                raise ConfigError(f"parts.{name}", "looks at whole responses, found texts alone", "Call score_samples(samples).")
        completions, answers = [completion for completion, _ in pairs], [answer for _, answer in pairs]
        found = {
            name: (part.weight, score(part.built, completions, answers, timeout_s=timeout_s, pool=pool))
            for name, part in self.parts.items()
        }
        return weighted(found)


async def _said(reward: Reward | SampleReward, samples: Sequence[RewardSample]) -> Sequence[float]:
    """One number for each sample; a reward that does not wait runs in a thread, so that others go on."""
    if not isinstance(reward, SampleReward):
        texts, answers = [sample.text for sample in samples], [sample.answer for sample in samples]
        return (await asyncio.to_thread(score, reward, texts, answers)).values
    if inspect.iscoroutinefunction(reward.score_samples):
        found = await reward.score_samples(samples)
    else:
        found = await asyncio.to_thread(reward.score_samples, samples)
        found = await found if inspect.isawaitable(found) else found
    return _summed(cast("Mapping[str, WeightedScores]", found)) if isinstance(found, Mapping) else found


def _summed(parts: Mapping[str, WeightedScores]) -> Sequence[float]:
    """The weighted sum of a part that has parts itself."""
    rows = zip(*(part.values for part in parts.values()), strict=True)
    return [math.fsum(p.weight * r for p, r in zip(parts.values(), row, strict=True)) for row in rows]
