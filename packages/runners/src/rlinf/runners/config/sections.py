"""Sections that every kind of run has: choices are made by name, and all faults are reported together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from rlinf.core.config.reading import field_names, read
from rlinf.core.errors import ConfigError, did_you_mean, refuse
from rlinf.core.registry import ADVANTAGES, LOSSES, MODELS, TRAINERS, WEIGHT_SYNCS, Registry
from rlinf.runners.config.schema import ActorConfig, AlgorithmConfig, ModelSection, TrainingConfig, WeightSyncSection

T = TypeVar("T")
Section = Mapping[str, Any]


def read_all(data: Section, readers: Mapping[str, Callable[[Section], Any]], others: Sequence[str] = ()) -> dict[str, Any]:
    """Each section read by its reader, an absent one as an empty one.

    Args:
        data: the whole configuration.
        readers: by the name of the section.
        others: sections that somebody else reads.

    Raises:
        ConfigError: one line per fault, each with its dotted path.
    """
    known = [*readers, *others]
    faults = [ConfigError(key, "unknown section", did_you_mean(key, known)) for key in data if key not in known]
    parts: dict[str, Any] = {}
    for name, reader in readers.items():
        try:
            parts[name] = reader(subsection(data, name))
        except ConfigError as error:
            faults.append(error)
    refuse(faults)
    return parts


def task_type(data: Section) -> str:
    """Which kind of run a configuration describes: what `runner.task_type` says, or else what its sections show."""
    runner: object = data.get("runner")
    written: object = cast("Section", runner).get("task_type") if isinstance(runner, Mapping) else None
    if isinstance(written, str):
        return written
    return "embodied" if "env" in data else "reasoning" if "rollout" in data else "sft"


def expect_task_type(data: Section, expected: str) -> None:
    """Refuses the configuration of another kind of run, of which all else would be refused, too.

    Raises:
        ConfigError: `runner.task_type` says something else.
    """
    runner: object = data.get("runner")
    found: object = cast("Section", runner).get("task_type", expected) if isinstance(runner, Mapping) else expected
    if found != expected:
        problem = f"this program runs '{expected}', found {found!r}"
        raise ConfigError("runner.task_type", problem, "Use the app of that kind, or leave the key out.")


def subsection(data: Section, name: str, place: str = "") -> Section:
    """The section of that name, empty if absent."""
    section: object = data.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"{place}.{name}" if place else name, f"expected a section, found {section!r}")
    return cast("Section", section)


def choose(registry: Registry[Any], section: Section, key: str, default: str, place: str) -> Any:
    """What the section names at `key`.

    Raises:
        UnknownName: nobody registered it.
    """
    return registry.get(section.get(key, default), place=f"{place}.{key}")


def keys(item: Any) -> list[str]:
    """The parameters of something registered."""
    return field_names(item) if isinstance(item, type) and dataclasses.is_dataclass(item) else []


def read_merged(
    cls: type[T],
    section: Section,
    *,
    registry: Registry[Any],
    key: str,
    default: str | None,
    into: str,
    place: str,
    built: Section | None = None,
) -> T:
    """A section that names something registered and also holds that thing's own fields.

    Args:
        cls: the dataclass of the section.
        section: what was configured.
        registry: where the name is looked up.
        key: of the name in the section.
        default: the name if there is none; None demands one.
        into: the field of `cls` that takes what was chosen.
        place: the dotted path of the section.
        built: fields of `cls` that the caller has read itself.
    """
    name = default if section.get(key) is None else section[key]
    if name is None:
        raise ConfigError(f"{place}.{key}", "missing", f"Installed: {', '.join(registry.names())}.")
    item = registry.get(name, place=f"{place}.{key}")
    own = [field for field in field_names(cls) if field != into]
    chosen = registry.build(name, section, place=place, allowed=own)
    return read(cls, {**section, key: name, into: chosen, **(built or {})}, place=place, allowed=keys(item))


def read_model(section: Section, place: str = "actor.model") -> ModelSection:
    """A model and its own fields."""
    return read_merged(ModelSection, section, registry=MODELS, key="model_type", default=None, into="config", place=place)


def read_weight_sync(section: Section) -> WeightSyncSection:
    """A weight sync and its own fields."""
    place = "actor.weight_syncer"
    return read_merged(WeightSyncSection, section, registry=WEIGHT_SYNCS, key="type", default="full", into="sync", place=place)


def read_actor(section: Section, cls: type[TrainingConfig] = ActorConfig) -> Any:
    """`actor`, an instance of `cls`: the trainer with its own fields, the model, and how weights travel if they do."""
    built: dict[str, Any] = {"model": read_model(subsection(section, "model", "actor"))}
    if issubclass(cls, ActorConfig):
        built["weight_syncer"] = read_weight_sync(subsection(section, "weight_syncer", "actor"))
    return read_merged(
        cls,
        section,
        registry=TRAINERS,
        key="training_backend",
        default="fsdp",
        into="trainer",
        place="actor",
        built=built,
    )


def read_algorithm(section: Section, cls: type[AlgorithmConfig] = AlgorithmConfig, *, adv_type: str = "gae", loss_type: str) -> Any:
    """`algorithm`, an instance of `cls`, with the fields of the advantage and of the loss.

    Args:
        section: what was configured.
        cls: the dataclass of the section.
        adv_type: the advantage if none is named.
        loss_type: the loss if none is named.
    """
    own = [key for key in field_names(cls) if key not in ("advantage", "loss")]
    advantage_keys = keys(choose(ADVANTAGES, section, "adv_type", adv_type, "algorithm"))
    loss_keys = keys(choose(LOSSES, section, "loss_type", loss_type, "algorithm"))
    advantage = ADVANTAGES.build(section.get("adv_type", adv_type), section, place="algorithm", allowed=[*own, *loss_keys])
    loss = LOSSES.build(section.get("loss_type", loss_type), section, place="algorithm", allowed=[*own, *advantage_keys])
    chosen = {**section, "advantage": advantage, "loss": loss}
    return read(cls, chosen, place="algorithm", allowed=[*advantage_keys, *loss_keys])


def resolved(config: object) -> dict[str, Any]:
    """The configuration as plain nested containers with the keys that YAML uses, defaults filled in."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", config)):
        value = getattr(config, field.name)
        if field.metadata.get("derived"):
            continue
        if field.metadata.get("merged") and dataclasses.is_dataclass(value):
            plain.update(resolved(value))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            plain[field.name] = resolved(value)
        else:
            plain[field.name] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
    return plain
