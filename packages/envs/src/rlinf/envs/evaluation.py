"""Evaluation: a protocol's work-list, played on any number of environments with the same result for each episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gymnasium.vector import VectorEnv

from rlinf.core.errors import ConfigError
from rlinf.core.evaluation import EpisodeKey, EpisodePlayer, EpisodeProtocol, EpisodeResult, EvalReport, Turn
from rlinf.core.registry import ENV_WRAPPERS, ENVS
from rlinf.envs.spaces import describe

Decide = Callable[[Mapping[str, Any], Sequence[Turn]], Any]
"""A policy: from observations by key `[M, *]` (arrays, or tensors where the environment gives them) and M turns to actions
`[M, K, A]`, or `[M, A]` for one control step. M is `num_envs`, and less when fewer episodes than that are left."""


def protocol_env(protocol: EpisodeProtocol, num_envs: int) -> VectorEnv[Any, Any, Any]:
    """The environments that a protocol states, such as that in the `summary.json` of a run.

    Raises:
        ConfigError: it states them in words only.
    """
    stated: object = protocol.env
    if isinstance(stated, str) or "env_type" not in cast("Mapping[str, Any]", stated):
        problem = f"expected env_type and init_params, found {stated!r}"
        raise ConfigError("protocol.env", problem, "Make the environment yourself.")
    stated = cast("Mapping[str, Any]", stated)
    config = ENVS.build(stated["env_type"], stated.get("init_params", {}), place="protocol.env.init_params")
    limit, ignore = protocol.max_episode_steps, protocol.ignore_terminations
    env = config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=False)
    for number, wrapper in enumerate(stated.get("wrappers", ())):
        params = {key: value for key, value in wrapper.items() if key != "type"}
        env = ENV_WRAPPERS.build(wrapper["type"], params, place=f"protocol.env.wrappers[{number}]").wrap(env, "eval_0")
    return env


def evaluate(
    env: VectorEnv[Any, Any, Any],
    decide: Decide,
    protocol: EpisodeProtocol,
    *,
    report: Callable[[EpisodeResult], None] | None = None,
) -> EvalReport[EpisodeResult]:
    """Plays every episode of the protocol exactly once.

    Args:
        env: an environment of this package with the protocol's limit of steps; it stays open.
        decide: the policy; see `Decide`. Its actions are clipped to the environment's bounds, as in training.
        protocol: what is measured.
        report: called with each result as soon as it is there.

    Raises:
        ConfigError: the environment has another limit of steps, or statistics that are not ours.
        ShapeError: the policy gives actions of another shape.
        ContractError: an episode goes on beyond the limit, or terminates although the protocol ignores terminations.
    """
    results = play(env, decide, protocol, protocol.work_list(), report=report)
    return EvalReport(protocol=protocol, results=tuple(results))


def play(
    env: VectorEnv[Any, Any, Any],
    decide: Decide,
    protocol: EpisodeProtocol,
    episodes: Sequence[EpisodeKey],
    *,
    report: Callable[[EpisodeResult], None] | None = None,
) -> list[EpisodeResult]:
    """Plays a share of a protocol's work-list, such as `protocol.work_list()[rank::workers]`; see `evaluate`.

    The results come in the order in which the episodes end; `EvalReport` puts those of all workers together.
    """
    if protocol.real_time_chunking is not None:
        problem = "here everything stands still while the policy decides"
        remedy = "Use `rlinf eval --protocol`, or play with the `begin` and `step` of an EpisodePlayer."
        raise ConfigError("protocol.real_time_chunking", problem, remedy)
    player = EpisodePlayer(env, describe(env), protocol, episodes)
    results: list[EpisodeResult] = []
    while not player.done:
        ended = player.step(decide(player.observations, player.turns))
        results += ended
        if report is not None:
            for result in ended:
                report(result)
    return results
