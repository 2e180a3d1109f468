"""What it gains to suspend the slowest episodes and go on with them later: `uv run benchmarks/partial_episodes.py`.

Runs `apps/agent/train.py` on the back-end `local` with a tool whose answers take a lognormal time, drawn anew for each call. Every
episode writes a turn, asks the tool, reads the answer and writes another turn; a group has ended with the slowest of its episodes:

    waited for    `rollout.oversample=1`: an iteration lasts until its slowest group has ended
    begun anew    `oversample` above 1, `partial_lag` 0: what is not needed is aborted, and begins anew in the next iteration
    suspended     the same, `partial_lag` 1: it goes on in the next iteration, and its tool answers in the meantime

The weights are drawn at random, for the time of an iteration does not depend on what is learned. Prints the median and the mean
seconds of an iteration, the first of which does not count, tokens that were written in vain, and how old the oldest token is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections import Counter

from rlinf.core.agents import AgentTask, Episode, Generate, ToolCall
from rlinf.core.random import keyed_generator
from timed_runs import iterations_of

ASKED = Counter[int]()
"""How often the tool was asked, by problem."""


async def lookup(problem: int) -> str:
    """Answers late.

    Args:
        problem: who asks.
    """
    ASKED[problem] += 1
    draw = keyed_generator(int(os.environ["WAIT_SEED"]), "wait of a tool", problem, ASKED[problem])
    await asyncio.sleep(float(os.environ["MEDIAN_S"]) * float(draw.lognormal(0.0, float(os.environ["SIGMA"]))))
    return "7"


async def ask_once(task: AgentTask, generate: Generate) -> Episode:
    """`agent.workflow_type: partial_episodes:ask_once`: two turns, and the tool between them."""
    chat = task.conversation()
    await generate(chat)
    chat.add(await task.tools.call_all([ToolCall(name="lookup", arguments={"problem": task.problem.id})]))
    last = await generate(chat)
    return Episode(branches=(chat.closed(),), finish="stop", answer=last.text)


def counted(given: argparse.Namespace, *overrides: str) -> list[dict[str, float]]:
    """The metrics of the iterations of a run that count."""
    sizes = [f"runner.max_steps={given.iterations + 1}", f"data.rollout_batch_size={given.groups}", "data.val_problems=1"]
    sizes += ["data.final_problems=1", "sft=null", f"actor.global_batch_size={8 * given.groups}", "cluster.backend=local"]
    agent = ["agent.workflow_type=partial_episodes:ask_once", "agent.tools=[{type: 'partial_episodes:lookup'}]"]
    waits = {"MEDIAN_S": str(given.median_s), "SIGMA": str(given.sigma), "WAIT_SEED": str(given.seed)}
    lines = iterations_of("agent", *sizes, *agent, *overrides, variables=waits, timeout_s=3600)
    return [line for line in lines if "train/loss" in line][1:]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--groups", type=int, default=8, help="of 8 episodes, in each iteration")
    parser.add_argument("--oversample", type=float, default=1.5)
    parser.add_argument("--median-s", type=float, default=1.0, help="of a wait")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the logarithm of a wait")
    parser.add_argument("--seed", type=int, default=0, help="of the waits")
    given = parser.parse_args()
    more = f"rollout.oversample={given.oversample}"
    cases = {"waited for": (), "begun anew": (more,), "suspended": (more, "rollout.partial_lag=1")}
    sys.stdout.write("the slowest are   median s   mean s   tokens in vain   oldest token\n")
    means: dict[str, float] = {}
    for name, overrides in cases.items():
        rows = counted(given, *overrides)
        took = [row["time/step"] for row in rows]
        means[name] = statistics.fmean(took)
        vain = sum(row["rollout/discarded_tokens"] for row in rows)
        oldest = max(row["rollout/lag_max"] for row in rows)
        sys.stdout.write(f"{name:15}   {statistics.median(took):8.2f}   {means[name]:6.2f}   {vain:14.0f}   {oldest:12.0f}\n")
        sys.stdout.flush()
    ratios = {name: round(mean / means["suspended"], 2) for name, mean in means.items()}
    sys.stdout.write(json.dumps({"mean seconds, over those of suspended": ratios}) + "\n")


if __name__ == "__main__":
    main()
