"""Network, tokenizer and statistics from a preset or from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ShapeError
from rlinf.models._tokenizers import read_tokenizer, tiny_tokenizer
from rlinf.models.actor_config import finite_bounds
from rlinf.models.checkpoints.tensors import read_tensors
from rlinf.models.normalization import Normalizer
from rlinf.models.openvla._prismatic import PrismaticVLM, build_prismatic
from rlinf.models.openvla.architecture import PrismaticConfig
from rlinf.models.openvla.bins import ActionBins
from rlinf.models.openvla.folder import action_statistics, read_facts
from rlinf.models.openvla.prompt import last_prompt_token
from rlinf.models.openvla.weight_map import own_state

_BINS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a policy is made of."""

    vlm: PrismaticVLM
    tokenizer: Any
    last_prompt_token: int | None
    """The token that ends every prompt, if the tokenizer is Llama's."""
    bins: ActionBins
    normalizer: Normalizer


def from_preset(preset: str, n_action_bins: int | None, spec: EnvSpec, seed: int) -> Source:
    """Random weights of the sizes of a preset, and the bounds of the environment as statistics."""
    count = n_action_bins or _BINS
    tokenizer = tiny_tokenizer()
    # In the tiny vocabulary actions have ids of their own, behind those of the text.
    sizes = PrismaticConfig.base() if preset == "base" else PrismaticConfig.tiny(vocabulary=len(tokenizer) + count)
    return Source(
        vlm=build_prismatic(sizes, seed),
        tokenizer=tokenizer,
        last_prompt_token=None,
        bins=ActionBins(sizes.vocabulary, count),
        normalizer=bounds_normalizer(spec),
    )


def from_folder(folder: Path, n_action_bins: int | None, unnorm_key: str | None, spec: EnvSpec) -> Source:
    """A published folder, or one with its layout.

    Raises:
        CheckpointError: it is incomplete.
        ConfigError: `unnorm_key` doesn't fit.
        ShapeError: its actions are of another size than those of the environment.
    """
    facts = read_facts(folder)
    statistics = action_statistics(facts.statistics, unnorm_key)
    normalizer = bounds_normalizer(spec)
    if statistics is not None:
        if len(statistics["q01"]) != spec.action.shape[0]:
            found = f"expected statistics of {spec.action.shape[0]} actions, found {len(statistics['q01'])}"
            raise ShapeError("openvla(model_path)", found, "Choose an environment with the checkpoint's actions.")
        normalizer.set_statistics(statistics)
    tokenizer = read_tokenizer(folder)
    return Source(
        vlm=load_prismatic(folder, facts.architecture),
        tokenizer=tokenizer,
        last_prompt_token=last_prompt_token(tokenizer),
        bins=ActionBins(facts.architecture.vocabulary, n_action_bins or facts.bins),
        normalizer=normalizer,
    )


def load_prismatic(folder: Path, config: PrismaticConfig) -> PrismaticVLM:
    """The network with the weights of a folder, in float32; memory is taken for one copy.

    Raises:
        CheckpointError: tensors are missing, unknown or of another shape.
    """
    with torch.device("meta"):
        model = PrismaticVLM(config)
    state = own_state(read_tensors(folder), model.state_dict(), config)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    # Buffers that no checkpoint stores are still on the meta device.
    model.fresh_angles()
    return model


def bounds_normalizer(spec: EnvSpec) -> Normalizer:
    """From the bounds of actions to ±1; nothing where they are not known, or infinite."""
    normalizer = Normalizer(spec.action.shape[0], "quantile", constant=0.0)
    if (bounds := finite_bounds(spec.action)) is not None:
        normalizer.set_statistics({"q01": bounds[0], "q99": bounds[1]})
    return normalizer
