"""`rlinf check-env`: does an environment keep the contract, and what does it cost?"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rlinf.core.config.arguments import ArgumentParser, key_value, whole
from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, ContractError, RLinfError
from rlinf.core.registry import ENVS, is_unverified
from rlinf.core.testing.env import EnvContract
from rlinf.core.testing.env.cost import Cost, Measured, measure
from rlinf.core.testing.finding import Finding, any_broken, tell
from rlinf.envs.spaces import describe

Factory = Callable[[], Any]


def check_env(args: Sequence[str]) -> int:
    """Examines an environment: `rlinf check-env maniskill task_id=PickCube-v1`, or `rlinf check-env my_module:factory`.

    Returns:
        0 if every line of the contract holds or is waived, 1 if one is broken.
    """
    parser = ArgumentParser(prog="rlinf check-env", description="Examines a vector environment and says what it costs.")
    parser.add_argument("env", help="a registered environment, or module:attr of a configuration class or of a factory")
    parser.add_argument("params", nargs="*", default=[], metavar="key=value", help="parameters of a registered environment")
    parser.add_argument("--num-envs", type=whole(1), default=3, help="environments to build (3)")
    parser.add_argument("--steps", type=whole(1), default=100, help="steps to time (100)")
    parser.add_argument(
        "--max-episode-steps", type=whole(1), default=None, help="truncate earlier than the environment does by itself"
    )
    given = parser.parse_intermixed_args(list(args))
    params = dict(key_value(each, place="check-env", example="task_id=PickCube-v1") for each in given.params)
    subject = _subject(given.env, params, given.num_envs, given.max_episode_steps)
    if is_unverified(type(subject.config).__module__):
        _write(f"     '{given.env}' is unverified: written to documentation, and not known to have run on the real thing")
    factory = Measured(subject.factory)
    # Before it is examined: each line of the contract would say what is wrong here once more.
    try:
        env = factory()
    except RLinfError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the examined thing raises is a finding
        tell(Finding("it can be built", error))
        return 1
    if not isinstance(env, gymnasium.vector.VectorEnv):
        problem = f"expected '{given.env}' to return an environment, found {type(env).__name__}"
        raise ContractError("check-env", problem, "Return a gymnasium.Env, or a gymnasium.vector.VectorEnv of num_envs.")
    try:
        findings = EnvContract(factory=factory).examine(report=tell)
        for finding in _descriptions(subject, env):
            tell(finding)
            findings.append(finding)
        if any_broken(findings):
            return 1
        _price(measure(env, given.steps), env.num_envs, factory.built or 0)
    finally:
        env.close()
    return 0


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is examined."""

    factory: Factory
    config: Any
    """The configuration that makes it; None for a plain function that makes one."""


def _subject(name: str, params: dict[str, Any], num_envs: int, max_episode_steps: int | None) -> _Subject:
    item = ENVS.get(name, place="check-env")
    takes = not isinstance(item, type) and "num_envs" in inspect.signature(item).parameters
    if not isinstance(item, type) and (takes or not _returns_one(item)):
        if params or max_episode_steps:
            raise ConfigError("check-env", f"'{name}' is a factory and takes no parameters", "Leave them out.")
        return _Subject(functools.partial(item, num_envs=num_envs) if takes else item, None)
    config = ENVS.build(name, params, place="check-env")
    config.check("check-env")
    make = functools.partial(config.make, max_episode_steps=max_episode_steps, ignore_terminations=False, render=False)
    return _Subject(functools.partial(make, num_envs), config)


def _returns_one(item: Callable[[], object]) -> bool:
    """Whether a function returns a single environment, as a run takes it; not if it raises: that is told later."""
    try:
        env = item()
    except Exception:  # noqa: BLE001 - whatever the examined thing raises
        return False
    if not isinstance(env, gymnasium.Env):
        return False
    env.close()
    return True


def _descriptions(subject: _Subject, env: Any) -> list[Finding]:
    """Two lines about what makes an environment rather than about itself."""
    findings: list[Finding] = []
    for sentence, check in (
        ("a policy can be told what it needs to know of it", _described),
        ("its configuration survives pickling", _pickled),
    ):
        try:
            check(subject, env)
        except RLinfError as error:
            findings.append(Finding(sentence, error))
        else:
            findings.append(Finding(sentence))
    return findings if subject.config is not None else findings[:1]


def _described(subject: _Subject, env: Any) -> None:
    spec: EnvSpec = describe(env) if subject.config is None else subject.config.describe(env)
    # The pickled one is what a policy in another process gets.
    for found in (spec, pickle.loads(pickle.dumps(spec))):  # noqa: S301
        for key, space in env.single_observation_space.spaces.items():
            if key not in found.observation:
                raise ContractError("describe", f"nothing is said of the observation '{key}'")
            _expect_like(found.observation[key], space, f"describe.observation['{key}']")
        _expect_like(found.action, env.single_action_space, "describe.action")
        if found.max_episode_steps != env.metadata["max_episode_steps"]:
            wanted = env.metadata["max_episode_steps"]
            raise ContractError(
                "describe.max_episode_steps", f"the environment announces {wanted}, found {found.max_episode_steps}"
            )


def _expect_like(spec: ArraySpec, space: Any, place: str) -> None:
    found, wanted = (spec.shape, np.dtype(spec.dtype)), (tuple(space.shape), np.dtype(space.dtype))
    if found != wanted:
        raise ContractError(place, f"the space has {wanted}, found {found}")


def _pickled(subject: _Subject, env: Any) -> None:
    if pickle.loads(pickle.dumps(subject.config)) != subject.config:  # noqa: S301
        raise ContractError("check-env", "the configuration is another one after pickling", "Make it a frozen dataclass of values.")


def _price(cost: Cost, num_envs: int, built: int) -> None:
    rate, processor = cost.steps / cost.seconds, cost.processor / cost.steps * 1e3
    _write(f"     {rate:.0f} steps/s, {processor:.3f} CPU-ms per step ({cost.steps} steps and {cost.resets} resets)")
    held, taken, growth = (count / 2**20 for count in (cost.resident, built, cost.growth))
    _write(f"     {held:.0f} MiB of memory, {taken:.0f} of them for {num_envs} environments; {growth:+.1f} MiB while stepping")


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
