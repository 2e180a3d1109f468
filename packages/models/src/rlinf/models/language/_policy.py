"""Builds language models with transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor

from rlinf.core.errors import CheckpointError, ConfigError, error_text
from rlinf.models.actor_config import folder_of
from rlinf.models.heads import ValueHead
from rlinf.models.language._folder import without_bar
from rlinf.models.language._presets import check_names, fresh_config, merged
from rlinf.models.language.folder import load_value_head
from rlinf.models.language.images import VisionInputs
from rlinf.models.language.model import Inputs, LanguageModel, text_inputs
from rlinf.models.language.network import as_network
from rlinf.models.language.policy import CausalLMConfig, NetworkConfig, VisionLanguageConfig
from rlinf.models.language.presets import IMAGE_TOKEN, TINY, TINY_VISION
from rlinf.models.language.vocabulary import IMAGE_TOKENS
from rlinf.models.lora import apply_lora
from rlinf.models.seeding import seeded_weights

_hf: Any = import_module("transformers")
_Config = TypeVar("_Config", bound=NetworkConfig)
_TYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
_NOISE: Final = re.compile(r"drop|jitter")
"""Names of what makes a forward pass random."""
_MARKS: Final = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_NEVER: Final = -1e4
"""A logit whose probability is 0, and which is finite, so that entropies are."""


def build_causal(config: CausalLMConfig, *, seed: int) -> LanguageModel:
    config = with_vocabulary(config)
    network = network_of(config, "AutoModelForCausalLM", TINY, seed=seed)
    return _finish(config, network, text_inputs, seed=seed)


def with_vocabulary(config: _Config) -> _Config:
    """The same, with the sizes and ids of its tokens among the overrides."""
    if config.tokens is None:
        return config
    sizes = _seeing if isinstance(config, VisionLanguageConfig) else _vocabulary
    return replace(config, tokens=None, overrides=merged(sizes(config.tokens.vocabulary), config.overrides))


def build_vision(config: VisionLanguageConfig, *, seed: int) -> LanguageModel:
    config = with_vocabulary(config)
    network = network_of(config, "AutoModelForImageTextToText", TINY_VISION, seed=seed)
    own = network.config
    # Only Qwen-VL is shown pictures here, whose tokens it places along three axes; others read text.
    grid = hasattr(network.base_model, "get_rope_index")
    inputs = VisionInputs(own.image_token_id, own.vision_config.spatial_merge_size) if grid else text_inputs
    visual = network.base_model.visual if config.freeze_vision else None
    model = _finish(config, network, inputs, seed=seed)
    # Adapters of the tower, which are trainable when they are made, are frozen with it.
    if visual is not None:
        visual.requires_grad_(False)
    _never_write_marks(network)
    return model


def vision_sizes(config: VisionLanguageConfig) -> Any:
    """The configuration of transformers of what `build_vision` makes."""
    return _own_config(with_vocabulary(config), TINY_VISION)


def _never_write_marks(network: Any) -> None:
    """What stands for pictures is read and never written: scored again, a mark without a picture would not fit the patches.

    All who ask for logits get them from the output embedding, the engine `hf` too, so that all agree.
    """
    found = {getattr(network.config, name, None) for name in _MARKS}
    marks = torch.tensor(sorted(mark for mark in found if mark is not None), dtype=torch.long)

    def bar(_module: Any, _inputs: Any, logits: Tensor) -> Tensor:
        return logits.index_fill_(-1, marks.to(logits.device), _NEVER)

    network.get_output_embeddings().register_forward_hook(bar)


def _vocabulary(size: int) -> dict[str, Any]:
    """The sizes and ids of a model whose tokenizer is made on the spot."""
    return {"vocab_size": size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _seeing(size: int) -> dict[str, Any]:
    """The same of a vision-language model, which has tokens of its own behind those of the tokenizer."""
    own = dict(
        zip(("video_token_id", "vision_start_token_id", "vision_end_token_id"), range(size, size + IMAGE_TOKENS), strict=True)
    )
    text = {"vocab_size": size + IMAGE_TOKENS, "pad_token_id": 0}
    return {"text_config": text, "image_token_id": IMAGE_TOKEN, **own}


def network_of(
    config: NetworkConfig, auto: str, tiny: Mapping[str, Any], *, seed: int, labels: int | None = None, may_miss: str = ""
) -> Any:
    """A model of transformers without dropout, random or from a folder.

    Args:
        config: says which.
        auto: the class of transformers that makes it.
        tiny: sizes of the tiny preset.
        seed: decides random weights.
        labels: how many numbers a classifier gives.
        may_miss: the beginning of names of weights that a folder may lack; they are random then.

    Raises:
        ConfigError: an unknown architecture, override or kernel.
        CheckpointError: the folder is no whole checkpoint.
    """
    own = _own_config(config, tiny)
    if labels is not None:
        own.num_labels = labels
    arguments = {"dtype": _TYPES[config.precision], "attn_implementation": config.attention}
    folder = folder_of(config.model_path)
    with seeded_weights(seed):
        try:
            if folder is None:
                network = getattr(_hf, auto).from_config(own, **arguments)
            else:
                network = _load(getattr(_hf, auto), str(folder), own, arguments, may_miss)
        except (ValueError, ImportError, RuntimeError, ArithmeticError, LookupError) as error:
            kind = f"'{own.model_type}'"
            # transformers has no class of error for a kernel that is missing: only the text tells.
            if isinstance(error, ValueError | ImportError) and ("attention" in str(error) or "flash" in str(error).lower()):
                raise ConfigError("attention", f"{kind} can't use {config.attention} here", "Try eager.") from error
            if folder is None and config.overrides:
                problem = f"{kind} can't be built with these values ({error_text(error)})"
                raise ConfigError("overrides", problem, "Change what does not fit.") from error
            raise
    if config.gradient_checkpointing:
        # Newer transformers call it `activation_checkpointing_enable`; this name works in all that we support.
        # The re-entrant kind gives no gradient where no input wants one, as above a frozen embedding.
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return network.eval()


def _own_config(config: NetworkConfig, tiny: Mapping[str, Any]) -> Any:
    """The model's own configuration, without dropout and jitter."""
    folder = folder_of(config.model_path)
    if folder is not None:
        if not (folder / "config.json").is_file():
            raise CheckpointError("model_path", f"no file 'config.json' in '{config.model_path}'", "Point to a local folder.")
        try:
            own = _hf.AutoConfig.from_pretrained(str(folder), local_files_only=True)
        except ValueError as error:
            problem = f"'{config.model_path}' can't be read ({str(error).splitlines()[0]})"
            raise CheckpointError("model_path", problem, "Choose an architecture that the installed transformers has.") from error
        _override(own, config.overrides, "overrides")
    else:
        own = fresh_config(config.architecture, tiny if config.preset == "tiny" else {}, config.overrides)
    _silence(own)
    return own


def _override(own: Any, overrides: Mapping[str, Any], place: str) -> None:
    check_names(own, overrides, place)
    for name, value in overrides.items():
        if name in own.sub_configs:
            _override(getattr(own, name), value, f"{place}.{name}")
        else:
            setattr(own, name, value)


def _silence(own: Any) -> None:
    for name, value in list(cast("dict[str, Any]", vars(own)).items()):
        if name in own.sub_configs:
            _silence(value)
        elif _NOISE.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(own, name, 0.0)
        # With it a mixture also computes a balancing loss, which nobody here reads.
        elif name == "output_router_logits":
            setattr(own, name, False)


def _load(auto: Any, folder: str, own: Any, arguments: Mapping[str, Any], may_miss: str) -> Any:
    # Else it raises of shapes, and says which only in a log.
    wanted = {"config": own, "local_files_only": True, "output_loading_info": True, "ignore_mismatched_sizes": True, **arguments}
    with without_bar():
        network, report = auto.from_pretrained(folder, **wanted)
    missing = sorted(key for key in report["missing_keys"] if not may_miss or not key.startswith(may_miss))
    wrong = sorted(
        f"{key} ({list(there)} there, {list(here)} by its config.json)" for key, there, here in report["mismatched_keys"]
    )
    if missing or wrong:
        found = f"{len(missing)} weights missing, {len(wrong)} of another shape: {', '.join([*missing, *wrong][:3])}"
        raise CheckpointError(f"model_path '{folder}'", found, "Point to a whole checkpoint of this architecture.")
    return network


def _finish(config: CausalLMConfig | VisionLanguageConfig, network: Any, inputs: Inputs, *, seed: int) -> LanguageModel:
    width = network.get_output_embeddings().weight.shape[1]
    # With the network's seed the head would be drawn from the numbers of its first layer.
    with seeded_weights(seed + 1):
        value_head = ValueHead(width, hidden=()) if config.add_value_head else None
    folder = folder_of(config.model_path)
    if value_head is not None and folder is not None:
        load_value_head(value_head, folder)
    model = LanguageModel(
        network,
        inputs=inputs,
        scale=_scale(network.config.get_text_config()),
        value_head=value_head,
        temperature=config.temperature,
        chunk=config.logit_chunk,
        joined=config.attention == "flash_attention_2",
        sees_trees=inputs is text_inputs
        and config.attention != "flash_attention_2"
        and _sees_all(network.config.get_text_config()),
    )
    _probe(model, exact=config.precision == "fp32", runs=config.attention != "flash_attention_2")
    if config.lora is not None:
        apply_lora(network, config.lora, seed=seed)
    return model


def _sees_all(own: Any) -> bool:
    """Whether every layer attends to all earlier tokens: a window would be lost where a mask is given."""
    kinds = getattr(own, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    return getattr(own, "sliding_window", None) is None


def _scale(own: Any) -> Callable[[Tensor], Tensor]:
    """What an architecture does to the logits of its output embedding."""
    cap, factor, divisor = (getattr(own, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"))
    if cap is not None:
        return lambda logits: torch.tanh(logits / cap) * cap
    if factor is not None:
        return lambda logits: logits * factor
    if divisor is not None:
        return lambda logits: logits / divisor
    return lambda logits: logits


@torch.no_grad()
def _probe(model: LanguageModel, *, exact: bool, runs: bool) -> None:
    """Compares four tokens with what transformers makes of them, and two sequences in one row with two rows.

    An architecture that scales its logits in a way of its own, or that can't tell packed sequences apart, would be scored wrong
    without a word.
    """
    network = as_network(model.network)
    device = next(network.parameters()).device
    if not runs or device.type == "meta":
        return
    ids = torch.tensor([[5, 6], [7, 8]], device=device)
    expected = network(input_ids=ids, use_cache=False).logits.float()
    apart = model.logits(model.hidden_states({"input_ids": ids})).float()
    segments = torch.tensor([[1, 1, 2, 2]], device=device)
    packed = model.logits(model.hidden_states({"input_ids": ids.view(1, 4), "segment_ids": segments})).float()
    size = float(expected.abs().max())
    compared = [(apart, 1e-2, "scales its logits"), (packed.view_as(expected), 1e-3, "parts packed sequences")]
    if model.sees_trees:
        until = torch.tensor([[4, 2, 4, 4]], device=device)  # the first token goes on with the second, and with the last two
        tree = model.logits(model.hidden_states({"input_ids": torch.tensor([[5, 6, 7, 8]], device=device), "seen_until": until}))
        whole = network(input_ids=torch.tensor([[5, 7, 8]], device=device), use_cache=False).logits.float()
        model.sees_trees = float((tree[0, [0, 2, 3]].float() - whole[0]).abs().max()) <= 1e-2 * float(whole.abs().max())
    for found, bound, what in compared:
        # bfloat16 rounds by up to 4e-3: packed and separate rows would seem to differ.
        if (exact or found is apart) and float((found - expected).abs().max()) > bound * size:
            raise ConfigError("architecture", f"'{network.config.model_type}' {what} in an unknown way", "It can't be scored yet.")
