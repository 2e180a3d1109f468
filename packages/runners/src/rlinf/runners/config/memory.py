"""What the weights of a run take on each device, before a worker starts: the model is built without its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.declarations import traits_of
from rlinf.core.errors import ConfigError
from rlinf.core.models import build_model
from rlinf.core.protocols import SaysMemory, WeightSize
from rlinf.runners.config.schema import ModelSection, TrainingConfig

_torch: Any = torch
_MAKERS = (_torch.empty, _torch.zeros, _torch.ones, _torch.full, _torch.rand, _torch.randn)
_SMALL = 65_536
"""Numbers of a tensor that is made all the same: statistics, positions and heads, some of which are read while a model is built."""
_ONES = np.ones(7, np.float32)
ROBOT = EnvSpec(
    observation={
        "main_images": ArraySpec(shape=(224, 224, 3), dtype="uint8"),
        "states": ArraySpec(shape=(8,), dtype="float32"),
        "task_descriptions": ArraySpec(shape=(), dtype="<U64"),
    },
    action=ArraySpec(shape=(7,), dtype="float32", low=-_ONES, high=_ONES),
    max_episode_steps=512,
)
"""A robot as the simulators of large models have it; only some weights, of projections of states and actions, depend on it."""


class WithoutMemory(TorchFunctionMode):
    """Inside, large tensors that are made from a size alone are on the device `meta`, which has shapes and no numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        given = dict(kwargs or {})
        if func in _MAKERS and given.get("device") is None and _elements(args, given) > _SMALL:
            given["device"] = "meta"
        return func(*args, **given)


def _elements(args: Sequence[Any], given: Mapping[str, Any]) -> int:
    # torch takes a size as numbers, `zeros(2, 3)`, or as one sequence.
    size: Any = args[0] if args else given.get("size", ())
    sizes: Sequence[Any] = args if isinstance(size, int) else size
    return math.prod(each for each in sizes if isinstance(each, int))


def weight_sizes(model: ModelSection) -> list[WeightSize]:
    """The weights of a model of robots, which is not filled: seven billion take seconds and no memory.

    Where a folder of weights is named, those of the published sizes, so that the folder need not be here.

    Raises:
        ConfigError: it is a language model.
    """
    if traits_of(model.config).language:
        problem = f"'{model.model_type}' is a language model, whose sizes are known by its folder alone"
        raise ConfigError("actor.model.model_type", problem, "Name a policy of robots.")
    config: Any = model.config
    if getattr(config, "model_path", None) is not None:  # a field that not every model has
        config = replace(config, model_path=None, preset="base")
    with WithoutMemory():
        policy: Any = build_model(config, ROBOT, seed=0, place="actor.model.model_type")
    return [
        WeightSize(elements=each.numel(), bytes_each=each.element_size(), trained=each.requires_grad)
        for each in policy.parameters()
    ]


def memory_table(actor: TrainingConfig, ranks: Mapping[str, int]) -> str:
    """GiB on the device of each rank that holds the model, by component; collocated ones add up.

    Activations, blocks that FSDP gathers for a moment, simulators and what libraries reserve come on top.

    Args:
        actor: the section of what trains.
        ranks: processes of each component.
    """
    weights = weight_sizes(actor.model)
    total, trained = (sum(each.elements for each in weights if each.trained or not only) for only in (False, True))
    lines = [f"{actor.model.model_type}: {total / 1e9:.2f} billion weights, {trained / 1e9:.2f} billion of them trained"]
    if "actor" in ranks and isinstance(actor.trainer, SaysMemory):
        parts = actor.trainer.bytes_per_rank(weights, ranks["actor"])
        told = " + ".join(f"{name} {_gib(size)}" for name, size in parts.items())
        lines.append(f"actor, each of {ranks['actor']}: {told} = {_gib(sum(parts.values()))} GiB")
    if "rollout" in ranks:
        lines.append(f"rollout, each of {ranks['rollout']}: weights {_gib(sum(each.bytes for each in weights))} GiB")
    return "\n".join([*lines, "without activations, gathered blocks and simulators"])


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
