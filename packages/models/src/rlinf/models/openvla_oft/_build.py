"""Builds OpenVLA-OFT: random weights, or those of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf.core.data import EnvSpec
from rlinf.models.lora import apply_lora
from rlinf.models.normalization import Normalizer
from rlinf.models.openvla._loading import from_folder, from_preset
from rlinf.models.openvla.folder import action_statistics, read_facts
from rlinf.models.openvla_oft._policy import OpenVLAOFTPolicy
from rlinf.models.openvla_oft.checkpoint import load_parts
from rlinf.models.openvla_oft.config import OpenVLAOFTPolicyConfig
from rlinf.models.seeding import seeded_weights


def build(config: OpenVLAOFTPolicyConfig, spec: EnvSpec, *, seed: int) -> OpenVLAOFTPolicy:
    """See `OpenVLAOFTPolicyConfig.build`."""
    if config.model_path is None:
        source = from_preset(config.preset or "tiny", config.n_action_bins, spec, seed)
    else:
        source = from_folder(Path(config.model_path), config.n_action_bins, config.unnorm_key, spec)
    with seeded_weights(seed):
        policy = OpenVLAOFTPolicy(config, spec, source)
    policy.normalize_actions.set_statistics(_bounds(spec))
    if config.model_path is not None:
        _read(policy, Path(config.model_path))
    if config.precision == "bf16":
        policy.vlm.to(torch.bfloat16)
        if policy.film is not None:
            policy.film.to(torch.bfloat16)
    if config.lora is not None:
        apply_lora(policy.vlm, config.lora, seed=seed)
    return policy


def _read(policy: OpenVLAOFTPolicy, folder: Path) -> None:
    """Statistics and the weights outside the vision-language model."""
    key, statistics = policy.config.unnorm_key, read_facts(folder).statistics
    _take(policy.normalize_actions, action_statistics(statistics, key))
    if policy.normalize_states is not None:
        states = {name: {"action": found["proprio"]} for name, found in statistics.items() if "proprio" in found}
        _take(policy.normalize_states, action_statistics(states, key if key in states else None))
    load_parts(policy, folder)


def _take(normalizer: Normalizer, statistics: Any) -> None:
    if statistics is not None:
        everywhere = np.ones(len(normalizer.mask), np.bool_)
        normalizer.set_statistics({"mask": everywhere, **statistics})


def _bounds(spec: EnvSpec) -> dict[str, Any]:
    """The bounds of the environment as statistics of actions, where they are finite."""
    size = spec.action.shape[0]
    if spec.action.low is None or spec.action.high is None:
        low, high = np.full(size, -np.inf), np.full(size, np.inf)
    else:
        low, high = (np.asarray(bound, np.float64) for bound in (spec.action.low, spec.action.high))
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(finite, low, -1.0), np.where(finite, high, 1.0)
    return {"q01": low, "q99": high, "min": low, "max": high, "mask": finite}
