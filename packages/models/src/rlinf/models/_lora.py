"""What `lora` does with peft."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlinf.core.errors import CheckpointError, ConfigError, WeightSyncError, did_you_mean
from rlinf.models.language.network import as_network
from rlinf.models.lora import ALL_LINEAR, LoRAConfig, adapter_state, load_adapter_state
from rlinf.models.seeding import seeded_weights

_safetensors: Any = safetensors.torch
_peft: Any = LoraConfig
_NAME: Final = "default"
_WEIGHTS, _CONFIG, _HEADS = "adapter_model.safetensors", "adapter_config.json", "heads.safetensors"
# GPT-2's Conv1D is a linear layer whose weight lies transposed.
_LINEAR: Final = (nn.Linear, Conv1D)
_ADAPTABLE: Final = (*_LINEAR, nn.Embedding, nn.Conv2d)


def inject(module: nn.Module, config: LoRAConfig, *, seed: int) -> None:
    if _layers(module):
        raise ConfigError("lora", "the module has adapters already", "Apply LoRA once, or load another adapter into it.")
    made = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or config.rank,
        lora_dropout=config.dropout,
        target_modules=_as_peft_names(module, _targets(module, config)),
        init_lora_weights=True if config.init == "default" else "gaussian",
    )
    _inject(module, made, config.modules_to_train, seed)


def merge(module: nn.Module) -> dict[str, Tensor]:
    layers = _adapted(module, "merge_lora")
    if any(layer.merged for layer in layers.values()):
        raise ConfigError("merge_lora", "the adapters are merged already", "Call unmerge_lora first.")
    originals: dict[str, Tensor] = {}
    for path, layer in layers.items():
        originals[path] = layer.get_base_layer().weight.data
        layer.merge(safe_merge=True)  # into a copy, so that the original stays
    return originals


def unmerge(module: nn.Module, originals: Mapping[str, Tensor]) -> None:
    layers = _adapted(module, "unmerge_lora")
    if set(layers) != set(originals) or not all(layer.merged for layer in layers.values()):
        raise ConfigError("unmerge_lora", "the adapters are not merged, or by another call", "Pass what merge_lora returned.")
    for path, layer in layers.items():
        # peft would subtract, which doesn't give the same bits back.
        layer.get_base_layer().weight.data = originals[path]
        # peft takes a layer for merged while this list names an adapter.
        layer.merged_adapters.clear()


@torch.no_grad()
def merged(module: nn.Module) -> dict[str, Tensor]:
    layers = _layers(module)
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        path, _, rest = name.rpartition(".base_layer.") if ".base_layer." in name else ("", "", "")
        if path not in layers:
            if not any(name.startswith(f"{own}.lora_") for own in layers):
                state[name] = tensor.detach()
        elif rest == "weight" and not layers[path].merged:
            state[f"{path}.weight"] = tensor.detach() + layers[path].get_delta_weight(_NAME).to(tensor.dtype)
        else:
            state[f"{path}.{rest}"] = tensor.detach()
    return {name: state[name] for name in sorted(state)}


@contextmanager
def disabled(module: nn.Module) -> Generator[None]:
    layers = _adapted(module, "without_adapters")
    if any(layer.merged for layer in layers.values()):
        raise ConfigError("without_adapters", "the adapters are merged", "Call unmerge_lora first.")
    trainable = {parameter: parameter.requires_grad for parameter in module.parameters()}
    for layer in layers.values():
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.enable_adapters(True)
        for parameter, was in trainable.items():  # peft freezes what it switches off
            parameter.requires_grad_(was)


def save(module: nn.Module, folder: Path) -> None:
    _adapted(module, "save_adapter")
    held = vars(module).get("peft_config")
    if held is None:
        raise ConfigError("save_adapter", "the adapters belong to a part of this module", "Pass the module that got apply_lora.")
    folder.mkdir(parents=True, exist_ok=True)
    _safetensors.save_file(_plain(adapter_state(module)), folder / _WEIGHTS, metadata={"format": "pt"})
    held[_NAME].save_pretrained(str(folder))
    heads = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad and ".lora_" not in name}
    if heads:
        _safetensors.save_file(_plain(heads), folder / _HEADS)


@torch.no_grad()
def load(module: nn.Module, folder: Path, *, modules_to_train: tuple[str, ...]) -> None:
    for file in (_CONFIG, _WEIGHTS):
        if not (folder / file).is_file():
            raise CheckpointError(
                f"load_adapter({folder})", f"no file '{file}'", "Point to a folder that save_adapter or peft wrote."
            )
    if not _layers(module):
        # Any seed does: what it draws is overwritten below.
        _inject(module, _read_config(folder), modules_to_train, seed=0)
    load_adapter_state(module, _safetensors.load_file(folder / _WEIGHTS))
    if not (folder / _HEADS).is_file():
        return
    own = dict(module.named_parameters())
    for name, tensor in _safetensors.load_file(folder / _HEADS).items():
        if name not in own or own[name].shape != tensor.shape:
            raise WeightSyncError(f"load_adapter({name})", f"the module has no parameter of shape {tuple(tensor.shape)}")
        own[name].copy_(tensor)


def _read_config(folder: Path) -> LoraConfig:
    config = _peft.from_pretrained(str(folder))
    plain = config.peft_type == "LORA" and config.bias == "none" and not config.modules_to_save
    if not plain or config.use_dora or config.target_parameters or config.lora_bias:
        raise CheckpointError(f"load_adapter({folder})", "expected a plain LoRA", "DoRA, biases and other methods are not read.")
    # peft saves inference_mode as true, which would freeze the adapters.
    config.inference_mode, config.lora_dropout = False, 0.0
    return config


def _inject(module: nn.Module, config: LoraConfig, modules_to_train: Sequence[str], seed: int) -> None:
    # peft freezes all that is no adapter, heads included.
    kept = {name: p.requires_grad for name, p in module.named_parameters() if set(name.split(".")) & set(modules_to_train)}
    with seeded_weights(seed):
        inject_adapter_in_model(config, module, adapter_name=_NAME)
    for name, parameter in module.named_parameters():
        if name in kept:
            parameter.requires_grad_(kept[name])


def _targets(module: nn.Module, config: LoRAConfig) -> list[str]:
    """The names of the layers to adapt, in the module's order."""
    candidates = _candidates(module, config)
    every = [name for name in _modules(module) if name]
    linear_too, targets = _split(config.target_modules)
    _refuse_unmatched("lora.target_modules", targets, list(candidates))
    _refuse_unmatched("lora.exclude_modules", config.exclude_modules, every)
    excluded = [name for name in every if _matches(name, config.exclude_modules)]
    heads = _output_embeddings(module)
    # As in peft, "all linear layers" leaves out the output embedding.
    linear = {name for name, part in candidates.items() if isinstance(part, _LINEAR) and part not in heads}
    chosen = [name for name in candidates if _matches(name, targets) or (linear_too and name in linear)]
    chosen = [name for name in chosen if not any(name == other or name.startswith(f"{other}.") for other in excluded)]
    if not chosen:
        raise ConfigError("lora.target_modules", f"{config.target_modules} leaves no layer to adapt", "Exclude less.")
    return chosen


def _split(entries: tuple[str, ...] | str) -> tuple[bool, Sequence[str] | str]:
    """Whether all linear layers are meant, and what else; a text that is no list is one expression, as in peft."""
    if isinstance(entries, str):
        return (True, ()) if entries.lower() == ALL_LINEAR else (False, entries)
    return ALL_LINEAR in entries, [entry for entry in entries if entry != ALL_LINEAR]


def _candidates(module: nn.Module, config: LoRAConfig) -> dict[str, nn.Module]:
    # nn.MultiheadAttention reads the weights of its output layer without calling it: an adapter there would do nothing.
    deaf = [name for name, part in _modules(module).items() if isinstance(part, nn.MultiheadAttention)]
    return {
        name: part
        for name, part in _modules(module).items()
        if isinstance(part, _ADAPTABLE)
        and not set(name.split(".")) & set(config.modules_to_train)
        and not any(name.startswith(f"{other}.") for other in deaf)
    }


def _output_embeddings(module: nn.Module) -> set[nn.Module]:
    found: list[nn.Module | None] = [
        as_network(part).get_output_embeddings() for part in module.modules() if isinstance(part, PreTrainedModel)
    ]
    return {part for part in found if part is not None}


def _matches(name: str, entries: Sequence[str] | str) -> bool:
    if isinstance(entries, str):
        return re.fullmatch(entries, name) is not None
    return any(name == entry or name.endswith(f".{entry}") or re.fullmatch(entry, name) for entry in entries)


def _refuse_unmatched(place: str, entries: Sequence[str] | str, names: Sequence[str]) -> None:
    for entry in [entries] if isinstance(entries, str) else entries:
        if not any(_matches(name, entry if isinstance(entries, str) else [entry]) for name in names):
            endings = sorted({name.rpartition(".")[2] for name in names if not name.rpartition(".")[2].isdigit()})
            raise ConfigError(place, f"'{entry}' matches no layer", did_you_mean(entry, endings, label="Layers"))


def _as_peft_names(module: nn.Module, chosen: Sequence[str]) -> list[str] | str:
    """Short endings where they name exactly the chosen layers, otherwise one expression that does."""
    endings = sorted({name.rpartition(".")[2] for name in chosen})
    meant = [name for name in _modules(module) if name.rpartition(".")[2] in endings]
    # To peft a list means endings of names, and a text one expression for whole names.
    return endings if meant == list(chosen) else "|".join(re.escape(name) for name in chosen)


def _modules(module: nn.Module) -> dict[str, nn.Module]:
    root: Any = module
    return dict(root.named_modules())


def _layers(module: nn.Module) -> dict[str, Any]:
    return {name: part for name, part in _modules(module).items() if isinstance(part, LoraLayer)}


def _adapted(module: nn.Module, place: str) -> dict[str, Any]:
    layers = _layers(module)
    if not layers:
        raise ConfigError(place, "the module has no adapters", "Call apply_lora first.")
    return layers


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that are not contiguous.
    return {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
