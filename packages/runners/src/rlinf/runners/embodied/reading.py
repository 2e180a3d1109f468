"""From a composed mapping to an `EmbodiedConfig`: choices are made by name, and all faults are reported together."""

from __future__ import annotations

from typing import TypeVar

from rlinf.core.config import Provenance, explain
from rlinf.core.config.reading import read
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import ENVS
from rlinf.runners.config.rules import apply
from rlinf.runners.config.schema import RunnerConfig
from rlinf.runners.config.sections import Section, expect_task_type, read_actor, read_algorithm, read_all, subsection
from rlinf.runners.config.sections import resolved as resolved
from rlinf.runners.embodied.rules import EMBODIED
from rlinf.runners.embodied.schema import EmbodiedConfig, EnvSection, EvalEnvConfig, RolloutConfig, TrainEnvConfig

T = TypeVar("T")

EVAL_LIKE_TRAIN = ("env_type", "init_params", "max_episode_steps", "ignore_terminations")


def read_embodied(data: Section) -> EmbodiedConfig:
    """The typed configuration of an embodied run, to which no rule of `rlinf.runners.config.rules` objects.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    expect_task_type(data, "embodied")
    parts = read_all(
        data,
        {
            "runner": lambda s: read(RunnerConfig, s, place="runner"),
            "env": _read_env,
            "rollout": lambda s: read(RolloutConfig, s, place="rollout"),
            "actor": read_actor,
            "algorithm": lambda s: read_algorithm(s, loss_type="actor_critic"),
        },
        ["cluster"],
    )
    config = EmbodiedConfig(cluster=subsection(data, "cluster"), source=dict(data), **parts)
    apply(config, EMBODIED)
    return config


def explain_embodied(cfg: EmbodiedConfig, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`, with where it came from; "" explains all."""
    env = subsection(cfg.source, "env")
    inherited = _like_train(subsection(env, "train", "env"), subsection(env, "eval", "env"))
    like_train = {f"env.eval.{name}": f"as env.train.{name}" for name in inherited}
    return explain(resolved(cfg), {**like_train, **provenance}, key)


def _read_env(section: Section) -> EnvSection:
    unknown = [key for key in section if key not in ("train", "eval")]
    if unknown:
        raise ConfigError(f"env.{unknown[0]}", "unknown key", did_you_mean(unknown[0], ["train", "eval"]))
    train, evaluation = (subsection(section, name, "env") for name in ("train", "eval"))
    inherited = {key: train[key] for key in _like_train(train, evaluation) if key in train}
    return EnvSection(
        train=_read_simulated(TrainEnvConfig, train, "env.train"),
        eval=_read_simulated(EvalEnvConfig, {**inherited, **evaluation}, "env.eval"),
    )


def _like_train(train: Section, evaluation: Section) -> list[str]:
    """What `env.eval` takes from `env.train`: what it does not say itself, and parameters of the same environment only."""
    inherited = [name for name in EVAL_LIKE_TRAIN if name not in evaluation]
    same = evaluation.get("env_type", train.get("env_type")) == train.get("env_type")
    return inherited if same else [name for name in inherited if name != "init_params"]


def _read_simulated(cls: type[T], section: Section, place: str) -> T:
    """A section with `env_type` and `init_params`, which the environment of that type reads."""
    if "env_type" not in section:
        raise ConfigError(f"{place}.env_type", "missing", f"Installed: {', '.join(ENVS.names())}.")
    params = subsection(section, "init_params", place)
    ENVS.get(section["env_type"], place=f"{place}.env_type")
    simulator = ENVS.build(section["env_type"], params, place=f"{place}.init_params")
    return read(cls, {**section, "init_params": simulator}, place=place)
