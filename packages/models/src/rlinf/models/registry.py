"""A policy from a configuration, by the name of its model; nothing here knows any name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError
from rlinf.core.models import build_model
from rlinf.core.registry import MODELS
from rlinf.models.base import BasePolicy
from rlinf.models.checkpoints.loading import load_weights


def get_model(
    cfg: Mapping[str, Any],
    spec: EnvSpec | None = None,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    place: str = "model",
) -> BasePolicy:
    """The policy of a section such as `{"model_type": "mlp_policy", "hidden_sizes": [64, 64]}`.

    What is registered may be a dataclass of hyper-parameters with `build(spec, *, seed)`, or a plain function
    `builder(spec, *, seed)`, which has none.

    Args:
        cfg: `model_type`, a registered name or `module:attr`; `ckpt_path`, weights to start from, if there are any; all other
            keys are hyper-parameters.
        spec: the environment that the policy acts in; a language model needs none.
        seed: decides the weights that no checkpoint gives.
        device: where the policy goes.
        place: the dotted path of `cfg`, for messages.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or wrong.
        CheckpointError: the weights can't be read, or are another policy's.
    """
    if not isinstance(cast("object", cfg), Mapping):
        raise ConfigError(place, f"expected a section, found {cfg!r}", 'Write it as {"model_type": "mlp_policy"}.')
    params = {key: value for key, value in cfg.items() if key not in ("model_type", "ckpt_path")}
    name, weights = cfg.get("model_type"), cfg.get("ckpt_path")
    if not isinstance(name, str):
        raise ConfigError(f"{place}.model_type", f"expected a name, found {name!r}", f"Installed: {', '.join(MODELS.names())}.")
    policy = build_policy(name, params, spec, seed=seed, place=place)
    if weights is not None:
        load_weights(policy, Path(weights).expanduser())
    return policy if device is None else policy.to(device)


def build_policy(name: str, params: Mapping[str, Any], spec: EnvSpec | None, *, seed: int, place: str) -> BasePolicy:
    """The policy of a registered name, with fresh weights.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or wrong, or what is registered builds something else, or needs to
            know the environment.
    """
    policy: Any = build_model(MODELS.build(name, params, place=place), spec, seed=seed, place=f"{place}.model_type")
    if not isinstance(policy, BasePolicy):
        raise ConfigError(f"{place}.model_type", f"'{name}' built a {type(policy).__name__}", "Derive it from BasePolicy.")
    return policy
