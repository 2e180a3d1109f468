"""Language models as Megatron-LM reads them: `--load FOLDER --finetune`, without its optimizer.

latest_checkpointed_iteration.txt        "release"
release/mp_rank_00/model_optim_rng.pt    of tensor rank 0; `mp_rank_00_001` of its pipeline rank 1
hf/                                      configuration and tokenizer, so that the way back needs nothing else
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor

from rlinf.core.config import expect_at_least
from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.registry import require_modules
from rlinf.engines.megatron.mapping import Cut, Entry, Shape

TRACKER: Final = "latest_checkpointed_iteration.txt"
RELEASE: Final = "release"
FILE: Final = "model_optim_rng.pt"
_VERSION: Final = 3.0
"""Of the order of queries, keys and values: that of `mapping.Grouped`."""
_FUSED: Final = (
    (".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"),
    (".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"),
)
"""What Transformer Engine holds within the matrix that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayout:
    """The sizes and the names, by Megatron-LM's own options."""

    tensor_model_parallel_size: int = 1
    """Over how many ranks each matrix is divided."""
    pipeline_model_parallel_size: int = 1
    """Over how many ranks the layers are."""
    transformer_impl: Literal["transformer_engine", "local"] = "transformer_engine"
    """Whose layers read it: Transformer Engine's have the norms within the matrices that follow them."""
    make_vocab_size_divisible_by: int = 128
    """The embedding gets rows of zeros until this number times the tensor ranks divides it."""

    def __post_init__(self) -> None:
        for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "make_vocab_size_divisible_by"):
            expect_at_least(name, getattr(self, name), 1)

    def recognizes(self, folder: Path) -> bool:
        """Whether Megatron-LM, or `write`, made it."""
        return (folder / TRACKER).is_file()

    def write(self, tensors: Mapping[str, Tensor], network: Path, folder: Path) -> None:
        """See `rlinf.core.capabilities.WeightLayout`.

        Raises:
            ConfigError: an architecture that is not known, or sizes that don't divide it.
        """
        shape = _shape(network)
        ranks, stages = self.tensor_model_parallel_size, self.pipeline_model_parallel_size
        shape.check(ranks, stages)
        # A file may leave out the head of a tied model.
        shape.expect(set(tensors) | ({"lm_head.weight"} if shape.tied else set()))
        held: dict[tuple[int, int], dict[str, Tensor]] = {(t, p): {} for t in range(ranks) for p in range(stages)}
        for entry in shape.entries(stages):
            sources = [self._padded(entry, shape, tensors[name]) for name in entry.sources]
            for rank, part in enumerate(_division(entry, sources).split(sources, ranks)):
                # A view would be stored with all that it was cut from.
                held[rank, entry.stage][self._name(entry.name)] = part.contiguous().clone()
        for (rank, stage), model in held.items():
            file = folder / RELEASE / _rank_folder(rank, stage, stages) / FILE
            file.parent.mkdir(parents=True)
            cast("Any", torch).save({"model": model, "checkpoint_version": _VERSION, "iteration": 0}, file)
        _copy_network(network, folder / "hf")
        # At the end, because a folder that has it is taken as whole.
        (folder / TRACKER).write_text(RELEASE)

    def read(self, folder: Path, network: Path) -> dict[str, Tensor]:
        """See `rlinf.core.capabilities.WeightLayout`; sizes and names are those of the files.

        Raises:
            CheckpointError: a file is missing or damaged, or is not made for the network.
        """
        shape, (models, stages) = _shape(network), _ranks(folder)
        ranks = len(models) // stages
        found: dict[str, Tensor] = {}
        for entry in shape.entries(stages):
            if entry.repeats:
                continue
            parts = [_held(models[rank, entry.stage], entry.name, folder) for rank in range(ranks)]
            whole = _division(entry, parts, ranks).merge(parts)
            for name, tensor in zip(entry.sources, whole, strict=True):
                rows = shape.vocabulary if _of_vocabulary(entry) else len(tensor)
                found[name] = tensor[:rows].contiguous()
        return found

    def _padded(self, entry: Entry, shape: Shape, source: Tensor) -> Tensor:
        if not _of_vocabulary(entry):
            return source
        missing = -shape.vocabulary % (self.make_vocab_size_divisible_by * self.tensor_model_parallel_size)
        return torch.cat([source, source.new_zeros(missing, *source.shape[1:])])

    def _name(self, name: str) -> str:
        if self.transformer_impl == "transformer_engine":
            for plain, fused in _FUSED:
                name = name.replace(plain, fused)
        return name


def _division(entry: Entry, tensors: list[Tensor], ranks: int = 1) -> Any:
    """That of the entry; of the vocabulary with the rows of zeros that it has."""
    return Cut(0, len(tensors[0]) * ranks) if _of_vocabulary(entry) else entry.division


def _of_vocabulary(entry: Entry) -> bool:
    return entry.name in ("embedding.word_embeddings.weight", "output_layer.weight")


def _held(model: Mapping[str, Tensor], name: str, folder: Path) -> Tensor:
    fused = name
    for plain, other in _FUSED:
        fused = fused.replace(plain, other)
    for each in (name, fused):
        if each in model:
            return model[each]
    raise CheckpointError(str(folder), f"expected '{name}' or '{fused}', found neither", "Name the network with --like.")


def _ranks(folder: Path) -> tuple[dict[tuple[int, int], Mapping[str, Tensor]], int]:
    """The weights of each tensor and pipeline rank, and how many of the latter there are."""
    step = (folder / TRACKER).read_text(errors="replace").strip()
    if step != RELEASE and not step.isdecimal():
        problem = f"expected '{RELEASE}' or a number of iterations, found '{step:.40}'"
        raise CheckpointError(str(folder / TRACKER), problem, "Write the iteration to read into it.")
    inside = folder / (step if step == RELEASE else f"iter_{int(step):07d}")
    models: dict[tuple[int, int], Mapping[str, Tensor]] = {}
    for file in sorted(inside.glob(f"mp_rank_*/{FILE}")):
        rank, _, stage = file.parent.name.removeprefix("mp_rank_").partition("_")
        models[int(rank), int(stage or 0)] = _read(file)
    stages = 1 + max((stage for _, stage in models), default=0)
    whole = {(rank, stage) for rank in range(len(models) // stages) for stage in range(stages)}
    if not models or set(models) != whole:
        found = f"expected {FILE} of every rank in '{inside}', found those of {sorted(models)}"
        raise CheckpointError(str(folder), found, "Save it with --ckpt-format torch, and copy all of it.")
    return models, stages


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        # Megatron-LM puts its options beside the weights; a Namespace runs nothing when it is read.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
        return {name: value for name, value in content["model"].items() if isinstance(value, Tensor)}
    except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            str(file), f"can't be read as tensors ({first})", "Objects other than tensors are not read."
        ) from error


def _shape(network: Path) -> Shape:
    require_modules("transformers", place="convert", extra="rlinf-engines[megatron]")
    from transformers.models.auto.configuration_auto import AutoConfig

    config: Any = cast("Any", AutoConfig).from_pretrained(str(network), local_files_only=True)
    shape = Shape.of(config)
    if shape.experts is not None:
        raise ConfigError(
            "convert", "layers with experts are not converted to Megatron's files", "Train them with the trainer megatron."
        )
    return shape


def _copy_network(network: Path, folder: Path) -> None:
    """All small files of a folder: the configuration, and the tokenizer where it is there."""
    folder.mkdir()
    for file in sorted(network.iterdir()):
        # An index names files of weights, which are not copied.
        if file.is_file() and file.suffix in (".json", ".txt", ".model", ".jinja") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)


def _rank_folder(rank: int, stage: int, stages: int) -> str:
    return f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else "")
