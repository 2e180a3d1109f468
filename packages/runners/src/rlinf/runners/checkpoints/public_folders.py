"""Folders of Hugging Face and LeRobot, which name weights otherwise than policies here do; nothing of this loads torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from rlinf.core.declarations import Checks, ChecksTasks, traits_of
from rlinf.core.errors import ConfigError, each_fault, refuse
from rlinf.runners.config.schema import ModelSection

_MODEL: Final = "actor.model"


def of_folder(model: ModelSection, folder: Path, key: str) -> ModelSection:
    """The configuration of the same policy with the weights of a public folder.

    Args:
        model: the policy's configuration.
        folder: has the weights.
        key: the configuration key that names it.

    Raises:
        ConfigError: the model reads no such folders.
    """
    config: Any = model.config
    names = [field.name for field in fields(config)] if is_dataclass(model.config) else []
    if "model_path" not in names:
        problem = f"'{folder}' is of another project, whose folders '{model.model_type}' does not read"
        raise ConfigError(key, problem, "Name weights of a policy of ours, or a model that has model_path.")
    # A preset is an architecture, too; the folder says its own.
    changed: dict[str, Any] = {"model_path": str(folder), **({"preset": None} if "preset" in names else {})}
    return replace(model, config=replace(config, **changed))


def check_folder(model: ModelSection, folder: Path, key: str, texts: Sequence[str]) -> None:
    """Refuses a folder of another project that a policy of control steps could not be built from; nothing is built.

    Args:
        model: the policy's configuration. Language models read folders in their own way, and are left to it.
        folder: has the weights.
        key: the configuration key that names it.
        texts: the tasks of the run, as far as they are known.

    Raises:
        ConfigError: one line for each fault.
        CheckpointError: a file of the folder can't be used.
    """
    if traits_of(model.config).language is not False or not of_another_project(folder):
        return
    config: object = of_folder(model, folder, key).config
    try:
        if isinstance(config, Checks):
            config.check(_MODEL)
        if isinstance(config, ChecksTasks):
            config.check_tasks(texts, _MODEL, None)
    except ConfigError as error:
        refuse([named_by(key, fault) for fault in each_fault(error)])


def named_by(key: str, fault: ConfigError) -> ConfigError:
    """The same of a folder that the model's own key does not name."""
    return ConfigError(key, fault.problem, fault.remedy) if fault.place == f"{_MODEL}.model_path" else fault


def of_hugging_face(folder: Path) -> bool:
    """Whether transformers wrote it, or somebody for transformers: its `config.json` names an architecture."""
    return "architectures" in _described(folder)


def policy_of(folder: Path) -> str | None:
    """The `model_type` of a policy that rlinf-models wrote into a folder, such as by `rlinf convert`; None of another folder."""
    content = _described(folder)
    found = content.get("model_type") if content.get("format") == "rlinf-policy" else None
    return found if isinstance(found, str) else None


def of_another_project(folder: Path) -> bool:
    """Whether its `config.json` is one of Hugging Face, or of LeRobot, which names a `type`."""
    content = _described(folder)
    # Folders that rlinf-models writes have a `format`.
    return "format" not in content and bool({"architectures", "type", "model_type"} & set(content))


def _described(folder: Path) -> dict[str, Any]:
    try:
        content: object = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}
