"""Weights on their way to another process: a folder in the layout of Hugging Face, in memory where there is room."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import safetensors.torch
import torch
from torch import Tensor

from rlinf.core.capabilities import LanguageModelPolicy
from rlinf.core.errors import ConfigError

_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_safetensors: Any = safetensors.torch


class WeightFolder:
    """A network's configuration, and its weights as long as somebody reads them.

    Args:
        policy: whose network it is; its weights are written.
        parent: where; None for memory if weights fit there twice, otherwise the folder for temporary files.

    Raises:
        ConfigError: the policy writes no text.
    """

    def __init__(self, policy: LanguageModelPolicy, parent: str | None) -> None:
        if not isinstance(policy, LanguageModelPolicy):
            raise ConfigError("generator", f"expected a policy that writes text, found {type(policy).__name__}", "Use causal_lm.")
        network = cast("torch.nn.Module", policy.network)
        size = sum(p.numel() * p.element_size() for p in network.parameters())
        if parent is None and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size:
            parent = str(_MEMORY)
        self.path: Final = Path(tempfile.mkdtemp(prefix="rlinf-weights-", dir=parent))
        self._finalizer: Final = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            policy.save_network(self.path)
        except BaseException:
            self.remove()
            raise

    @property
    def log(self) -> Path:
        """A file for what the engine says."""
        return self.path / "engine.log"

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Replaces the weights; tensors that share memory are written under each of their names."""
        self.empty()
        held: set[int] = set()
        plain: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            own = tensor.detach().cpu().contiguous()
            # Safetensors refuses tensors that share memory.
            plain[name] = own.clone() if own.data_ptr() in held else own
            held.add(own.data_ptr())
        _safetensors.save_file(plain, self.path / "model.safetensors", metadata={"format": "pt"})

    def empty(self) -> None:
        """Gives back the room of the weights; the configuration stays."""
        for file in self.path.glob("*.safetensors*"):
            file.unlink()

    def remove(self) -> None:
        """Nothing stays; the end of the interpreter does the same."""
        self._finalizer()
