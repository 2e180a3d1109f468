"""Evaluation: results of episodes, the protocol that made them, and the loop that runs each initial state exactly once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf.core.random import keyed_seed
from rlinf.runners.embodied.env_slot import EnvSlot, SlotChannels
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.evaluation.canonical import canonical

SEED_RANGE = 2**31
PROTOCOL_FREE = ("video_cfg", "total_num_envs", "episodes", "final_episodes")
"""Keys of `env.eval` that can't change what is measured, or that the protocol states in its own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One episode that ended."""

    number: int
    """Environment (training) or episode number (evaluation)."""
    success_once: bool | None
    """Whether the task was achieved at any step; None where the task knows no success."""
    success_at_end: bool | None
    """Whether it was achieved at the last step; None where the task knows no success."""
    episode_return: float
    """The sum of rewards."""
    episode_len: int
    """Control steps."""


def episode_results(info: Mapping[str, Any], ended: NDArray[np.bool_], first: int, *, knows_success: bool) -> list[EpisodeResult]:
    """The results in the `info` of a vector environment's step, of the environments in `ended`.

    Args:
        info: of the step.
        ended: `[num_envs]`.
        first: the number of environment 0.
        knows_success: whether the task says when it is achieved.
    """
    if not ended.any():
        return []
    episode = info["episode"]
    return [
        EpisodeResult(
            number=first + int(env),
            success_once=bool(episode["success_once"][env]) if knows_success else None,
            success_at_end=bool(episode["success_at_end"][env]) if knows_success else None,
            episode_return=float(episode["return"][env]),
            episode_len=int(episode["episode_len"][env]),
        )
        for env in np.flatnonzero(ended)
    ]


def summarise(results: Iterable[EpisodeResult], prefix: str) -> dict[str, float]:
    """Means over episodes, named as users know them; empty without episodes, and no success where the task knows none."""
    done = list(results)
    if not done:
        return {}
    values: dict[str, list[float | None]] = {
        "success_once": [r.success_once for r in done],
        "success_at_end": [r.success_at_end for r in done],
        "return": [r.episode_return for r in done],
        "episode_len": [r.episode_len for r in done],
    }
    known = {name: [value for value in column if value is not None] for name, column in values.items()}
    means = {f"{prefix}{name}": float(np.mean(column)) for name, column in known.items() if column}
    return {**means, f"{prefix}episodes": float(len(done))}


def headline(scalars: Mapping[str, float], prefix: str = "eval/") -> str:
    """The metric that a policy is judged by: success, or the return where the task knows no success."""
    success = f"{prefix}success_once"
    return success if success in scalars else f"{prefix}return"


def described(scalars: Mapping[str, float], prefix: str = "eval/") -> str:
    """The headline in a few words."""
    metric = headline(scalars, prefix)
    return f"success {scalars[metric]:.0%}" if metric.endswith("success_once") else f"return {scalars[metric]:.2f}"


def evaluation_protocol(cfg: EmbodiedConfig, episodes: int) -> dict[str, Any]:
    """Everything that a success rate depends on beside the weights, and a hash of it.

    Two numbers are comparable only if their protocols have the same hash.
    """
    config = resolved(cfg.env.eval)
    relevant = {key: value for key, value in config.items() if key not in PROTOCOL_FREE}
    protocol: dict[str, Any] = {
        **relevant,
        "episodes": episodes,
        "initial_states": f"keyed_seed({cfg.runner.seed}, 'eval', number), number = 0 … {episodes - 1}, each once",
    }
    return {**canonical(protocol), "hash": protocol_hash(protocol)}


def protocol_hash(protocol: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that change with anything in a protocol, and are the same in every process and on every machine."""
    return hashlib.sha256(json.dumps(canonical(protocol), sort_keys=True).encode()).hexdigest()[:12]


def run_episodes(
    env_slots: Sequence[tuple[EnvSlot, SlotChannels]], *, episodes: int, total_envs: int, seed: int, video: str | None = None
) -> list[EpisodeResult]:
    """Runs the slots' share of `episodes`, each from the initial state of its number and exactly once.

    Args:
        env_slots: those of one env worker with their channels.
        episodes: how many, over all env workers; a multiple of `total_envs`.
        total_envs: environments over all env workers.
        seed: the seed of the run, from which initial states follow.
        video: where the first episodes of slot 0 are filmed; None films nothing.
    """
    results: list[EpisodeResult] = []
    for round_ in range(episodes // total_envs):
        for env_slot, _ in env_slots:
            film = {"record": video} if video and round_ == 0 and env_slot.slot.index == 0 else {}
            first = round_ * total_envs + env_slot.slot.first_env
            seeds = [keyed_seed(seed, "eval", first + env) % SEED_RANGE for env in range(env_slot.slot.num_envs)]
            env_slot.reset(np.ones(env_slot.slot.num_envs, bool), seeds, **film)
        results += _finish_round(env_slots, round_, round_ * total_envs)
    for env_slot, channels in env_slots:
        env_slot.close_requests(channels)
    return results


def _finish_round(env_slots: Sequence[tuple[EnvSlot, SlotChannels]], round_: int, first: int) -> list[EpisodeResult]:
    """Steps until every episode has ended once; an environment that is early is reset and its extra steps are ignored."""
    results: list[EpisodeResult] = []
    running = {env_slot.slot.index: np.ones(env_slot.slot.num_envs, bool) for env_slot, _ in env_slots}
    step = 0
    for env_slot, channels in env_slots:
        env_slot.ask(channels, (round_, step))
    while running:
        step += 1
        for env_slot, channels in [(s, ln) for s, ln in env_slots if s.slot.index in running]:
            info = env_slot.step(env_slot.answer(channels).decision.action).infos
            mask = running[env_slot.slot.index]
            first_env = first + env_slot.slot.first_env
            results += episode_results(info, env_slot.ended & mask, first_env, knows_success=env_slot.knows_success)
            mask &= ~env_slot.ended
            if not mask.any():
                del running[env_slot.slot.index]
                continue
            if env_slot.ended.any():
                env_slot.reset(env_slot.ended, [0] * env_slot.slot.num_envs)
            env_slot.ask(channels, (round_, step))
    return results
