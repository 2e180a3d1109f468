"""LoRA on any module: injected in place, merged, undone, and stored apart from the weights beneath it.

h = W x + (α / r) B A x, with A `[r, in]`, B `[out, r]` and B = 0 at the start.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), eq. 3, arXiv:2106.09685. The layers are those of peft,
which is imported when something is injected, not before.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from rlinf.core.config import expect_at_least, expect_range
from rlinf.core.errors import ConfigError, WeightSyncError
from rlinf.core.registry import require_modules

if TYPE_CHECKING:
    from torch import Tensor, nn

ALL_LINEAR: Final = "all-linear"
"""Every linear layer but the output embedding and what `modules_to_train` names."""
HEADS: Final = ("value_head", "critic", "noise_net", "noise_network", "score")
"""Modules that are trained as a whole, beside the adapters."""
PEFT_PREFIX: Final = "base_model.model."
"""What peft writes before the names of an adapter's tensors."""
_ADAPTER: Final = re.compile(r"\.(lora_(?:embedding_)?[AB])\.default(?=\.|$)")


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """Which layers get an adapter, and of what size."""

    rank: int = 32
    """r, the rank of the update."""
    alpha: int | None = None
    """α; the update is scaled by α / r. None means α = r."""
    dropout: float = 0.0
    """On the input of A. Dropout makes the log-probability of a decision another one in training than it was in the rollout."""
    allow_dropout: bool = False
    """Must be set for dropout > 0, which is fit for supervised training only."""
    target_modules: tuple[str, ...] | str = (ALL_LINEAR,)
    """Endings of dotted names (`q_proj`, `self_attn.q_proj`), regular expressions of whole names, or `all-linear`; or, as in peft,
    one text: `all-linear`, or one regular expression of whole names."""
    exclude_modules: tuple[str, ...] | str = ()
    """Modules below which, or at which, nothing is adapted; named in the same way, but for `all-linear`."""
    modules_to_train: tuple[str, ...] = HEADS
    """Names of modules whose own parameters stay as they were; everything else that is no adapter is frozen."""
    init: Literal["default", "gaussian"] = "gaussian"
    """How A is drawn: N(0, 1/r²), or Kaiming-uniform as a linear layer."""

    def __post_init__(self) -> None:
        expect_at_least("rank", self.rank, 1)
        expect_at_least("alpha", self.alpha, 1)
        expect_range("dropout", self.dropout, 0.0, 1.0, open_high=True)
        if self.dropout > 0 and not self.allow_dropout:
            problem = f"{self.dropout} would change log-probabilities between rollout and training"
            raise ConfigError("dropout", problem, "Set 0, or allow_dropout: true for supervised training.")
        for name in ("target_modules", "exclude_modules"):
            _check_pattern(name, getattr(self, name))
        if not self.target_modules:
            raise ConfigError("target_modules", "expected at least one name, found none", f"Write [{ALL_LINEAR}].")


def _check_pattern(name: str, entries: tuple[str, ...] | str) -> None:
    for entry in (entries,) if isinstance(entries, str) else entries:
        try:
            re.compile(entry)
        except re.error as error:
            remedy = "Write a list of names, or mend the expression."
            raise ConfigError(name, f"'{entry}' is no regular expression ({error})", remedy) from error


def apply_lora(module: nn.Module, config: LoRAConfig, *, seed: int) -> None:
    """Adds adapters to a module in place; its class and methods stay. Everything else but the heads is frozen.

    A forward pass gives what it gave before, for B is 0. An adapter works where its layer is *called*: code that reads
    `layer.weight` itself doesn't see it.

    Args:
        module: gets the adapters; names in the configuration are relative to it.
        config: which layers, and how.
        seed: decides A; torch's global generator is neither read nor moved.

    Raises:
        ConfigError: a name matches nothing, or the module has adapters.
        MissingExtra: peft is not installed.
    """
    require_modules("peft", place="lora", extra="rlinf-models[lora]")
    from rlinf.models._lora import inject

    inject(module, config, seed=seed)


def merge_lora(module: nn.Module) -> dict[str, Tensor]:
    """Adds the adapters to the weights beneath them, W + (α / r) B A, so that a forward pass costs nothing more.

    Returns:
        The weights as they were, by the name of their layer: what `unmerge_lora` needs. Nothing was copied but the merged ones.

    Raises:
        ConfigError: there are no adapters, or they are merged already.
    """
    from rlinf.models._lora import merge

    return merge(module)


def unmerge_lora(module: nn.Module, originals: Mapping[str, Tensor]) -> None:
    """Takes `merge_lora` back, bit for bit: the very tensors return, nothing is subtracted.

    Raises:
        ConfigError: the adapters are not merged, or `originals` is of another module.
    """
    from rlinf.models._lora import unmerge

    unmerge(module, originals)


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of the same module without adapters, by sorted name, with the adapters merged; nothing is changed.

    This is what an engine without adapters is sent, and what is exported. Only adapted weights are copies.
    """
    from rlinf.models._lora import merged

    return merged(module)


@contextmanager
def without_adapters(module: nn.Module) -> Generator[None]:
    """Inside, the module is what it was before `apply_lora`: the reference policy of a KL penalty, at no memory."""
    from rlinf.models._lora import disabled

    with disabled(module):
        yield


def adapter_state(module: nn.Module) -> dict[str, Tensor]:
    """The adapters' tensors alone, by sorted name, as peft names them; views, not copies."""
    state = module.state_dict()
    # In memory names hold the adapter's own name, `default`; in peft's files they don't.
    found = {PEFT_PREFIX + _ADAPTER.sub(r".\1", name): tensor.detach() for name, tensor in state.items() if _ADAPTER.search(name)}
    return {name: found[name] for name in sorted(found)}


def load_adapter_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copies adapters into a module that has such.

    Raises:
        WeightSyncError: a name or a shape differs; nothing was changed.
    """
    from rlinf.models.base import copy_tensors

    remedy = "Apply the LoRA configuration that the adapter was made with."
    # Detached views, so this writes into the module.
    own = adapter_state(module)
    copy_tensors(own, state, lambda name, problem: WeightSyncError(f"load_adapter_state({name})", problem, remedy))


def save_adapter(module: nn.Module, folder: Path) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json`, which peft's `PeftModel.from_pretrained` reads.

    Heads that are trained beside the adapters go to `heads.safetensors`, which peft doesn't know.

    Args:
        module: the module that was given to `apply_lora`.
        folder: made if it is not there.

    Raises:
        ConfigError: the module has no adapters.
    """
    from rlinf.models._lora import save

    save(module, folder)


def load_adapter(module: nn.Module, folder: Path, *, modules_to_train: tuple[str, ...] = HEADS) -> None:
    """Reads what `save_adapter`, or peft, wrote; a module without adapters gets them first.

    Dropout of a foreign adapter is not taken over.

    Raises:
        CheckpointError: a file is missing, or the adapter is no plain LoRA.
        WeightSyncError: the tensors don't fit the module.
    """
    require_modules("peft", place="lora", extra="rlinf-models[lora]")
    from rlinf.models._lora import load

    load(module, folder, modules_to_train=modules_to_train)
