"""What it gains to play on while the actor trains: `uv run benchmarks/max_lag.py`.

Runs `apps/embodied/train.py` on Ray, with each component on devices of its own, with `rollout.max_lag` 0, 1 and 2. The simulator
and the trainer sleep for a known time in each step (`training_pipeline.py`), so that other work on the machine hardly counts. An
iteration plays for R seconds and trains for U. Synchronous it takes R + U; played ahead, the longer one of them:

    max_lag 0       R + U        max_lag > 0       max(R, U)

Prints the median seconds of an iteration, the bound, and how old the decisions are that are trained on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from training_pipeline import Case, lines_of

UNTIMED = 2
"""Iterations at the start that do not count: the first has nothing to overlap with."""


def rows(case: Case, iterations: int, max_lag: int) -> list[dict[str, float]]:
    """The metrics of the iterations that count."""
    # The last iterations have nobody who plays ahead of them.
    lines = lines_of(case, iterations + UNTIMED + max_lag, [*case.overrides(piped=False), f"rollout.max_lag={max_lag}"])
    return lines[UNTIMED : UNTIMED + iterations]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollout-s", type=float, default=3.0)
    parser.add_argument("--update-s", type=float, default=3.0)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--max-lag", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, help="where the results are written, too")
    args = parser.parse_args()
    case = Case(rollout_epochs=1, update_epochs=1, rollout_s=args.rollout_s, update_s=args.update_s)
    found: list[dict[str, float]] = []
    sys.stdout.write("max_lag   s/iteration   bound   ratio   mean lag   greatest\n")
    for max_lag in args.max_lag:
        measured = rows(case, args.iterations, max_lag)
        took = statistics.median(row["time/step"] for row in measured)
        bound = max(args.rollout_s, args.update_s) if max_lag else args.rollout_s + args.update_s
        lag = statistics.fmean(row.get("rollout/lag", 0.0) for row in measured)
        most = max(row.get("rollout/lag_max", 0.0) for row in measured)
        sys.stdout.write(f"{max_lag:7}   {took:11.2f}   {bound:5.2f}   {took / bound:5.2f}   {lag:8.2f}   {most:8.0f}\n")
        found.append({"max_lag": max_lag, "seconds": took, "bound": bound, "lag": lag, "lag_max": most})
    if args.json is not None:
        args.json.write_text(json.dumps({"rollout_s": args.rollout_s, "update_s": args.update_s, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
