"""How fast replay buffers take and give transitions, beside those of torchrl and cpprb in one process.

    uv pip install --target others --no-deps torchrl tensordict cpprb pyvers orjson importlib_metadata zipp
    PYTHONPATH=others uv run benchmarks/replay_buffers.py

8 environments hand over 16 decisions each at a time, in episodes of 1000 steps, which each buffer gets in its own format; a batch
has 256 transitions. All buffers hold the same transitions when batches are drawn, and all are measured in turn, so that a busy
machine disturbs them alike. What is not installed is left out. Prints, as a Markdown table, transitions per CPU-second of this
process (medians over rounds) and ours by the faster of the others. With n-step returns cpprb sums rewards when transitions are
added, ours when they are drawn; torchrl's sums need the batches of its own collectors, and are left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
import torch

from rlinf.core.data import Trajectory
from rlinf.core.replay import ReplayBuffer, Sampling

ENVS, STEPS, BATCH, EPISODE, GAMMA = 8, 16, 256, 1000, 0.99
ALPHA, BETA = 0.6, 0.4


@dataclass(frozen=True)
class Case:
    """What is kept."""

    name: str
    observation: tuple[int, ...]
    dtype: str
    capacity: int
    n_step: int = 1
    prioritized: bool = False


@dataclass
class Contestant:
    """A filled buffer, and what is measured of it."""

    made: Callable[[dict[str, Any]], Any]
    """What environments hand over, in its own format; not measured."""
    add: Callable[[Any], None]
    learn: Callable[[], None]
    """Draws a batch, and with priorities tells its errors."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=200_000, help="transitions of vectors; images have a twentieth")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=200, help="batches drawn in a round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    vectors = ((17,), "float32", given.capacity)
    cases = [
        Case("uniform", *vectors),
        Case("prioritized", *vectors, prioritized=True),
        Case("uniform, n = 3", *vectors, n_step=3),
        Case("uniform, 84 × 84 × 3", (84, 84, 3), "uint8", given.capacity // 20),
    ]
    print(f"torch {torch.__version__}, numpy {np.__version__}, capacity {given.capacity:,}, {given.rounds} rounds\n")
    print("| | | rlinf | torchrl | cpprb | rlinf / best |\n|---|---|---|---|---|---|")
    for case in cases:
        for what, speeds in measured(case, given.rounds, given.batches).items():
            others = [speed for who, speed in speeds.items() if who != "rlinf"]
            ratio = f"{speeds['rlinf'] / max(others):.1f}" if others else "–"
            cells = [f"{speeds[who] / 1e3:,.0f} k/s" if who in speeds else "–" for who in ("rlinf", "torchrl", "cpprb")]
            print(f"| {case.name} | {what} | {' | '.join(cells)} | {ratio} |", flush=True)


def measured(case: Case, rounds: int, batches: int) -> dict[str, dict[str, float]]:
    """Transitions per CPU-second of each contestant, by what they do."""
    built = {"rlinf": ours(case)}
    for who, build, module in (("torchrl", torchrls, "torchrl.data"), ("cpprb", cpprbs, "cpprb")):
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        if who == "torchrl" and case.n_step > 1:
            continue
        built[who] = build(case)
    messages = stream(case)
    for _ in range(case.capacity // (ENVS * STEPS) + 1):
        message = next(messages)
        for each in built.values():
            each.add(each.made(message))
    spent: dict[str, dict[str, list[float]]] = {"add": {who: [] for who in built}, "learn from a batch": {who: [] for who in built}}
    for _ in range(rounds):
        handed = [next(messages) for _ in range(max(1, batches // 4))]
        for who, each in built.items():
            given = [each.made(message) for message in handed]
            spent["add"][who].append(
                len(given) * ENVS * STEPS / seconds(lambda each=each, given=given: [each.add(m) for m in given])
            )
            spent["learn from a batch"][who].append(
                batches * BATCH / seconds(lambda each=each: [each.learn() for _ in range(batches)])
            )
    return {what: {who: statistics.median(speeds) for who, speeds in of.items()} for what, of in spent.items()}


def seconds(run: Callable[[], object]) -> float:
    """CPU-seconds of this process."""
    before = time.process_time()
    run()
    return time.process_time() - before


def stream(case: Case) -> Iterator[dict[str, Any]]:
    """What 8 environments hand over, without end: observations `[8, 17, *]`, everything else `[8, 16, *]`."""
    random = np.random.default_rng(0)
    pool = random.integers(0, 256, (64, *case.observation)).astype(case.dtype)
    at = 0
    while True:
        seen = pool[(np.arange(ENVS)[:, None] * 7 + at + np.arange(STEPS + 1)) % len(pool)]
        ends = (at + np.arange(STEPS)) % EPISODE == EPISODE - 1
        yield {
            "seen": seen,
            "action": random.random((ENVS, STEPS, 6), np.float32),
            "reward": random.random((ENVS, STEPS), np.float32),
            "truncated": np.repeat(ends[None], ENVS, 0),
            "episode": at // EPISODE,
        }
        at += STEPS


def ours(case: Case) -> Contestant:
    """Ours."""
    sampling = Sampling(type="prioritized", alpha=ALPHA, beta=BETA) if case.prioritized else None
    buffer = ReplayBuffer(capacity=case.capacity, producers=ENVS, n_step=case.n_step, gamma=GAMMA, sampling=sampling)
    errors = np.random.default_rng(1).random(BATCH).astype(np.float32)
    producers = np.arange(ENVS)

    def made(message: dict[str, Any]) -> Trajectory[Any]:
        reward = message["reward"]
        return Trajectory.of(
            context={},
            action=message["action"][:, :, None],
            logprob=reward,
            reward=reward,
            truncated=message["truncated"],
            episode=message["episode"] * ENVS + producers,
            observation={"states": message["seen"]},
        )

    def add(rows: Trajectory[Any]) -> None:
        buffer.add(rows, producers)

    def learn() -> None:
        index = buffer.draw(BATCH)
        buffer.take(index, beta=BETA)
        if case.prioritized:
            buffer.update_priorities(index, errors)

    return Contestant(made, add, learn)


def flat(message: dict[str, Any]) -> dict[str, Any]:
    """One row for each transition."""
    seen, rows = message["seen"], ENVS * STEPS
    return {
        "obs": seen[:, :-1].reshape(rows, *seen.shape[2:]),
        "next_obs": seen[:, 1:].reshape(rows, *seen.shape[2:]),
        "act": message["action"].reshape(rows, -1),
        "rew": message["reward"].reshape(rows),
        "done": message["truncated"].reshape(rows),
    }


def cpprbs(case: Case) -> Contestant:
    """That of cpprb."""
    cpprb: Any = importlib.import_module("cpprb")
    about = {
        "obs": {"shape": case.observation, "dtype": np.dtype(case.dtype)},
        "next_obs": {"shape": case.observation, "dtype": np.dtype(case.dtype)},
        "act": {"shape": 6},
        "rew": {},
        "done": {"dtype": np.bool_},
    }
    more: dict[str, Any] = {}
    if case.n_step > 1:
        more["Nstep"] = {"size": case.n_step, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
    kind = cpprb.PrioritizedReplayBuffer if case.prioritized else cpprb.ReplayBuffer
    buffer = kind(case.capacity, about, **more, **({"alpha": ALPHA} if case.prioritized else {}))
    errors = np.random.default_rng(1).random(BATCH).astype(np.float32)

    def add(rows: dict[str, Any]) -> None:
        if case.n_step == 1:
            buffer.add(**rows)
            return
        # Its n-step sums follow one environment at a time.
        for begin in range(0, ENVS * STEPS, STEPS):
            buffer.add(**{name: column[begin : begin + STEPS] for name, column in rows.items()})
            buffer.on_episode_end()

    def learn() -> None:
        if case.prioritized:
            drawn = buffer.sample(BATCH, BETA)
            buffer.update_priorities(drawn["indexes"], errors)
        else:
            buffer.sample(BATCH)

    return Contestant(flat, add, learn)


def torchrls(case: Case) -> Contestant:
    """That of torchrl."""
    data: Any = importlib.import_module("torchrl.data")
    samplers: Any = importlib.import_module("torchrl.data.replay_buffers.samplers")
    dictionary: Any = importlib.import_module("tensordict").TensorDict
    storage = data.LazyTensorStorage(case.capacity)
    prioritized = samplers.PrioritizedSampler(case.capacity, ALPHA, BETA) if case.prioritized else samplers.RandomSampler()
    buffer = data.TensorDictReplayBuffer(storage=storage, sampler=prioritized, batch_size=BATCH, priority_key="td_error")
    errors = torch.as_tensor(np.random.default_rng(1).random(BATCH).astype(np.float32))

    def made(message: dict[str, Any]) -> Any:
        rows = {name: torch.as_tensor(column) for name, column in flat(message).items()}
        after = {"observation": rows["next_obs"], "reward": rows["rew"][:, None], "done": rows["done"][:, None]}
        after |= {"terminated": torch.zeros_like(after["done"]), "truncated": after["done"]}
        return dictionary({"observation": rows["obs"], "action": rows["act"], "next": after}, batch_size=[ENVS * STEPS])

    def learn() -> None:
        drawn = buffer.sample()
        if case.prioritized:
            drawn["td_error"] = errors
            buffer.update_tensordict_priority(drawn)

    return Contestant(made, buffer.extend, learn)


if __name__ == "__main__":
    main()
