"""What lies at a path: whose format it is, and whose names its tensors have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from safetensors import SafetensorError
from torch import Tensor

from rlinf.core.capabilities import WeightLayout
from rlinf.core.checkpoints.weight_files import find_weights, has_weights, newest_checkpoint
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import WEIGHT_LAYOUTS
from rlinf.models.checkpoints.json_files import read_json
from rlinf.models.checkpoints.loading import CONFIG
from rlinf.models.checkpoints.policies import FORMAT, described_run
from rlinf.models.checkpoints.tensors import read_tensors

Kind = Literal["run", "policy", "weights", "huggingface", "lerobot", "layout"]
SHARDS: Final = "actor/shards"
_MODEL: Final = "model/"
"""What stands before the names of weights in shards, which hold the optimizer, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint that was found."""

    kind: Kind
    path: Path
    """The folder or file that has it; of a run its newest checkpoint."""
    model_type: str | None = None
    """The registered name of its model; None if it does not say."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyper-parameters of the model, as a run or a saved policy has them."""
    version: int = 0
    """That of the weights."""
    layout: str = ""
    """The registered layout of weights; "" if it has none."""
    network: Path | None = None
    """The folder that says its sizes, where that is another one."""

    @property
    def public(self) -> bool:
        """Whether its tensors have the names of another project."""
        return self.kind in ("huggingface", "lerobot", "layout")

    @property
    def described(self) -> str:
        """In words."""
        words = {
            "run": "a checkpoint of a run",
            "policy": "a saved policy",
            "weights": "weights alone",
            "huggingface": "a folder of Hugging Face",
            "lerobot": "a folder of LeRobot",
            "layout": f"a folder of {self.layout}",
        }
        return words[self.kind] + (f" of '{self.model_type}'" if self.model_type else "")

    def tensors(self) -> dict[str, Tensor]:
        """All weights by the names that they have there.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        # A run may write shards alone; where it also exports its weights, one file is read.
        if self.kind == "run" and not has_weights(self.path) and (self.path / SHARDS).is_dir():
            return read_shard_folder(self.path / SHARDS)
        return read_tensors(self.path)


def find_source(path: Path) -> Source:
    """What lies at a path.

    Raises:
        ConfigError: there is nothing that has weights.
    """
    given = path.expanduser()
    # First, because such a folder may have a config.json as well: `targets` writes one.
    for name in WEIGHT_LAYOUTS.names():
        layout: WeightLayout = WEIGHT_LAYOUTS.build(name, {}, place="convert")
        if given.is_dir() and layout.recognizes(given):
            return Source(kind="layout", path=given, layout=name)
    checkpoint = newest_checkpoint(given)
    run = described_run(checkpoint)
    if checkpoint is not None and run is not None:
        return Source(kind="run", path=checkpoint, model_type=run.model_type, params=run.params, version=run.version)
    config = read_json(given / CONFIG)
    # One that was made of weights alone does not say what they are of.
    if config.get("format") == FORMAT and config.get("model_type"):
        params, version = config.get("config", {}), int(config.get("version", 0))
        return Source(kind="policy", path=given, model_type=config.get("model_type"), params=params, version=version)
    if "type" in config:
        return Source(kind="lerobot", path=given, model_type=config["type"])
    if config.get("architectures") or config.get("model_type"):
        return Source(kind="huggingface", path=given, model_type=config.get("model_type"))
    try:
        find_weights(given, place="SOURCE")
    except CheckpointError as error:
        # What the command line names wrongly, unlike weights that are damaged.
        raise ConfigError(error.place, error.problem, error.remedy) from error
    return Source(kind="weights", path=given)


def read_shard_folder(folder: Path) -> dict[str, Tensor]:
    """The weights of a sharded checkpoint, put together from the shards of all ranks.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        reader: Any = HuggingFaceStorageReader(str(folder))
        found: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(tuple(meta.size), dtype=meta.properties.dtype)
            for name, meta in found.items()
            if name.startswith(_MODEL)
        }
        cast("Any", dcp).load(state, storage_reader=reader, no_dist=True)
    except (OSError, SafetensorError, CheckpointException, KeyError, ValueError, RuntimeError, AssertionError) as error:
        raise CheckpointError(str(folder), f"can't be read ({error})", "Use another checkpoint.") from error
    if not state:
        raise CheckpointError(str(folder), "expected weights in the shards, found none", "Use another checkpoint.")
    return {name.removeprefix(_MODEL): tensor for name, tensor in state.items()}
