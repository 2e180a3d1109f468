"""Writes what was found in the format that is asked for, or says why it can't be done."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy, WeightLayout
from rlinf.core.checkpoints.weight_files import has_weights
from rlinf.core.data import Weights
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import MODELS, WEIGHT_LAYOUTS
from rlinf.models.checkpoints.atomic import fresh_folder
from rlinf.models.checkpoints.exporting import copy_others, write_full_weights, write_like
from rlinf.models.checkpoints.fitting import fit, unwrapped
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.loading import CONFIG
from rlinf.models.checkpoints.policies import describe_policy
from rlinf.models.checkpoints.tensors import read_tensors, write_tensors
from rlinf.models.conversion.public_names import LANGUAGE, LEROBOT, OURS_ALONE, PUBLIC_NAMES, PUBLIC_TYPES, formats
from rlinf.models.conversion.robot_folders import robot_spec
from rlinf.models.conversion.sources import Source, find_source
from rlinf.models.registry import build_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for."""

    source: Source
    target: Path
    to: str
    """The format."""
    like: Path | None = None
    """A folder of the format whose other files, names and types the result gets; None takes the one that the model came from."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyper-parameters of the layout, or such of the model as differ from those of the source."""
    overwrite: bool = False
    """Whether an older checkpoint is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of it."""

    tensors: int
    left_out: tuple[str, ...] = ()
    """Weights that the format has no place for."""
    network: Path | None = None
    """Of a layout the folder that says the sizes of the network."""


def write_target(request: Request) -> Written:
    """Writes the checkpoint.

    Raises:
        ConfigError: the format is unknown, or the model has no such format.
        CheckpointError: something is missing or damaged, or the target is there already.
    """
    if request.source.kind == "layout" and request.to != "hf":
        # By way of a folder of Hugging Face, which every other format starts from.
        with _between(request) as folder:
            network = _layout_to_hf(request, folder).network
            return write_target(replace(request, source=replace(find_source(folder), network=network), like=None))
    if request.to in ("safetensors", "full_weights"):
        return _own_weights(request)
    if request.to == "hf":
        return _layout_to_hf(request, request.target) if request.source.kind == "layout" else _hugging_face(request)
    if request.to == "lerobot":
        return _lerobot(request)
    return _laid_down(request)


def _own_weights(request: Request) -> Written:
    """By the policy's own names: what `runner.ckpt_path` reads."""
    source, model, params = request.source, request.source.model_type, request.source.params
    if source.public:
        # From wherever it is read later.
        network = (source.network or source.path).absolute()
        params = {"model_path": str(network), **_hyper_parameters(request)}
        model = _model_type(request)
        if model in LANGUAGE:
            policy = _language(request)
        else:
            spec, params = robot_spec(source.path, params)
            policy = build_policy(model, params, spec, seed=0, place="actor.model")
        tensors: Mapping[str, Tensor] = policy.weights().tensors
        if not has_weights(network):  # a layout's folder of sizes: nothing that stays is a model
            model, params = None, {}
    elif params_given := sorted(request.params):
        problem = f"{source.described} needs no parameter, found '{params_given[0]}'"
        raise ConfigError("rlinf convert", problem, "Leave it out.")
    else:
        tensors = unwrapped(source.tensors())
    if request.to == "full_weights":
        file = request.target if request.target.suffix in (".pt", ".pth") else request.target / "full_weights.pt"
        _refuse_file(file, overwrite=request.overwrite)
        write_full_weights(tensors, file)
        return Written(tensors=len(tensors))
    with fresh_folder(request.target, overwrite=request.overwrite) as made:
        write_tensors(tensors, made)
        # With what it is a policy of, `load_policy` reads the folder by itself.
        described = describe_policy(model, params, source.version)
        (made / CONFIG).write_text(json.dumps(described, indent=1), encoding="utf-8")
    return Written(tensors=len(tensors))


def _hugging_face(request: Request) -> Written:
    source = request.source
    if source.kind == "huggingface":
        raise ConfigError("--to", f"'{source.path}' is a folder of Hugging Face already", "Copy it, or name another format.")
    if _model_type(request) not in LANGUAGE:
        return _like(request)
    policy = _language(request)
    origin = _origin(request)
    with fresh_folder(request.target, overwrite=request.overwrite) as made:
        policy.save_network(made)
        written = {file.name for file in made.iterdir()}
        if origin is not None:
            # What the network has just written is not overwritten by the older files of the folder that it came from.
            copy_others(origin, made, skip=written)
    left = tuple(name for name in policy.weights().tensors if name.startswith("value_head."))
    return Written(tensors=len(read_tensors(request.target)), left_out=left)


def _lerobot(request: Request) -> Written:
    model = _model_type(request)
    if model not in LEROBOT:
        known = ", ".join(LEROBOT)
        raise ConfigError("--to", f"LeRobot has no '{model}'; of ours it has {known}", "Use --to hf, safetensors or full_weights.")
    if request.source.kind == "lerobot":
        raise ConfigError("--to", f"'{request.source.path}' is a folder of LeRobot already", "Copy it, or name another format.")
    origin = _origin(request)
    found = None if origin is None else read_json(origin / CONFIG).get("type")
    if origin is not None and found not in LEROBOT[model]:
        problem = f"expected a folder of LeRobot of type '{LEROBOT[model][0]}' at '{origin}', found {found!r}"
        raise ConfigError("--like", problem, "Name the folder that LeRobot's policy was loaded from.")
    return _like(request)


def _like(request: Request) -> Written:
    """A policy of robots by the names of the folder that it came from, with the other files of that folder."""
    source, model = request.source, _model_type(request)
    names = PUBLIC_NAMES.get(model)
    if names is None:
        known = ", ".join([*LANGUAGE, *PUBLIC_NAMES])
        raise ConfigError("--to", f"no other project has '{model}'; {known} have a public format", "Use --to safetensors.")
    if source.public:
        raise ConfigError("--to", f"{source.described} has public names already", "Copy it.")
    origin = _origin(request)
    if origin is None:
        remedy = "Name the folder that it began from with --like: the other files, names and types are taken from there."
        raise ConfigError("--like", f"'{model}' can't be written without a public folder of its architecture", remedy)
    tensors = unwrapped(source.tensors())
    if any(".lora_" in name for name in tensors):
        raise ConfigError("SOURCE", "its adapters are not merged", "Save it with merged adapters first.")
    theirs = names(read_tensors(origin))
    lost = sorted(name for name in tensors if name not in theirs and not name.startswith(OURS_ALONE))
    if lost:
        problem = f"{len(lost)} weights have no place in '{origin}', such as {lost[:3]}"
        raise ConfigError("--like", problem, "Name a folder of the same architecture and sizes.")
    left = write_like(
        {theirs.get(name, name): tensor for name, tensor in tensors.items()}, origin, request.target, overwrite=request.overwrite
    )
    return Written(tensors=len(tensors) - len(left), left_out=left)


def _laid_down(request: Request) -> Written:
    layout: WeightLayout = WEIGHT_LAYOUTS.build(request.to, request.params, place="--to")
    source = request.source
    if source.kind == "huggingface":
        return _lay_down(layout, read_tensors(source.path), source.path, request)
    if _model_type(request) not in LANGUAGE:
        found = f"{source.described} is no language model, and '{request.to}' is for such alone"
        raise ConfigError("--to", found, f"Formats: {', '.join(formats())}.")
    with _between(request) as folder:
        # The parameters are those of the layout, of which the model knows nothing.
        _hugging_face(replace(request, target=folder, to="hf", params={}))
        return _lay_down(layout, read_tensors(folder), folder, request)


def _lay_down(layout: WeightLayout, tensors: Mapping[str, Tensor], network: Path, request: Request) -> Written:
    with fresh_folder(request.target, overwrite=request.overwrite) as made:
        layout.write(tensors, network, made)
        # What tells a checkpoint from other folders, see `atomic`.
        (made / CONFIG).write_text((network / CONFIG).read_text(encoding="utf-8"), encoding="utf-8")
    return Written(tensors=len(tensors))


def _layout_to_hf(request: Request, folder: Path) -> Written:
    source = request.source
    layout: WeightLayout = WEIGHT_LAYOUTS.build(source.layout, {}, place="SOURCE")
    network = request.like or source.path / "hf"
    if not (network / CONFIG).is_file():
        problem = f"there is no {CONFIG} in '{network}', which says the sizes of the network"
        raise ConfigError("--like", problem, "Name a folder of Hugging Face of the same architecture.")
    tensors = dict(layout.read(source.path, network))
    with fresh_folder(folder, overwrite=request.overwrite) as made:
        write_tensors(tensors, made)
        copy_others(network, made, skip={file.name for file in made.iterdir()})
    return Written(tensors=len(tensors), network=network)


def _language(request: Request) -> Any:
    """The language model with its weights."""
    source, model = request.source, _model_type(request)
    params = {key: value for key, value in source.params.items() if key != "ckpt_path"}
    if source.kind in ("huggingface", "layout"):
        dtype = read_json(source.path / CONFIG).get("dtype") or read_json(source.path / CONFIG).get("torch_dtype")
        params = {"model_path": str(source.path), "precision": "bf16" if dtype == "bfloat16" else "fp32"}
    elif request.like is not None:
        params["model_path"] = str(request.like)
    policy = build_policy(model, {**params, **_hyper_parameters(request)}, None, seed=0, place="actor.model")
    if not source.public:
        tensors, own = source.tensors(), policy.weights().tensors
        fitted = fit(own, tensors, place=str(source.path), allow_missing=("value_head.*",), allow_unused=("value_head.*",))
        policy.load(Weights(tensors={**own, **fitted.tensors}, version=0))
    if not isinstance(cast("object", policy), LanguageModelPolicy):
        raise ConfigError("SOURCE", f"'{model}' is no language model", "Name a policy of text.")
    return policy


def _hyper_parameters(request: Request) -> dict[str, Any]:
    """What was given, but for the name of the model."""
    return {key: value for key, value in request.params.items() if key != "model_type"}


def _model_type(request: Request) -> str:
    """The registered name of the model, which may be given; of weights alone what the folder of `--like` says."""
    source = request.source
    if given := request.params.get("model_type"):
        return str(given)
    name = PUBLIC_TYPES.get(source.model_type or "", source.model_type)
    if source.kind == "weights" and request.like is not None:
        config = read_json(request.like / CONFIG)
        name = config.get("type") or config.get("model_type")
    for model, kinds in LEROBOT.items():
        if name in kinds:
            return model
    if name is None:
        raise ConfigError(
            "SOURCE", f"'{source.path}' does not say of which model it is", "Name a folder of that model with --like."
        )
    # A run and a saved policy have our names, or that of a class of somebody's own.
    if name in MODELS.names() or source.kind in ("run", "policy"):
        return name
    # transformers calls architectures by names of its own; those that see have a vision tower.
    folder = request.like if source.kind == "weights" and request.like is not None else source.path
    return "vlm" if "vision_config" in read_json(folder / CONFIG) else "causal_lm"


def _origin(request: Request) -> Path | None:
    """The folder that the model came from."""
    named = request.like or request.source.params.get("model_path")
    if named is None:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise ConfigError("--like", f"there is no folder '{folder}'", "Say where it is on this machine.")
    return folder


@contextmanager
def _between(request: Request) -> Generator[Path]:
    """A place for a folder that is made on the way, on the file system of the target."""
    request.target.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=request.target.absolute().parent, prefix=".convert.") as folder:
        yield Path(folder) / "hf"


def _refuse_file(file: Path, *, overwrite: bool) -> None:
    if file.exists() and not overwrite:
        raise CheckpointError(str(file), "is there already", "Choose another file, or set --overwrite.")
