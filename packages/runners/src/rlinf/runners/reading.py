"""From a composed mapping to an `EmbodiedConfig`: choices are made by name, and all faults are reported together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from rlinf.core.config import Provenance, explain
from rlinf.core.config.reading import field_names, read
from rlinf.core.errors import ConfigError, did_you_mean
from rlinf.core.registry import ADVANTAGES, ENVS, LOSSES, MODELS, TRAINERS, WEIGHT_SYNCS, Registry
from rlinf.runners.schema import (
    ActorConfig,
    AlgorithmConfig,
    EmbodiedConfig,
    EnvSection,
    EvalEnvConfig,
    ModelSection,
    RolloutConfig,
    RunnerConfig,
    TrainEnvConfig,
    WeightSyncSection,
)

T = TypeVar("T")
Section = Mapping[str, Any]

SECTIONS = ("runner", "cluster", "env", "rollout", "actor", "algorithm")
EVAL_LIKE_TRAIN = ("env_type", "init_params", "max_episode_steps", "ignore_terminations")


def read_embodied(data: Section) -> EmbodiedConfig:
    """The typed configuration of an embodied run.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    faults: list[ConfigError] = []

    def attempt(make: Callable[[Section], T], section: Section) -> T | None:
        try:
            return make(section)
        except ConfigError as error:
            faults.append(error)
            return None

    faults.extend(ConfigError(key, "unknown section", did_you_mean(key, SECTIONS)) for key in data if key not in SECTIONS)
    sections = {name: _subsection(data, name) for name in SECTIONS}
    parts: dict[str, Any] = {
        "runner": attempt(lambda s: read(RunnerConfig, s, place="runner"), sections["runner"]),
        "env": attempt(_read_env, sections["env"]),
        "rollout": attempt(lambda s: read(RolloutConfig, s, place="rollout"), sections["rollout"]),
        "actor": attempt(_read_actor, sections["actor"]),
        "algorithm": attempt(_read_algorithm, sections["algorithm"]),
    }
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise ConfigError("configuration", f"{len(faults)} faults", "\n  " + "\n  ".join(str(f) for f in faults))
    config = EmbodiedConfig(cluster=sections["cluster"], source=dict(data), **parts)
    _check_batch_sizes(config)
    return config


def resolved(config: object) -> dict[str, Any]:
    """The configuration as plain nested containers with the keys that YAML uses, defaults filled in."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", config)):
        value = getattr(config, field.name)
        if field.name == "source":
            continue
        if field.metadata.get("merged") and dataclasses.is_dataclass(value):
            plain.update(resolved(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            plain[field.name] = resolved(value)
        else:
            plain[field.name] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
    return plain


def explain_embodied(cfg: EmbodiedConfig, provenance: Provenance, key: str) -> str:
    """One line per value at or below `key`, with where it came from; "" explains all."""
    evaluation = _subsection(_subsection(cfg.source, "env"), "eval", "env")
    like_train = {f"env.eval.{name}": f"as env.train.{name}" for name in EVAL_LIKE_TRAIN if name not in evaluation}
    return explain(resolved(cfg), {**like_train, **provenance}, key)


def _subsection(data: Section, name: str, place: str = "") -> Section:
    """The section of that name, empty if absent."""
    section: object = data.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{place}.{name}" if place else name, f"expected a section, found {section!r}")
    return cast("Section", section)


def _read_env(section: Section) -> EnvSection:
    unknown = [key for key in section if key not in ("train", "eval")]
    if unknown:
        raise ConfigError(f"env.{unknown[0]}", "unknown key", did_you_mean(unknown[0], ["train", "eval"]))
    train, evaluation = (_subsection(section, name, "env") for name in ("train", "eval"))
    inherited = {key: train[key] for key in EVAL_LIKE_TRAIN if key in train}
    return EnvSection(
        train=_read_simulated(TrainEnvConfig, train, "env.train"),
        eval=_read_simulated(EvalEnvConfig, {**inherited, **evaluation}, "env.eval"),
    )


def _read_simulated(cls: type[T], section: Section, place: str) -> T:
    """A section with `env_type` and `init_params`, which the environment of that type reads."""
    if "env_type" not in section:
        raise ConfigError(f"{place}.env_type", "missing", f"Installed: {', '.join(ENVS.names())}.")
    params = _subsection(section, "init_params", place)
    ENVS.get(section["env_type"], place=f"{place}.env_type")
    simulator = ENVS.build(section["env_type"], params, place=f"{place}.init_params")
    return read(cls, {**section, "init_params": simulator}, place=place)


def _choose(registry: Registry[Any], section: Section, key: str, default: str, place: str) -> type[Any]:
    return registry.get(section.get(key, default), place=f"{place}.{key}")


def _keys(item: Any) -> list[str]:
    return field_names(item) if isinstance(item, type) and dataclasses.is_dataclass(item) else []


def _read_actor(section: Section) -> ActorConfig:
    name = section.get("training_backend", "fsdp")
    trainer_keys = _keys(_choose(TRAINERS, section, "training_backend", "fsdp", "actor"))
    own = [key for key in field_names(ActorConfig) if key != "trainer"]
    chosen = {
        "trainer": TRAINERS.build(name, section, place="actor", allowed=own),
        "model": _read_model(_subsection(section, "model", "actor")),
        "weight_syncer": _read_weight_sync(_subsection(section, "weight_syncer", "actor")),
    }
    return read(ActorConfig, {**section, **chosen}, place="actor", allowed=trainer_keys)


def _read_model(section: Section) -> ModelSection:
    if "model_type" not in section:
        raise ConfigError("actor.model.model_type", "missing", f"Installed: {', '.join(MODELS.names())}.")
    name = section["model_type"]
    MODELS.get(name, place="actor.model.model_type")
    config = MODELS.build(name, section, place="actor.model", allowed=["model_type"])
    return ModelSection(model_type=name, config=config)


def _read_weight_sync(section: Section) -> WeightSyncSection:
    name = section.get("type", "full")
    WEIGHT_SYNCS.get(name, place="actor.weight_syncer.type")
    return WeightSyncSection(type=name, sync=WEIGHT_SYNCS.build(name, section, place="actor.weight_syncer", allowed=["type"]))


def _read_algorithm(section: Section) -> AlgorithmConfig:
    own = [key for key in field_names(AlgorithmConfig) if key not in ("advantage", "loss")]
    advantage_keys = _keys(_choose(ADVANTAGES, section, "adv_type", "gae", "algorithm"))
    loss_keys = _keys(_choose(LOSSES, section, "loss_type", "actor_critic", "algorithm"))
    advantage = ADVANTAGES.build(section.get("adv_type", "gae"), section, place="algorithm", allowed=[*own, *loss_keys])
    loss = LOSSES.build(section.get("loss_type", "actor_critic"), section, place="algorithm", allowed=[*own, *advantage_keys])
    chosen = {**section, "advantage": advantage, "loss": loss}
    return read(AlgorithmConfig, chosen, place="algorithm", allowed=[*advantage_keys, *loss_keys])


def _check_batch_sizes(config: EmbodiedConfig) -> None:
    decisions, batch = config.decisions_per_iteration, config.actor.global_batch_size
    if batch > decisions:
        train = config.env.train
        made = f"{train.total_num_envs} envs × {train.max_steps_per_rollout_epoch} steps × {train.rollout_epoch} epochs"
        problem = f"{batch} decisions in an optimizer step, but an iteration makes only {decisions} ({made})"
        raise ConfigError("actor.global_batch_size", problem, f"Use at most {decisions}.")
