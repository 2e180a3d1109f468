"""Which weights decided: the versions that rollout workers were given, and how old that is which is trained on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping


class Versions:
    """The weight versions that the rollout was given, and how old a decision is: the number of updates since its weights."""

    def __init__(self) -> None:
        self._published: list[int] = []

    def publish(self, *versions: int) -> None:
        """Adds versions, in ascending order; one that is known already changes nothing."""
        for version in versions:
            if not self._published or version > self._published[-1]:
                self._published.append(version)

    def lag(self, version: int | None) -> int:
        """How many published versions are newer than that of a decision; 0 for no decision."""
        return 0 if version is None else len(self._published) - bisect_right(self._published, version)

    def lags(self, decisions: Mapping[int, int]) -> dict[int, int]:
        """How many decisions are so old, by lag, ascending.

        Args:
            decisions: how many were made, by version.
        """
        found: dict[int, int] = {}
        for version, count in decisions.items():
            found[self.lag(version)] = found.get(self.lag(version), 0) + count
        return dict(sorted(found.items()))

    def state(self, kept: int) -> list[int]:
        """The last `kept` versions."""
        return self._published[-kept:]


def lag_scalars(lags: Mapping[int, int]) -> dict[str, float]:
    """The distribution of lags: `rollout/lag`, its mean, `rollout/lag_p50`, `rollout/lag_max`, and the share of each lag.

    Args:
        lags: how many decisions are so old, by lag, ascending.
    """
    total = sum(lags.values())
    if not total:
        return {}
    passed, median = 0, 0
    for lag, count in lags.items():
        passed += count
        # Of two in the middle the lower one.
        if 2 * passed >= total:
            median = lag
            break
    return {
        "rollout/lag": sum(lag * count for lag, count in lags.items()) / total,
        "rollout/lag_p50": float(median),
        "rollout/lag_max": float(max(lags)),
        **{f"rollout/lag_{lag}": count / total for lag, count in lags.items()},
    }
