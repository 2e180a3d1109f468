"""Building GR00T-N1.5: fresh, or from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor
from transformers import AutoTokenizer

from rlinf.core.data import EnvSpec
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models._tiny_tokenizer import tiny_tokenizer
from rlinf.models.gr00t._backbone import initialise
from rlinf.models.gr00t._policy import GR00TPolicy
from rlinf.models.gr00t.config import GR00TPolicyConfig
from rlinf.models.gr00t.observation import STATES, Reader
from rlinf.models.gr00t.prompt import Prompter
from rlinf.models.gr00t.shapes import BASE, TINY, GR00TShape, shape_of
from rlinf.models.gr00t.statistics import from_bounds, from_metadata
from rlinf.models.gr00t.weight_map import from_public
from rlinf.models.lora import apply_lora
from rlinf.models.seeding import seeded_weights

_EAGLE = "eagle2_hg_model"
_METADATA = "experiment_cfg/metadata.json"
_FRESH = ("value_head.", "noise_net.", "state_norm.", "action_norm.")


def build(config: GR00TPolicyConfig, spec: EnvSpec, *, seed: int) -> GR00TPolicy:
    """See `GR00TPolicyConfig.build`."""
    folder = None if config.model_path is None else Path(config.model_path)
    shape = _shape(config.preset, folder)
    reader = Reader.of(spec, image_size=shape.vision.image_size, crop=shape.crop)
    _check(config, spec, shape, reader)
    tokenizer = tiny_tokenizer() if config.preset == "tiny" else _tokenizer(config, folder)
    prompter = Prompter(tokenizer, shape, views=reader.views, room=config.max_prompt_tokens)
    with seeded_weights(seed):
        policy = GR00TPolicy(config, shape, reader, prompter, action_size=spec.action.shape[0])
        initialise(policy.backbone)
    if folder is not None:
        _load(policy, folder)
    _statistics(policy, spec, folder)
    return _prepared(policy, seed=seed)


def _prepared(policy: GR00TPolicy, *, seed: int) -> GR00TPolicy:
    """The policy in its precision, with only those weights trained that should be."""
    config = policy.config
    if config.precision == "bf16":
        policy.backbone.to(torch.bfloat16)
        policy.head.to(torch.bfloat16)
    if config.train_expert_only:
        policy.backbone.requires_grad_(False)
    if not policy.reader.cameras:
        policy.backbone.vision.requires_grad_(False)
        policy.backbone.connector.requires_grad_(False)
    if config.lora is not None:
        apply_lora(policy.backbone, config.lora, seed=seed)
    return policy.eval()


def _shape(preset: str | None, folder: Path | None) -> GR00TShape:
    if folder is None:
        return TINY if preset == "tiny" else BASE
    eagle = folder / _EAGLE / "config.json"
    return shape_of(_read(folder / "config.json"), _read(eagle) if eagle.is_file() else None)


def _check(config: GR00TPolicyConfig, spec: EnvSpec, shape: GR00TShape, reader: Reader) -> None:
    if len(spec.action.shape) != 1:
        raise ConfigError("gr00t", f"expected an action [A], found {spec.action.shape}")
    sizes = (
        ("num_action_chunks", config.num_action_chunks, shape.head.horizon),
        ("action", spec.action.shape[0], shape.head.action_size),
        ("states", reader.state_size, shape.head.state_size),
    )
    for place, found, most in sizes:
        if found > most:
            raise ConfigError(f"gr00t.{place}", f"expected at most {most}, found {found}", "The model has no room for more.")


def _tokenizer(config: GR00TPolicyConfig, folder: Path | None) -> Any:
    places = [Path(config.tokenizer_path)] if config.tokenizer_path else [] if folder is None else [folder / _EAGLE, folder]
    for place in places:
        if any((place / name).is_file() for name in ("tokenizer.json", "vocab.json")):
            return cast("Any", AutoTokenizer).from_pretrained(place, local_files_only=True)
    found = f"expected a tokenizer in one of {[str(place) for place in places]}, found none"
    raise ConfigError("gr00t.tokenizer_path", found, "Set it to a folder with the tokenizer of Eagle 2.5.")


def _load(policy: GR00TPolicy, folder: Path) -> None:
    """Copies the public weights; those that the public checkpoint can't have keep their fresh values.

    Raises:
        CheckpointError: one is missing, or has another shape; nothing was changed.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(str(folder), "expected *.safetensors, found none")
    found = {name: tensor for file in files for name, tensor in cast("Any", load_file)(file).items()}
    tensors = from_public(found, layers=policy.shape.language.layers)
    own = {name: tensor for name, tensor in policy.state_dict().items() if not name.startswith(_FRESH)}
    for name in sorted(own.keys() | tensors.keys()):
        expected, given = (_size(state.get(name)) for state in (own, tensors))
        if expected != given:
            raise CheckpointError(f"{folder.name}({name})", f"expected {expected}, found {given}", "Is it GR00T-N1.5?")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _statistics(policy: GR00TPolicy, spec: EnvSpec, folder: Path | None) -> None:
    """From the checkpoint's metadata if it has the robot, else from the environment's bounds."""
    config, path = policy.config, None if folder is None else folder / _METADATA
    metadata = _read(path) if path is not None and path.is_file() else {}
    parts = (
        (policy.state_norm, "state", config.state_keys, spec.observation.get(STATES)),
        (policy.action_norm, "action", config.action_keys, spec.action),
    )
    for normalizer, kind, keys, array in parts:
        if config.embodiment_tag in metadata:
            normalizer.set_statistics(from_metadata(metadata, config.embodiment_tag, kind, keys))
        elif array is not None and (bounds := from_bounds(array)) is not None:
            normalizer.set_statistics(bounds)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(str(path), "expected a file, found none", "Set model_path to the folder of a checkpoint.")
    return json.loads(path.read_text(encoding="utf-8"))


def _size(tensor: Tensor | None) -> str:
    return "no such tensor" if tensor is None else f"shape {tuple(tensor.shape)}"
