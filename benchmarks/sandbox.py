"""What a program costs in the sandbox, beside a bare interpreter: `uv run benchmarks/sandbox.py`.

The same short program runs in both, in a batch: in the sandbox as the code reward gives it, a fork of a warm interpreter for each;
bare as `subprocess.run([python, "-I", "-c", …])` from as many threads as the sandbox has workers. Rounds alternate, so that a busy
machine disturbs both alike; the ratio is the median of those of neighbouring rounds. One level is left out where the machine does
not allow it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from rlinf.envs.sandbox import LEVELS, Execution, ProcessSandbox

PROGRAM = "import collections, json, math, re\na, b = map(int, input().split())\nprint(a + b)"


def bare(threads: ThreadPoolExecutor, count: int) -> None:
    """The program, each time in an interpreter that starts anew."""
    command = [sys.executable, "-I", "-c", PROGRAM]

    def once(_: int) -> str:
        return subprocess.run(command, input="1 2", capture_output=True, text=True, check=True).stdout

    if any(text != "3\n" for text in threads.map(once, range(count))):
        raise RuntimeError("a program said something else")


def timed(work: Callable[[], None], count: int) -> float:
    """Executions per second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def compared(level: str, args: argparse.Namespace) -> dict[str, float | str]:
    """Executions per second of both, and the ratio."""
    config = ProcessSandbox(level=level, workers=args.workers, namespaces_by=args.namespaces_by)  # pyright: ignore[reportArgumentType]
    began = time.perf_counter()
    with config.build() as running, ThreadPoolExecutor(args.workers) as threads:
        start_s = time.perf_counter() - began
        executions = [Execution(program=PROGRAM, stdin="1 2")] * args.count

        def confined() -> None:
            if any(result.stdout != "3\n" for result in running.run(executions)):
                raise RuntimeError("a program said something else")

        confined()  # starts the other workers
        rounds = [(timed(confined, args.count), timed(lambda: bare(threads, args.count), args.count)) for _ in range(args.rounds)]
    return {
        "level": level,
        "start_s": round(start_s, 3),
        "sandbox_per_s": round(statistics.median(ours for ours, _ in rounds), 1),
        "subprocess_per_s": round(statistics.median(theirs for _, theirs in rounds), 1),
        "ratio": round(statistics.median(ours / theirs for ours, theirs in rounds), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--count", type=int, default=100, help="executions in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--namespaces-by", choices=("auto", "unshare", "bubblewrap"), default="auto")
    args = parser.parse_args(arguments)
    for level in args.levels:
        refusal = ProcessSandbox(level=level, namespaces_by=args.namespaces_by).refusal()
        line = {"level": level, "refused": refusal} if refusal else compared(level, args)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
