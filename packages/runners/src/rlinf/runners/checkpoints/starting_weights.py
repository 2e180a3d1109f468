"""Weights that a run starts from, such as those of a policy that was trained on demonstrations."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

from safetensors import SafetensorError

from rlinf.core.capabilities import LoadsNetwork
from rlinf.core.checkpoints.weight_files import INDEX_SUFFIX, find_weights, read_shards
from rlinf.core.config.provenance import flatten
from rlinf.core.data import EnvSpec, Weights
from rlinf.core.errors import CheckpointError, ConfigError, WeightSyncError
from rlinf.runners.checkpoints.checkpoint import model_of, peek_checkpoint
from rlinf.runners.checkpoints.public_folders import named_by, of_another_project, of_folder, of_hugging_face
from rlinf.runners.config.paths import absolute_paths
from rlinf.runners.config.schema import ModelSection
from rlinf.runners.lazy import torch

KEY = "runner.ckpt_path"
FRESH = ("value_head.", "critic.", "q_head.", "noise_net.")
"""What demonstrations don't teach, so that runs may differ in it: critics, and the network of a flow policy's learned noise."""

_MODEL, _PLAYED = "actor.model.", ("env_type", "init_params", "wrappers")
"""How keys begin that decide about the shapes of weights."""
_ADAPTER, _BENEATH = ".lora_", ".base_layer."
"""Parts of the names of adapters, and of the weights beneath them."""


def load_starting_weights(
    policy: Any, path: str, key: str = KEY, *, model: ModelSection | None = None, spec: EnvSpec | None = None
) -> None:
    """Takes weights over, at version 0; `FRESH` parts that only one of both has are left out, or stay as they are.

    Weights without adapters go beneath those of a policy that has some, which begin fresh.

    Args:
        policy: what gets them.
        path: what `rlinf.core.checkpoints.weight_files.find_weights` takes; also a folder of Hugging Face or LeRobot, if the policy
            reads such.
        key: the configuration key that names it.
        model: the policy's configuration; a folder of another project is read by its field `model_path`.
        spec: what the policy acts in; None of one that does not act.

    Raises:
        CheckpointError: there are no weights there, or they have adapters and the policy has none.
        ConfigError: they do not fit the policy; or a folder of another project, which the model doesn't read.
    """
    file, reader = find_weights(path, place=key), cast("object", policy)
    if isinstance(reader, LoadsNetwork) and of_hugging_face(file.parent):
        reader.load_network(file.parent)
        return
    if model is not None and spec is not None and of_another_project(file.parent):
        # Names and statistics are the architecture's own affair, which it reads where it is built from the folder.
        try:
            built: Any = of_folder(model, file.parent, key).build(spec, seed=0)
        except ConfigError as error:
            raise named_by(key, error) from error
        policy.load(replace(built.weights(), version=0))
        return
    found = read_weights(file, key)
    own: Mapping[str, Any] = policy.weights().tensors
    fitted = replace(found, tensors=_fitted(found.tensors, own, key))
    try:
        policy.load(fitted)
    except WeightSyncError as error:
        remedy = "Name weights of this model, or set actor.model as in their run."
        if not (own.keys() & found.tensors.keys()):
            remedy += " No name is the same: a folder of Hugging Face or LeRobot is known by its config.json, beside the weights."
        raise ConfigError(key, _another(file, model, error), remedy) from error


@contextmanager
def fitting_model(checkpoint: Path, source: Mapping[str, Any], model: ModelSection) -> Generator[None]:
    """Inside, weights are loaded from a checkpoint; where they do not fit, the keys are told that changed the model.

    Args:
        checkpoint: its folder.
        source: the configuration now.
        model: `actor.model` of it, read.

    Raises:
        ConfigError: `actor.model` or the environment was changed, and they do not fit any more; the message has the keys, with both
            values of each.
        CheckpointError, WeightSyncError: they do not fit for another reason.
    """
    try:
        yield
    except (CheckpointError, WeightSyncError) as error:
        before, now = flatten(peek_checkpoint(checkpoint).config), flatten(absolute_paths(source))
        known = fields(model.config) if is_dataclass(model.config) else ()
        default = {f"{_MODEL}{field.name}": field.default for field in known if field.default is not MISSING}
        # What the environment shows and takes decides about shapes, too. Fine-tuning has only one to be played in.
        section = "env.train." if any(key.startswith("env.train.") for key in before) else "env.eval."
        played = tuple(f"{section}{name}" for name in _PLAYED)
        changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        changed = [key for key in changed if key.startswith(_MODEL) or (key.startswith(played) and key in before and key in now)]
        if not changed:
            raise
        values = [[repr(each.get(key, default.get(key, "left out"))) for each in (before, now)] for key in changed]
        told = [f"{key}: {trained} in training, {found} now" for key, (trained, found) in zip(changed, values, strict=True)]
        problem = f"the weights do not fit a model that is not as in training ({'; '.join(told)}): {error.place}: {error.problem}"
        raise ConfigError(changed[0], problem, "Set it as in training.") from error


def _another(file: Path, model: ModelSection | None, error: WeightSyncError) -> str:
    """Why weights do not fit a policy, with the types of both models as far as they are known."""
    wanted = "this policy" if model is None else f"a '{model.model_type}' as it is configured"
    name = model_of(file)
    made = "" if name is None else f" of a '{name}'"
    return f"the weights{made} in '{file}' do not fit {wanted}: {error.place}: {error.problem}"


def _fitted(found: Mapping[str, Any], own: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Weights by the names of the policy, with what may be fresh of its own.

    Raises:
        CheckpointError: they have adapters, and the policy has none.
    """
    adapted = any(_ADAPTER in name for name in found)
    if adapted and not any(_ADAPTER in name for name in own):
        problem = "the weights have adapters (LoRA), and the policy has none"
        raise CheckpointError(key, problem, "Set actor.model.lora as in the run that they are from.")
    # An adapted layer keeps its weights one level deeper than they were without the adapter.
    names = {} if adapted else {name.replace(_BENEATH, "."): name for name in own if _BENEATH in name}
    # A name that the policy does not have stays, so that `load` refuses it, unless it is of what may be fresh.
    known = {names.get(name, name): tensor for name, tensor in found.items() if name in own or not name.startswith(FRESH)}
    fresh = {name: tensor for name, tensor in own.items() if name.startswith(FRESH) or (_ADAPTER in name and not adapted)}
    return {**fresh, **known}


def read_weights(file: Path, key: str = KEY, *, version: int = 0) -> Weights[torch.Tensor]:
    """Tensors by name; of a file that is no safetensors nothing but tensors is ever built.

    Args:
        file: of weights, or the index of shards.
        key: the configuration key that names it.
        version: of the weights.

    Raises:
        CheckpointError: the file is damaged, or holds something else.
    """
    if not file.name.endswith(INDEX_SUFFIX):
        return Weights(tensors=_tensors(file, key), version=version)
    tensors: dict[str, torch.Tensor] = {}
    for shard in sorted(set(read_shards(file, place=key).values())):
        tensors |= _tensors(shard, key)
    return Weights(tensors=tensors, version=version)


def _tensors(file: Path, key: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

    try:
        found: object = (
            load_file(file) if file.suffix == ".safetensors" else torch.load(file, map_location="cpu", weights_only=True)
        )
    except (OSError, SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
        raise CheckpointError(key, f"'{file}' can't be read ({error})", "Use another file.") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in cast("dict[str, Any]", found).values()):
        raise CheckpointError(key, f"expected tensors by name in '{file}', found something else", "Save a state dict.")
    return cast("dict[str, torch.Tensor]", found)
