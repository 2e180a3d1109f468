"""From the names of published checkpoints to those of `PrismaticVLM`.

| published | here |
|---|---|
| `vision_backbone.featurizer.*`, `vision_backbone.fused_featurizer.*` | the same |
| `….ls1.gamma`, `….ls2.gamma` (timm) | `….ls1.scale_factor`, `….ls2.scale_factor` |
| last block, `norm`, `attn_pool` of either transformer | left out: OpenVLA doesn't use their output |
| `projector.fc1`, `fc2`, `fc3` | the same |
| `language_model.model.*`, `language_model.lm_head` | the same |
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlinf.core.errors import CheckpointError
from rlinf.models.openvla.architecture import PrismaticConfig, VisionConfig

TOWERS = ("vision_backbone.featurizer.", "vision_backbone.fused_featurizer.")
_OWN = "vlm."


def own_name(name: str) -> str:
    """What a published tensor is called here."""
    head, _, last = name.rpartition(".")
    return f"{head}.scale_factor" if last == "gamma" and name.startswith(TOWERS) else name


def unused_shapes(config: PrismaticConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a published checkpoint that nothing here uses, by name."""
    found: dict[str, tuple[int, ...]] = {}
    for prefix, tower in zip(TOWERS, config.vision, strict=True):
        found |= {prefix + name: shape for name, shape in _behind_features(tower).items()}
    return found


def own_state(published: Mapping[str, Tensor], expected: Mapping[str, Tensor], config: PrismaticConfig) -> dict[str, Tensor]:
    """A published state under our names, complete and of the right shapes.

    Args:
        published: tensors by published name; those that nothing uses may be missing.
        expected: the state of a `PrismaticVLM`, which may be on the meta device.
        config: its sizes.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape; it names the first ones.
    """
    unused = unused_shapes(config)
    state = {own_name(name): tensor for name, tensor in published.items() if own_name(name) not in unused}
    missing, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unknown:
        found = f"{len(missing)} tensors are missing {missing[:4]}, {len(unknown)} are unknown {unknown[:4]}"
        raise CheckpointError("openvla(model_path)", found, "Check that it is an OpenVLA checkpoint with both vision towers.")
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            found = f"expected {tuple(expected[name].shape)}, found {tuple(tensor.shape)}"
            raise CheckpointError(f"openvla(model_path).{name}", found, "Check the sizes in config.json.")
    return state


def published_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a policy under published names, for `rlinf.models.checkpoints.export_like`; without critic and statistics."""
    return {name.removeprefix(_OWN): tensor for name, tensor in tensors.items() if name.startswith(_OWN)}


def _behind_features(tower: VisionConfig) -> dict[str, tuple[int, ...]]:
    """What a vision transformer has behind the block whose output is used."""
    width, hidden = tower.width, tower.mlp_width
    shapes = _block(width, hidden, layer_scale=tower.layer_scale)
    found = {f"blocks.{tower.depth - 1}.{name}": shape for name, shape in shapes.items()}
    found |= {"norm.weight": (width,), "norm.bias": (width,)}
    if tower.registers is None:
        pool = {"latent": (1, 1, width), "norm.weight": (width,), "norm.bias": (width,)}
        pool |= _linear("q", width, width) | _linear("kv", width, 2 * width) | _linear("proj", width, width)
        pool |= _linear("mlp.fc1", width, hidden) | _linear("mlp.fc2", hidden, width)
        found |= {f"attn_pool.{name}": shape for name, shape in pool.items()}
    return found


def _block(width: int, hidden: int, *, layer_scale: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {f"norm{i}.{part}": (width,) for i in (1, 2) for part in ("weight", "bias")}
    found |= _linear("attn.qkv", width, 3 * width) | _linear("attn.proj", width, width)
    found |= _linear("mlp.fc1", width, hidden) | _linear("mlp.fc2", hidden, width)
    return found | ({f"ls{i}.scale_factor": (width,) for i in (1, 2)} if layer_scale else {})


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
