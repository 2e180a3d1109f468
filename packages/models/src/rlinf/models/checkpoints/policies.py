"""A policy as a folder that needs nothing else to come back.

config.json                     model_type, its hyper-parameters, the version of the weights and of this format
model.safetensors               every weight and every statistic of normalisation (shards and an index if there is much)
statistics.json                 the same statistics for people and other programs; never read back into the policy
tokenizer.json, …               what the caller adds
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn

from rlinf.core.checkpoints.weight_files import newest_checkpoint
from rlinf.core.data import EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import MODELS
from rlinf.models.base import BasePolicy
from rlinf.models.checkpoints.atomic import fresh_folder
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.loading import CONFIG, load_weights
from rlinf.models.checkpoints.tensors import SHARD_BYTES, write_tensors
from rlinf.models.normalization import Normalizer
from rlinf.models.registry import build_policy
from rlinf.models.statistics import write_statistics

FORMAT: Final = "rlinf-policy"
FORMAT_VERSION: Final = 1


def save_policy(
    policy: BasePolicy,
    config: Any,
    folder: Path,
    *,
    model_type: str | None = None,
    files: Sequence[Path] = (),
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> None:
    """Writes a policy; the folder is there whole, or not at all.

    Args:
        policy: what is saved.
        config: the dataclass that built it.
        folder: where; its parents are made.
        model_type: the registered name; found from `config` if None.
        files: a tokenizer, a processor, and what else shall lie beside the weights.
        shard_bytes: above this the weights are written in shards.
        overwrite: whether an older checkpoint there is replaced.

    Raises:
        CheckpointError: the folder is there already, or a file is missing.
        ConfigError: `config` is no dataclass, has no registered name, or a value that JSON can't hold.
    """
    # Before anything is written: it may find a configuration that can't be saved.
    described = _described(policy, config, model_type)
    absent = [str(file) for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(absent[0], "there is no such file", "Leave it out, or write it first.")
    with fresh_folder(folder, overwrite=overwrite) as made:
        for file in files:
            shutil.copyfile(file, made / file.name)
        write_tensors(policy.weights().tensors, made, shard_bytes=shard_bytes)
        write_statistics(made / "statistics.json", _statistics(policy))
        (made / CONFIG).write_text(described, encoding="utf-8")


def load_policy(
    path: Path,
    spec: EnvSpec | None = None,
    *,
    model_type: str | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> BasePolicy:
    """The policy of a folder: ours; a run's; or another project's, whose `config.json` names an architecture that is registered.

    Of a run, the newest checkpoint is read, built as `actor.model` of its configuration says. Of another project's folder
    (Hugging Face, LeRobot) the architecture reads everything itself, as `model_path`. Weights alone, such as RLinf's
    `full_weights.pt`, need `model_type` and `params`.

    Args:
        path: the folder, or a file of weights.
        spec: the environment that the policy acts in; a language model needs none.
        model_type: the registered name, where the folder has none or another one.
        params: hyper-parameters that differ from those of the folder, such as where `model_path` is on this machine.
        seed: decides the weights that the folder doesn't have.
        device: where the policy goes.

    Raises:
        CheckpointError: something is missing, damaged, or made for another policy.
        ConfigError: the name or a hyper-parameter is unknown.
    """
    if not path.exists():
        remedy = "Name a run, a checkpoint, weights, or a folder of them."
        raise CheckpointError(str(path), "there is nothing", remedy)
    found = _description(path)
    name = model_type or found.model_type
    # A file must not choose what is imported: only names that somebody registered here.
    if not isinstance(name, str) or (model_type is None and ":" in name):
        raise CheckpointError(found.place, f"expected the name of a registered model, found {name!r}", "Pass model_type.")
    policy = build_policy(name, {**found.params, **(params or {})}, spec, seed=seed, place=found.place)
    if not found.reads_itself:
        load_weights(policy, path)
        policy.version = found.version
    return policy if device is None else policy.to(device)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a folder says of the policy whose weights it has."""

    place: str
    model_type: Any = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    version: int = 0
    reads_itself: bool = False
    """Whether the architecture reads the folder, weights and all."""


def _description(path: Path) -> Description:
    run = described_run(newest_checkpoint(path))
    if run is not None:
        return run
    file = path / CONFIG
    content = read_json(file)
    if not content:
        return Description(place=str(path))
    if content.get("format") != FORMAT:
        # transformers writes `model_type`, LeRobot `type`.
        name = content.get("model_type") or content.get("type")
        return Description(place=str(file), model_type=name, params={"model_path": str(path)}, reads_itself=True)
    if content.get("format_version") != FORMAT_VERSION:
        found = f"expected version {FORMAT_VERSION} of the format, found {content.get('format_version')!r}"
        raise CheckpointError(str(file), found, "Use the rlinf-models that wrote it.")
    version = int(content.get("version", 0))
    return Description(place=str(file), model_type=content.get("model_type"), params=content.get("config", {}), version=version)


def described_run(checkpoint: Path | None) -> Description | None:
    """What the configuration of a run says of the policy, if this is one of its checkpoints.

    Raises:
        CheckpointError: it says it in a way that is none.
    """
    actor: Any = None if checkpoint is None else read_json(checkpoint / CONFIG).get("actor")
    if checkpoint is None or not isinstance(actor, Mapping):
        return None
    model: Any = cast("Mapping[str, Any]", actor).get("model", {})
    place = f"{checkpoint / CONFIG}: actor.model"
    if not isinstance(model, Mapping):
        raise CheckpointError(place, f"expected a mapping, found {type(model).__name__}", "Use another checkpoint.")
    fields = cast("Mapping[str, Any]", model)
    params = {key: value for key, value in fields.items() if key != "model_type"}
    version = int(read_json(checkpoint / "state.json").get("version", 0))
    return Description(place=place, model_type=fields.get("model_type"), params=params, version=version)


def _described(policy: BasePolicy, config: Any, model_type: str | None) -> str:
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ConfigError("save_policy(config)", f"expected the dataclass that built the policy, found {type(config).__name__}")
    params = {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config) if field.init}
    content = describe_policy(model_type or _registered_name(type(config)), params, policy.version)
    try:
        # NaN and Infinity are no JSON, though Python would write them.
        return json.dumps(content, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError("save_policy(config)", f"JSON can't hold a value of it ({error})") from error


def describe_policy(model_type: str | None, params: Mapping[str, Any], version: int) -> dict[str, Any]:
    """What `config.json` of a saved policy says; `model_type` is None where nobody knows it."""
    kind = {"format": FORMAT, "format_version": FORMAT_VERSION}
    return {**kind, "model_type": model_type, "version": version, "config": dict(params)}


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _registered_name(cls: type[Any]) -> str:
    """The name whose claim is this class; those that can't be imported here are somebody else's."""
    for name in MODELS.names():
        try:
            if MODELS.get(name) is cls:
                return name
        except ConfigError:
            continue
    remedy = "Register it with register_model, or pass model_type."
    raise ConfigError("save_policy(config)", f"no model is registered as {cls.__module__}:{cls.__qualname__}", remedy)


def _statistics(policy: BasePolicy) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, module in cast("Iterable[tuple[str, nn.Module]]", policy.named_modules()):
        if isinstance(module, Normalizer) and module.scheme != "identity":
            found[name] = {key: values.detach().cpu() for key, values in module.statistics().items()}
    return found
