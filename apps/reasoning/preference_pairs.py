"""Writes pairs of responses to sums, a right one and a wrong one: `uv run apps/reasoning/preference_pairs.py --out FILE.jsonl`.

The right one shows its work; the wrong one is a guess, or goes wrong at one result. `reward_arithmetic` learns from them. With
`--questions` each response becomes a question of its own, with the answer yes or no, from which `judge_arithmetic` learns.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlinf.core.config.arguments import ArgumentParser, whole
from rlinf.core.random import keyed_generator
from rlinf.envs.tasks import Arithmetic
from rlinf.runners import run_app


def main(argv: Sequence[str]) -> int:
    """Writes one pair for each of the first training problems; none of the problems that are held out is among them."""
    args = _parse(argv)
    draw = keyed_generator(args.seed, "pairs")
    problems = Arithmetic(terms=args.terms, worked_share=1.0, train=args.pairs, seed=args.task_seed).problems("train")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8") as file:
        for problem in problems:
            solution = problem.solution or ""
            row = {"prompt": str(problem.prompt), "chosen": solution, "rejected": spoilt(solution, draw)}
            rows = questions(**row) if args.questions else [row]
            file.writelines(json.dumps(row) + "\n" for row in rows)
    sys.stdout.write(f"{len(problems)} pairs are in {args.out}\n")
    return 0


def questions(prompt: str, chosen: str, rejected: str) -> list[dict[str, str]]:
    """Each response of a pair as a question, the sum and what was said of it, with its answer."""
    return [{"prompt": prompt + chosen, "answer": "yes"}, {"prompt": prompt + rejected, "answer": "no"}]


def spoilt(solution: str, draw: np.random.Generator) -> str:
    """A wrong response: half of them are a guess alone, the others go wrong at one result."""
    results = list(re.finditer(r"(?<=[=#])\d+", solution))
    guess = bool(draw.integers(2))
    # The last number is the answer, off by as much as a hasty teacher is.
    at = results[-1] if guess else results[int(draw.integers(len(results)))]
    off = int(draw.integers(1, 6))
    wrong = str(int(at[0]) + off if int(at[0]) < off or draw.integers(2) else int(at[0]) - off)
    return f"#{wrong}" if guess else f"{solution[: at.start()]}{wrong}{solution[at.end() :]}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file, JSON lines")
    parser.add_argument("--pairs", type=whole(1), default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--terms", type=whole(2), default=6, help="numbers in a sum, data.terms of a run (default: %(default)s)")
    parser.add_argument("--questions", action="store_true", help="write two questions for each pair, to be answered yes and no")
    parser.add_argument("--seed", type=whole(0), default=0, help="of what goes wrong (default: %(default)s)")
    parser.add_argument("--task-seed", type=whole(0), default=0, help="of the problems, data.seed of a run (default: %(default)s)")
    parser.add_argument("--traceback", action="store_true", help="show errors with their traceback")
    return parser.parse_args(list(argv))


if __name__ == "__main__":
    run_app(main)
