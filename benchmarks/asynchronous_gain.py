"""What asynchronous training gains as the lengths of responses spread: `asynchronous_gain.py`. Simulated time, seconds of CPU.

A GPU that writes n responses needs `STEP_S + SEQUENCE_S · n` for one token of each, has `PLACES` of them, and fills a place as soon
as it is free. The synchronous run writes a batch on all GPUs, waits for its longest response, and trains on all GPUs. The
asynchronous one writes on some and trains on the others: `lag` + 1 batches more than were trained on may be begun. It trains on
whatever ends first, so that a long response may be more than `lag` versions old.

The constants are a model of 8 billion bf16 weights on an H100 (3.35 TB/s, 989 TFLOP/s by its data sheet), with responses of 8,192
tokens on average: reading the weights is 16 GB, the cache of a half written response 131 kB · 4,096; training and rescoring are
8 FLOP per weight and token at 40 % of the peak.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlinf.core.random import keyed_generator

BANDWIDTH, PEAK = 3.35e12, 989e12
WEIGHTS, CACHE = 8e9, 131_072
MEAN = 8192
STEP_S = 2 * WEIGHTS / BANDWIDTH
SEQUENCE_S = CACHE * MEAN / 2 / BANDWIDTH
TRAIN_S = 8 * WEIGHTS / (0.4 * PEAK)
"""Of one token on one GPU."""
PLACES = 64
SWITCH_S = 10.0
"""Of a collocated step, to load and offload; by hand."""
GPUS = 16
STEPS, WARM = 12, 6
LAGS = (1, 4)
SIGMAS = (0.0, 0.5, 1.0, 1.3)
CASES = ((64, 4.0), (128, 4.0), (64, 16.0), (128, 16.0), (256, 16.0))
"""Responses of a step for each GPU, and where they are cut, in means."""
RESULTS = Path(__file__).parent / "results" / "asynchronous_gain.json"


def lengths(sigma: float, cut: float, count: int, step: int) -> list[float]:
    """Tokens of the responses of a step; lognormal, cut."""
    normal = keyed_generator(0, "lengths", step).standard_normal(count)
    return (MEAN * np.minimum(np.exp(sigma * normal - sigma**2 / 2), cut)).tolist()


@dataclass(slots=True)
class Writer:
    """A GPU that writes: its responses go on at the same pace, so that one number says how far all of them are."""

    now: float = 0.0
    written: float = 0.0
    """Tokens that each place has written since the beginning."""
    under_way: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])
    """At which of them a response ends, its tokens, and the weight version with which it began; a heap."""

    def advance(self, now: float) -> None:
        """Writes until then."""
        if self.under_way:
            self.written += (now - self.now) / (STEP_S + SEQUENCE_S * len(self.under_way))
        self.now = now

    @property
    def next_s(self) -> float:
        """When the next response ends."""
        return self.now + max(0.0, self.under_way[0][0] - self.written) * (STEP_S + SEQUENCE_S * len(self.under_way))


class Rollout:
    """GPUs that take responses from one queue.

    Args:
        gpus: how many.
        refills: whether a GPU begins the next response as soon as it has a place; otherwise when all of its own have ended.
    """

    def __init__(self, gpus: int, *, refills: bool = True) -> None:
        self._refills = refills
        self._writers = [Writer() for _ in range(gpus)]
        self._queue: deque[float] = deque()
        self._events: list[tuple[float, int]] = []
        self.version = 0

    def add(self, tokens: Sequence[float], now: float) -> None:
        """Responses that may be begun from now on."""
        self._queue.extend(tokens)
        free = [writer for writer in self._writers if self._refills or not writer.under_way]
        while self._queue and free:
            writer = min(free, key=lambda each: len(each.under_way))
            if len(writer.under_way) >= PLACES:
                break
            writer.advance(now)
            self._begin(writer)
        # With more responses the next ones of all end later than was said.
        self._events = [(writer.next_s, at) for at, writer in enumerate(self._writers) if writer.under_way]
        heapq.heapify(self._events)

    @property
    def next_s(self) -> float:
        """When the next response ends; never, if none is under way."""
        return self._events[0][0] if self._events else math.inf

    def pop(self) -> tuple[float, int]:
        """Goes on until the next response ends; its tokens, and the version with which it began."""
        now, at = heapq.heappop(self._events)
        writer = self._writers[at]
        writer.advance(now)
        _, tokens, version = heapq.heappop(writer.under_way)
        if self._refills or not writer.under_way:
            while self._queue and len(writer.under_way) < PLACES:
                self._begin(writer)
        if writer.under_way:
            heapq.heappush(self._events, (writer.next_s, at))
        return tokens, version

    def _begin(self, writer: Writer) -> None:
        tokens = self._queue.popleft()
        heapq.heappush(writer.under_way, (writer.written + tokens, tokens, self.version))


def writing_s(tokens: Sequence[float], gpus: int) -> float:
    """Seconds until the last response of a batch is written."""
    rollout, last = Rollout(gpus), 0.0
    rollout.add(tokens, 0.0)
    while (now := rollout.next_s) < math.inf:
        last = now
        rollout.pop()
    return last


def asynchronous_s(batches: Sequence[Sequence[float]], writing: int, lag: int, *, refills: bool = True) -> tuple[float, float, int]:
    """If so many GPUs write and the others train: seconds for each token, and how many versions old, on average and at most."""
    rollout, waiting = Rollout(writing, refills=refills), deque[tuple[float, int]]()
    for batch in batches[: lag + 1]:
        rollout.add(batch, 0.0)
    ends, tokens, behind = list[float](), list[float](), list[int]()
    now, trained = 0.0, math.inf
    while len(ends) < STEPS:
        if trained == math.inf and len(waiting) >= len(batches[0]):
            taken = [waiting.popleft() for _ in batches[0]]
            tokens.append(sum(each for each, _ in taken))
            behind = [*(behind if len(ends) > WARM else []), *(len(ends) - version for _, version in taken)]
            trained = now + TRAIN_S * tokens[-1] / (GPUS - writing)
        if rollout.next_s < trained:
            now = rollout.next_s
            waiting.append(rollout.pop())
            continue
        now, trained = trained, math.inf
        ends.append(now)
        rollout.version = len(ends)
        # One version more: as many responses more may be begun.
        rollout.add(batches[len(ends) + lag], now)
    # By tokens: those that end first are short.
    return (ends[-1] - ends[WARM - 1]) / sum(tokens[WARM:]), float(np.mean(behind)), max(behind)


def case(each: int, cut: float, sigma: float) -> dict[str, float]:
    """One row: how many times as fast as the synchronous run, with the best of five splits of the GPUs."""
    drawn = [lengths(sigma, cut, GPUS * each, step) for step in range(STEPS + max(LAGS) + 1)]
    tokens = float(np.mean([sum(batch) for batch in drawn[:STEPS]])) / GPUS
    write_s = float(np.mean([writing_s(batch, GPUS) for batch in drawn[:STEPS]]))
    train_s = TRAIN_S * tokens
    whole_s = write_s + train_s + SWITCH_S
    full_s = tokens * (STEP_S / PLACES + SEQUENCE_S)
    at = round(GPUS * full_s / (full_s + train_s))
    splits = {min(GPUS - 1, max(1, at + more)) for more in (-1, 0, 1, 3, 5)}
    apart = min(float(np.mean([writing_s(batch, n) for batch in drawn[:STEPS]])) + train_s * GPUS / (GPUS - n) for n in splits)
    row = {"responses": each, "cut": cut, "sigma": sigma, "writing_s": write_s, "full_s": full_s, "training_s": train_s}
    row["apart"] = whole_s / apart
    each_s = whole_s / (tokens * GPUS)
    for lag in LAGS:
        token_s, row[f"behind {lag}"], row[f"most {lag}"] = min(asynchronous_s(drawn, n, lag) for n in splits)
        row[f"lag {lag}"] = each_s / token_s
    lag = max(LAGS)
    row[f"lag {lag}, in batches"] = each_s / min(asynchronous_s(drawn, n, lag, refills=False) for n in splits)[0]
    return row


def main() -> None:
    """Prints the gains, and writes them beside this script."""
    rows: list[dict[str, float]] = []
    for (each, cut), sigma in itertools.product(CASES, SIGMAS):
        rows.append(case(each, cut, sigma))
        print(" ".join(f"{name}={value:.2f}" for name, value in rows[-1].items()), flush=True)
    RESULTS.write_text(json.dumps({"gpus": GPUS, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
