"""Traces of runs that are made up, for the planner."""

from __future__ import annotations

from pathlib import Path

from rlinf.scheduler.trace import Span
from rlinf.scheduler.trace.chrome import write
from rlinf.scheduler.trace.reading import CORES, PLACEMENT, VIRTUAL_DEVICES

MS = 1_000_000
STEPS = 4


def trace(
    folder: Path,
    ranks: int,
    *,
    actor_ms: int = 60,
    both_ms: int = 0,
    aside_ms: int = 0,
    aside: str = "prepare",
    taken: int = 1,
    move_ms: int = 0,
    parts: dict[str, int] | None = None,
    virtual: bool = False,
    cores: int = 0,
    devices: dict[str, list[list[int]]] | None = None,
) -> Path:
    """A run of `ranks` env and rollout workers and one actor: 2 rounds, in which each works for 40 and 20 ms over all its ranks.

    For `both_ms` of a step rollout works although env does, too, and for `aside_ms` env does so beside the actor, in its method
    `aside`. Rollout takes `taken` items at once. Of the actor's call `move_ms` each are loading and offloading, after which it says
    what its `parts` take.
    """
    recorded: list[Span] = []
    at, number = 0, 0

    def span(kind: str, who: str, name: str, start: int, end: int, **fields: object) -> None:
        recorded.append(Span(kind=kind, who=who, thread=1, name=name, start=start * MS, end=end * MS, **fields))  # type: ignore[arg-type]

    for _ in range(STEPS):
        begin, env_ms, rollout_ms = at, 40 // ranks, 20 // ranks
        end = begin + 2 * (env_ms + rollout_ms)
        for rank in range(ranks):
            for half in range(2):
                start = begin + half * (env_ms + rollout_ms)
                for channel, producer, consumer, within, items in (
                    ("ask", "env", "rollout", "generate", taken),
                    ("answer", "rollout", "env", "interact", 1),
                ):
                    number += 1
                    span("put", f"{producer}[{rank}]", channel, start + env_ms, start + env_ms, items=1, ids=(number,))
                    got = start + env_ms
                    span("get", f"{consumer}[{rank}]", channel, got, got, items=items, ids=(number,), within=within)
            span("call", f"env[{rank}]", "interact", begin, end, waited=2 * rollout_ms * MS)
            span("call", f"rollout[{rank}]", "generate", begin, end, waited=(2 * env_ms - both_ms) * MS)
            number += 1
            span("put", f"env[{rank}]", "rows", end, end, items=1, ids=(number,))
            span("get", "actor[0]", "rows", end, end, items=1, ids=(number,))
        span("call", "actor[0]", "run_training", end, end + actor_ms)
        for timer, begun in (("load", end), ("offload", end + actor_ms - move_ms)) if move_ms else ():
            span("timer", "actor[0]", timer, begun, begun + move_ms)
        for part, size in (parts or {}).items():
            span("memory", "actor[0]", part, end + actor_ms, end + actor_ms, bytes=size)
        if aside_ms:
            span("call", "env[0]", aside, end + actor_ms - max(actor_ms, aside_ms), end + min(actor_ms, aside_ms))
        at = end + actor_ms + 5
    placed = devices or {"env": [[rank] for rank in range(ranks)], "rollout": [[rank] for rank in range(ranks)], "actor": [[0]]}
    return write(folder / "trace.json", recorded, {"start_ns": 0, PLACEMENT: placed, VIRTUAL_DEVICES: virtual, CORES: cores})
