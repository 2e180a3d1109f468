"""The files that public checkpoints of OpenVLA-OFT have beside those of OpenVLA.

| file | keys there | here |
|---|---|---|
| `action_head--<step>_checkpoint.pt` | `model.*` | `decoder.head.model.*` |
| `proprio_projector--<step>_checkpoint.pt` | `fc1.*`, `fc2.*` | `proprio_projector.*` |
| `vision_backbone--<step>_checkpoint.pt`, with FiLM | `<tower>.blocks.<i>.scale.*`, `….shift.*` | `film.<tower>.<i>.*` |
| | `<tower>.blocks.<i>.block.*` | `vlm.vision_backbone.<tower>.blocks.<i>.*` |
| | `<tower>.*` | `vlm.vision_backbone.<tower>.*` |

`<tower>` is `vision_backbone.featurizer` or `vision_backbone.fused_featurizer`. Each key may begin with `module.`, as it was saved
under data parallelism. In the third file a linear layer may still have its adapter (`base_layer`, `lora_A`, `lora_B`); it is added
to the weight with α = min(r, 16), as it was trained. The last block of a transformer and what follows it are skipped, for they are
never built. The rest is the folder of an OpenVLA checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from rlinf.core.errors import CheckpointError
from rlinf.models.base import copy_tensors
from rlinf.models.checkpoints.tensors import read_tensors
from rlinf.models.openvla_oft.decoders import Regression

_FILM: Final = re.compile(r"^(featurizer|fused_featurizer)\.blocks\.(\d+)\.((?:scale|shift)\..+)$")
_BLOCK: Final = re.compile(r"^((?:featurizer|fused_featurizer)\.blocks\.\d+)\.block\.")
_LORA_ALPHA: Final = 16


def load_parts(
    folder: Path, *, decoder: nn.Module, proprio_projector: nn.Module | None, film: nn.Module | None, backbone: nn.Module
) -> None:
    """Reads the files of those parts that there are; of the decoder, if it regresses.

    Raises:
        CheckpointError: one is missing, there are several, or its tensors don't fit.
    """
    if isinstance(decoder, Regression):
        path = _only(folder, "action_head")
        _fill(decoder.head, _read(path), path)
    if proprio_projector is not None:
        path = _only(folder, "proprio_projector")
        _fill(proprio_projector, _read(path), path)
    if film is not None:
        path = _only(folder, "vision_backbone")
        modulation, plain = split_film(_read(path))
        _fill(film, _built(modulation, film), path)
        _fill(backbone, _built(plain, backbone), path)


def split_film(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of a modulated vision backbone as that of `Film` and that of `VisionBackbone`, adapters merged.

    Args:
        state: by published name, without `module.`.
    """
    film: dict[str, Tensor] = {}
    backbone: dict[str, Tensor] = {}
    for name, tensor in merged(state).items():
        plain = name.removeprefix("vision_backbone.")
        found = _FILM.match(plain)
        if found is not None:
            film[f"{found[1]}.{found[2]}.{found[3]}"] = tensor
        else:
            plain = re.sub(r"\.gamma$", ".scale_factor", _BLOCK.sub(r"\1.", plain))
            backbone[plain] = tensor
    return film, backbone


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """W + (α / r) B A for each layer that has an adapter, α = min(r, 16); the rest as it is."""
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        layer = name.removesuffix(".base_layer.weight")
        down = state.get(f"{layer}.lora_A.default.weight") if layer != name else None
        if down is not None:
            scale = min(len(down), _LORA_ALPHA) / len(down)
            tensor = tensor + scale * (state[f"{layer}.lora_B.default.weight"] @ down).to(tensor.dtype)
        result[name.replace(".base_layer.", ".")] = tensor
    return result


def _built(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Without what lies behind the features; what is missing stays missing."""
    own = module.state_dict().keys()
    return {name: tensor for name, tensor in state.items() if name in own}


def _only(folder: Path, part: str) -> Path:
    found = sorted(folder.glob(f"{part}--*checkpoint.pt"))
    if len(found) != 1:
        problem = f"expected one file '{part}--<step>_checkpoint.pt', found {[path.name for path in found]}"
        raise CheckpointError(str(folder), problem, "Keep one, or change action_head, use_proprio or use_film.")
    return found[0]


def _read(path: Path) -> dict[str, Tensor]:
    return {name.removeprefix("module."): tensor for name, tensor in read_tensors(path).items()}


@torch.no_grad()
def _fill(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    own: dict[str, Tensor] = module.state_dict()
    copy_tensors(own, state, lambda name, problem: CheckpointError(f"{path}: {name}", problem, "Is it another model's?"))
