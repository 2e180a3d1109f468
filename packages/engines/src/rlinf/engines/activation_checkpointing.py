"""The repeated blocks of a network: what FSDP gathers, and gradient checkpointing computes again, one at a time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch.utils.checkpoint
from torch import nn

from rlinf.core.errors import ConfigError
from rlinf.engines.fsdp.config import WrapPolicy

_checkpointing: Any = torch.utils.checkpoint


def blocks_of(module: nn.Module, policy: WrapPolicy) -> list[nn.Module]:
    """The blocks of a module, in its order, none of them inside another; none for a module without any.

    Raises:
        ConfigError: the policy names a class of which the module has nothing.
    """
    wanted = set(policy.transformer_layer_cls_to_wrap)
    missing = sorted(wanted - {type(child).__name__ for child in module.modules()})
    if missing:
        known = sorted({type(child).__name__ for child in module.modules()})
        found = f"the model has no {', '.join(missing)}"
        raise ConfigError("actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap", found, f"It has {', '.join(known)}.")
    declared = {name for child in module.modules() for name in _declared(child)}
    named = _outermost(module, wanted or declared)
    return named or _repeated(module)


def _declared(module: nn.Module) -> Iterable[str]:
    """The names of classes that a model of transformers says must stay in one piece."""
    return cast("Iterable[str] | None", getattr(module, "_no_split_modules", None)) or ()


def _outermost(module: nn.Module, names: set[str]) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if type(child).__name__ in names else _outermost(child, names)
    return found


def _repeated(module: nn.Module) -> list[nn.Module]:
    """What a `ModuleList` holds two of, or more, of one class with weights."""
    found: list[nn.Module] = []
    for child in module.children():
        items = list(child) if isinstance(child, nn.ModuleList) else []
        weighty = len(items) > 1 and all(next(item.parameters(), None) is not None for item in items)
        found += items if weighty and len({type(item) for item in items}) == 1 else _repeated(child)
    return found


def recompute(blocks: Sequence[nn.Module]) -> None:
    """Makes blocks keep their inputs alone, and compute the rest again on the way back; names of weights stay as they are.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), arXiv:1604.06174.

    Raises:
        ConfigError: there is no block.
    """
    if not blocks:
        problem = "the model has no repeated blocks"
        remedy = "Name classes in actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap."
        raise ConfigError("actor.fsdp_config.gradient_checkpointing", problem, remedy)
    # The reentrant variant gives no gradients where no input of a block needs one.
    for block in blocks:
        block.forward = functools.partial(_checkpointing.checkpoint, block.forward, use_reentrant=False)
