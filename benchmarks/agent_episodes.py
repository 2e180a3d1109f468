"""How many episodes a second many conversations at once come to: `uv run benchmarks/agent_episodes.py`.

Real parts play each episode (task, turns as exact tokens, tags, tool box, deadline); what writes turns is a stand-in that calls
a tool and then answers, and the tool waits, for a time drawn from a lognormal distribution. The waits are the same in every row:

    sequential    one episode after the other, as a plain loop does it
    N at a time   on one event loop, as a rollout worker does it (`agent.max_concurrent`)

The bound is that of waiting alone: the work cannot end before its longest episode does, nor before all waits are through N places.
`processor_ms` is what an episode costs the processor, from which the highest rate of one worker follows, whatever its tools take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf.core.agents import Episode, Tool, ToolBox
from rlinf.core.data import Completion
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Problem
from rlinf.core.random import keyed_generator
from rlinf.models.language import CausalLMConfig, TokensConfig
from rlinf.models.language.tool_calls import TagFormat
from rlinf.runners.agent import UseTools
from rlinf.runners.agent.episode_groups import EpisodeGroup
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.tool_use import ToolFormatSection

WORDS = ("<wait>", "</wait>", "<result>", "</result>")


@dataclass(frozen=True)
class Load:
    """What is played."""

    waits: np.ndarray[Any, Any]
    """`[E, C]` seconds: of each call of each episode."""
    tokenizer: Any
    config: AgentSection

    def bound_s(self, places: int) -> float:
        """Seconds that the waits alone take, at least."""
        return max(float(self.waits.sum(1).max()), float(self.waits.sum()) / places)


class Writer:
    """A stand-in for a model: so many calls, each for its own wait, then an answer.

    Args:
        load: what is played.
        episode: which one.
    """

    def __init__(self, load: Load, episode: int) -> None:
        self._load, self._episode, self._turn = load, episode, 0

    async def generate(
        self, prompt: Sequence[int], sampling: SamplingConfig, *, seed: int, request_id: str, partial: Any = None
    ) -> Completion[Any]:
        """The next turn."""
        waits = self._load.waits[self._episode]
        more = self._turn < len(waits)
        text = f"<wait>{waits[self._turn]:.6f}</wait>" if more else "#done<eos>"
        self._turn += 1
        tokens = np.asarray(self._load.tokenizer.encode(text, add_special_tokens=False))
        nothing = np.zeros(len(tokens), np.float32)
        return Completion(tokens=tokens, logprob=nothing, version=nothing.astype(np.int64), finish="stop")


async def wait(seconds: float) -> str:
    """Waits.

    Args:
        seconds: how long.
    """
    await asyncio.sleep(seconds)
    return "ok"


async def played(load: Load, episodes: range, places: int) -> list[Episode]:
    """The episodes, so many at a time."""
    box, room = ToolBox([Tool.of(wait)]), asyncio.Semaphore(places)
    prompt = tuple(load.tokenizer.encode("wait:", add_special_tokens=False))

    def begin(episode: int) -> tuple[Task, TurnGenerator]:
        problem = Problem(prompt="wait:", answer="done", id=episode)
        task = Task(problem=problem, prompt=prompt, tools=box, config=load.config, tokenizer=load.tokenizer)
        writer: Any = Writer(load, episode)
        sampling = SamplingConfig(max_new_tokens=64)
        return task, TurnGenerator(writer, sampling, seed=episode, request=str(episode), playing=EpisodeGroup(writer).member())

    async def one(episode: int) -> Episode:
        async with room:
            return await play(load.config, lambda attempt: begin(episode))

    return list(await asyncio.gather(*map(one, episodes)))


def measured(load: Load, name: str, count: int, places: int) -> dict[str, float | str]:
    """One row of the table; of fewer episodes where they take longer."""
    part = Load(load.waits[:count], load.tokenizer, load.config)
    began, used = time.perf_counter(), time.process_time()
    episodes = asyncio.run(played(part, range(count), places))
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - used
    if any(episode.answer != "#done" or len(episode.own_turns) != load.waits.shape[1] + 1 for episode in episodes):
        raise RuntimeError("an episode went another way")
    return {
        "played": name,
        "episodes": count,
        "per_s": round(count / took_s, 2),
        "bound_per_s": round(count / part.bound_s(places), 2),
        "share_of_bound": round(part.bound_s(places) / took_s, 3),
        "processor_ms": round(1000 * cpu_s / count, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each way, and the ratio of the best one to the sequential loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=4, help="of a tool in each episode")
    parser.add_argument("--median-s", type=float, default=0.1, help="of a wait")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the logarithm of a wait")
    parser.add_argument("--at-a-time", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    drawn = keyed_generator(given.seed, "waits of tools").lognormal(
        np.log(given.median_s), given.sigma, (given.episodes, given.calls)
    )
    tokenizer = CausalLMConfig(preset="tiny", tokens=TokensConfig(kind="characters", words=WORDS)).tokenizer([])
    form = ToolFormatSection(type="tags", format=TagFormat())
    load = Load(drawn, tokenizer, AgentSection(tool_format=form, workflow=UseTools(), max_turns=given.calls + 1))
    rows: list[dict[str, float | str]] = []
    for name, places in [("sequential", 1), *((f"{places} at a time", places) for places in given.at_a_time)]:
        # A sequential loop over all of them would take minutes; its rate does not depend on how many there are.
        rows.append(measured(load, name, min(given.episodes, 32 * places), places))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps({"ratio": round(max(float(row["per_s"]) for row in rows) / float(rows[0]["per_s"]), 1)}) + "\n")


if __name__ == "__main__":
    main()
