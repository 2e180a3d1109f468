"""A network of transformers as its folder has it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.errors import CheckpointError
from rlinf.models.language.network import Network, as_network
from rlinf.models.lora import adapter_state, merged_state
from rlinf.models.seeding import seeded_weights

_loading: Any = import_module("transformers.core_model_loading")
_logging: Any = import_module("transformers.utils.logging")


def folder_weights(network: nn.Module) -> dict[str, Tensor]:
    """Its weights by the names that `save_network` writes, with adapters merged: transformers holds some of them in another form.

    An expert of a mixture, for one, has weights of its own there, and one of all experts in memory.
    """
    found: dict[str, Tensor] = _loading.revert_weight_conversion(network, merged_state(network))
    return {name: found[name].contiguous() for name in sorted(found)}


@contextmanager
def without_bar() -> Generator[None]:
    """Inside, transformers draws no bar, which would stand between what a run says."""
    shown = _logging.is_progress_bar_enabled()
    _logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            _logging.enable_progress_bar()


@torch.no_grad()
def load_network(network: nn.Module, folder: Path) -> None:
    """Copies the weights of a folder that transformers reads into a network; its adapters stay as they are.

    Raises:
        CheckpointError: weights are missing or of another shape.
    """
    own, place = as_network(network), f"the folder '{folder}'"
    remedy = f"Use a whole checkpoint of the architecture '{own.config.model_type}' with the same sizes."
    arguments = {"config": own.config, "dtype": own.dtype, "local_files_only": True, "output_loading_info": True}
    with seeded_weights(0):  # what a folder lacks is drawn before it is reported
        try:
            with without_bar():
                fresh, report = _class(own).from_pretrained(str(folder), **arguments)
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointError(place, f"can't be read ({str(error).strip().splitlines()[0]})", remedy) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(place, f"{len(missing)} weights are missing, such as {missing[0]}", remedy)
    # By name rather than load_state_dict: adapters have no counterpart in the folder and keep their values.
    found: dict[str, Tensor] = fresh.state_dict()
    for name, tensor in cast("dict[str, Tensor]", network.state_dict()).items():
        source = name.replace(".base_layer.", ".")  # where an adapter is around a layer
        if source in found:
            tensor.copy_(found[source])


def save_network(network: nn.Module, folder: Path, *, shard_size: str = "5GB") -> None:
    """The network as it was built, with adapters merged; a skeleton without memory carries the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    own = written = as_network(network)
    if adapter_state(network):
        with torch.device("meta"):
            written = _class(own)(own.config).to(own.dtype)
        written.load_state_dict(merged_state(network), assign=True)
        # assign=True has given every name a parameter of its own, tied ones, too.
        written.tie_weights()
    with without_bar():
        written.save_pretrained(str(folder), max_shard_size=shard_size)


def _class(network: Network) -> Any:
    """Its architecture, which makes others like it."""
    return type(network)
