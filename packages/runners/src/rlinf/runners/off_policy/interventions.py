"""What people do in place of the policy counts as demonstrated: beside recordings, it is their part of a batch (HG-DAgger)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from rlinf.core.data import Batch, EnvSpec, Trajectory
from rlinf.core.envs.robots import LetsHumansAct
from rlinf.core.errors import ShapeError
from rlinf.core.random import keyed_seed
from rlinf.core.replay import ReplayBuffer
from rlinf.runners.off_policy.schema import OffPolicyConfig

_SHARE = 10
"""Of the replay buffer's capacity, a tenth: people act seldom."""


def intervention_capacity(cfg: OffPolicyConfig, spec: EnvSpec) -> int:
    """How many decisions of people are kept over all actors; 0 where a run has no demonstrations, or nobody can act."""
    intervenes = any(isinstance(wrapper, LetsHumansAct) for _, wrapper in cfg.env.train.wrapping)
    return max(2, cfg.capacity(spec) // _SHARE) if cfg.algorithm.demo_buffer is not None and intervenes else 0


def intervention_buffer(cfg: OffPolicyConfig, spec: EnvSpec, *, rank: int, world_size: int) -> ReplayBuffer | None:
    """The empty buffer of one actor; None where a run has no demonstrations, or nobody can act in place of its policy."""
    capacity = intervention_capacity(cfg, spec)
    if not capacity:
        return None
    return ReplayBuffer(
        # A buffer has no fewer slots: an observation takes the one behind its decision.
        capacity=max(2, capacity // world_size),
        n_step=cfg.algorithm.replay_buffer.n_step,
        gamma=cfg.algorithm.gamma,
        seed=keyed_seed(cfg.runner.seed, "interventions", rank),
    )


def interventions_of(rows: Trajectory[Any], *, first: int) -> Trajectory[Any]:
    """Every decision that somebody else made, as a row of its own `[n, 1, …]`.

    Those that follow one another have the same `episode`, so that a buffer joins them to one piece; other pieces have others.

    Args:
        rows: with observations and episodes.
        first: from which the pieces are numbered; more than any number before.

    Raises:
        ShapeError: they don't tell who acted, or of which episodes they are.
    """
    flat = Batch.of(rows).decisions().trajectory
    if flat.intervened is None or flat.episode is None:
        lacking = "intervened" if flat.intervened is None else "episode"
        problem = f"expected '{lacking}', which says where people act, found none"
        raise ShapeError("interventions_of(rows)", problem, "Collect them in environments with the wrapper interventions.")
    acted, episode = np.asarray(flat.intervened)[:, 0].astype(bool), np.asarray(flat.episode)
    follows = np.zeros_like(acted)
    follows[1:] = acted[:-1] & (episode[1:] == episode[:-1])
    piece = first + np.cumsum(acted & ~follows)
    return dataclasses.replace(flat, episode=piece).rows(np.flatnonzero(acted))
