"""Builds a policy from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.initialization import no_init_weights

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.models._tiny_tokenizer import tiny_tokenizer
from rlinf.models.flow import ExploreNoiseNet
from rlinf.models.heads import ValueHead
from rlinf.models.lora import apply_lora
from rlinf.models.normalization import Normalizer, Scheme
from rlinf.models.pi0 import _checkpoint as checkpoint
from rlinf.models.pi0._network import PiNetwork
from rlinf.models.pi0.architecture import PiArchitecture, base, tiny
from rlinf.models.pi0.config import PI05PolicyConfig, PiConfig
from rlinf.models.pi0.policy import CAMERAS, PiPolicy
from rlinf.models.seeding import seeded_weights

_SCHEMES: Mapping[str, Scheme] = {"pi0": "mean_std", "pi05": "quantile"}


def build_policy(config: PiConfig, spec: EnvSpec, *, seed: int) -> PiPolicy:
    """See `PI0PolicyConfig.build`."""
    folder = None if config.model_path is None else Path(config.model_path)
    of = architecture(config, folder)
    states, actions = _sizes(config, spec, of)
    tokenizer = tiny_tokenizer(of.vocabulary) if folder is None else checkpoint.read_tokenizer(folder)
    statistics = {} if folder is None else checkpoint.read_statistics(folder)
    with seeded_weights(seed):
        with nullcontext() if folder is None else no_init_weights():
            network = PiNetwork(config.kind, of)
        policy = PiPolicy(
            config,
            network,
            tokenizer,
            states=_normalizer(config, states, statistics.get("states"), spec.observation["states"]),
            actions=_normalizer(config, actions, statistics.get("actions"), spec.action),
            value_head=_value_head(config, of),
            noise_net=_noise_net(config, of),
            prompt_states=_prompt_states(config, folder, of),
        )
    if folder is not None:
        checkpoint.load_network(network, folder)
    if config.precision == "bf16":
        for part in network.transformers():
            part.to(torch.bfloat16)
    if config.lora is not None:
        apply_lora(network.core.model.vlm, config.lora, seed=seed)
    freeze(config, network)
    return policy


def architecture(config: PiConfig, folder: Path | None) -> PiArchitecture:
    """The sizes of the preset, or of the folder, with what the configuration changes."""
    of = base(config.kind) if config.preset == "base" else tiny(config.kind)
    if folder is not None:
        of = checkpoint.read_architecture(folder, config.kind)
    names = ("horizon", "max_state_dim", "max_action_dim", "max_token_length", "value_hidden_sizes")
    changed: dict[str, Any] = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    image = of.vision.image if config.image_size is None else config.image_size
    if image % of.vision.patch:
        raise ConfigError("image_size", f"expected a multiple of the patch, {of.vision.patch}, found {image}")
    return replace(of, vision=replace(of.vision, image=image), **changed)


def freeze(config: PiConfig, network: PiNetwork) -> None:
    """Takes gradients from what must not change, and from what no gradient can reach.

    The expert sees keys and values of the last layer of the vision-language model, and nothing that comes after them.
    """
    vlm = network.core.model.vlm
    if config.train_expert_only:
        vlm.requires_grad_(requires_grad=False)
    if config.add_value_head and config.value_after_vlm and not config.detach_critic_input:
        return
    last = vlm.language_model.layers[-1]
    unread: list[nn.Module] = [last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm]
    for module in (*unread, vlm.language_model.norm):
        module.requires_grad_(requires_grad=False)


def _sizes(config: PiConfig, spec: EnvSpec, of: PiArchitecture) -> tuple[int, int]:
    for key, axes in ((CAMERAS[0], 3), ("states", 1)):
        if key not in spec.observation or len(spec.observation[key].shape) != axes:
            found = {name: leaf.shape for name, leaf in spec.observation.items()}
            raise ConfigError(config.kind, f"expected the observation '{key}' with {axes} axes, found {found}")
    if len(spec.action.shape) != 1:
        raise ConfigError(config.kind, f"expected an action [A], found {spec.action.shape}")
    states, actions = spec.observation["states"].shape[0], spec.action.shape[0]
    limits = [("max_action_dim", actions, of.max_action_dim)]
    if config.kind == "pi0":
        limits.append(("max_state_dim", states, of.max_state_dim))
    for name, size, limit in limits:
        if size > limit:
            raise ConfigError(name, f"expected at least the environment's {size}, found {limit}", f"Set it to {size} or more.")
    if config.num_action_chunks > of.horizon:
        raise ConfigError("num_action_chunks", f"expected at most the horizon, {of.horizon}, found {config.num_action_chunks}")
    return states, actions


def _normalizer(config: PiConfig, size: int, statistics: Mapping[str, Any] | None, bounds: ArraySpec) -> Normalizer:
    normalizer = Normalizer(size, _SCHEMES[config.kind])
    if statistics is not None:
        # Published statistics may be padded to the model's size.
        normalizer.set_statistics({key: np.asarray(values)[:size] for key, values in statistics.items()})
    elif bounds.low is not None and bounds.high is not None:
        low, high = np.asarray(bounds.low, np.float32), np.asarray(bounds.high, np.float32)
        if np.isfinite(low).all() and np.isfinite(high).all():
            normalizer.set_statistics({"q01": low, "q99": high, "mean": 0.5 * (low + high), "std": 0.5 * (high - low)})
    return normalizer


def _prompt_states(config: PiConfig, folder: Path | None, of: PiArchitecture) -> int:
    """To how many numbers the state in the prompt is padded; 0 for those of the environment."""
    if not isinstance(config, PI05PolicyConfig):
        return 0
    padded = config.pad_prompt_state
    if padded is None:
        padded = folder is not None and checkpoint.of_lerobot(folder)
    return of.max_state_dim if padded else 0


def _value_head(config: PiConfig, of: PiArchitecture) -> ValueHead | None:
    if not config.add_value_head:
        return None
    width = of.language.width if config.value_after_vlm else of.expert.width
    return ValueHead(width, of.value_hidden_sizes, "relu")


def _noise_net(config: PiConfig, of: PiArchitecture) -> ExploreNoiseNet | None:
    if config.sampling.noise_method != "flow_noise":
        return None
    return ExploreNoiseNet(of.expert.width, of.max_action_dim, config.sampling.noise_logvar_range)
