"""`rlinf check-env`: does an environment keep the contract, and how fast is it?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from rlinf.core.errors import ConfigError
from rlinf.core.registry import ENVS
from rlinf.core.testing.env import EnvContract

Factory = Callable[[], Any]


def check_env(args: Sequence[str]) -> int:
    """Examines an environment: `rlinf check-env maniskill task_id=PickCube-v1`, or `rlinf check-env my_module:factory`."""
    parser = argparse.ArgumentParser(prog="rlinf check-env", description="Examines a vector environment and times it.")
    parser.add_argument("env", help="a registered environment, or module:attr of a configuration class or of a factory")
    parser.add_argument("params", nargs="*", metavar="key=value", help="parameters of a registered environment")
    parser.add_argument("--num-envs", type=int, default=3, help="environments to build (3)")
    parser.add_argument("--steps", type=int, default=100, help="steps to time (100)")
    given = parser.parse_args(list(args))
    factory = _factory(given.env, _params(given.params), given.num_envs)
    EnvContract(factory=factory).run(report=lambda sentence: _write(f"ok   {sentence}"))
    wall, processor, steps = time_steps(factory(), given.steps)
    _write(f"     {steps / wall:.0f} steps/s, {processor / steps * 1e3:.3f} CPU-ms per step ({steps} steps, resets included)")
    return 0


def time_steps(env: Any, count: int) -> tuple[float, float, int]:
    """Takes at least `count` steps with random actions, and closes the environment.

    Args:
        env: a vector environment that keeps the contract.
        count: steps, summed over its sub-environments.

    Returns:
        Wall seconds, CPU seconds of this process, and the steps taken; resets of ended episodes are part of both times.
    """
    env.action_space.seed(0)
    env.reset(seed=0)
    rounds = -(-count // env.num_envs)
    actions = [env.action_space.sample() for _ in range(rounds)]
    wall, processor = time.perf_counter(), time.process_time()
    for turn, action in enumerate(actions):
        _, _, terminated, truncated, _ = env.step(action)
        done = terminated | truncated
        if done.any():
            env.reset(seed=turn, options={"reset_mask": done})
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    env.close()
    return wall, processor, rounds * env.num_envs


def _factory(name: str, params: dict[str, Any], num_envs: int) -> Factory:
    item = ENVS.get(name, place="check-env")
    if not (isinstance(item, type) and dataclasses.is_dataclass(cast("type[Any]", item))):
        if params:
            raise ConfigError("check-env", f"'{name}' is a factory and takes no parameters", "Leave them out.")
        return item
    config = ENVS.build(name, params, place="check-env")
    config.check("check-env")
    return functools.partial(config.make, num_envs, max_episode_steps=None, ignore_terminations=False, render=False)


def _params(words: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError("check-env", f"expected key=value, found '{word}'", "Write for instance task_id=PickCube-v1.")
        try:
            params[key] = json.loads(value)
        except json.JSONDecodeError:
            params[key] = value
    return params


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
