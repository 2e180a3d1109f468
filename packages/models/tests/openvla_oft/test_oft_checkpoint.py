"""A made-up folder with the files and keys that a public OpenVLA-OFT checkpoint has, in small."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from draws import batch_of
from made_up_weights import made_up_weights
from safetensors.torch import save_file
from torch import Tensor

from rlinf.core.data import EnvSpec
from rlinf.core.errors import CheckpointError
from rlinf.models._tokenizers import tiny_tokenizer
from rlinf.models.openvla import PrismaticConfig
from rlinf.models.openvla._prismatic import PrismaticVLM
from rlinf.models.openvla.weight_map import unused_shapes
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig
from rlinf.models.openvla_oft.checkpoint import merged, split_film

SIZES = PrismaticConfig.tiny(vocabulary=len(tiny_tokenizer()) + 64)
WIDTH, A, D = SIZES.text.hidden_size, 2, 3
ACTION = {"q01": [-0.1, -0.4], "q99": [0.1, 0.4], "min": [-0.2, -0.5], "max": [0.2, 0.5], "mask": [True, False]}
PROPRIO = {"q01": [0.0, 0.0, -1.0], "q99": [1.0, 2.0, 1.0], "min": [-1.0] * 3, "max": [3.0] * 3}
TOWERS = ("featurizer", "fused_featurizer")


def linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def action_head() -> dict[str, tuple[int, ...]]:
    """The keys of `L1RegressionActionHead`."""
    blocks = [f"model.mlp_resnet_blocks.{i}.ffn" for i in range(2)]
    shapes = norm("model.layer_norm1", WIDTH * A) | linear("model.fc1", WIDTH * A, WIDTH)
    shapes |= norm("model.layer_norm2", WIDTH) | linear("model.fc2", WIDTH, A)
    for block in blocks:
        shapes |= norm(f"{block}.0", WIDTH) | linear(f"{block}.1", WIDTH, WIDTH)
    return shapes


def proprio_projector() -> dict[str, tuple[int, ...]]:
    return linear("fc1", D, WIDTH) | linear("fc2", WIDTH, WIDTH)


def vision_backbone(*, rank: int) -> dict[str, tuple[int, ...]]:
    """The keys of a modulated backbone, saved below its adapters, the unused last block included."""
    with torch.device("meta"):
        own = PrismaticVLM(SIZES).vision_backbone.state_dict()
    shapes = {name.replace("scale_factor", "gamma"): tuple(t.shape) for name, t in own.items()}
    unused = {name.removeprefix("vision_backbone."): shape for name, shape in unused_shapes(SIZES).items()}
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in (shapes | unused).items():
        parts = name.split(".")
        if parts[1] == "blocks":
            parts.insert(3, "block")
        adapted = parts[-2] in ("qkv", "proj", "fc1", "fc2") and "patch_embed" not in parts
        layer = ".".join(parts[:-1])
        found[f"vision_backbone.{layer}.base_layer.{parts[-1]}" if adapted else f"vision_backbone.{'.'.join(parts)}"] = shape
        if adapted and parts[-1] == "weight":
            found[f"vision_backbone.{layer}.lora_A.default.weight"] = (rank, shape[1])
            found[f"vision_backbone.{layer}.lora_B.default.weight"] = (shape[0], rank)
    for tower, config in zip(TOWERS, SIZES.vision, strict=True):
        for block in range(config.depth):
            for part in ("scale", "shift"):
                found |= linear(f"vision_backbone.{tower}.blocks.{block}.{part}", WIDTH, config.width)
    return found


def made_up(shapes: dict[str, tuple[int, ...]], prefix: str = "module.") -> dict[str, Tensor]:
    return {prefix + name: torch.from_numpy(array) for name, array in made_up_weights(shapes).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = {field: value for field, value in dataclasses.asdict(SIZES.text).items() if value is not None}
    config = {
        "architectures": ["OpenVLAForActionPrediction"],
        "image_resize_strategy": "resize-naive",
        "pad_to_multiple_of": 64,
        "n_action_bins": 64,
        "text_config": text,
        "rlinf_vision": [dataclasses.asdict(tower) for tower in SIZES.vision],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    statistics = {"libero_10": {"action": ACTION, "proprio": PROPRIO, "num_transitions": 7}}
    (tmp_path / "dataset_statistics.json").write_text(json.dumps(statistics))
    tiny_tokenizer().save_pretrained(str(tmp_path))
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in PrismaticVLM(SIZES).state_dict().items()}
    save_file(made_up(shapes, ""), tmp_path / "model.safetensors")
    torch.save(made_up(action_head()), tmp_path / "action_head--150000_checkpoint.pt")
    torch.save(made_up(proprio_projector()), tmp_path / "proprio_projector--150000_checkpoint.pt")
    torch.save(made_up(vision_backbone(rank=32)), tmp_path / "vision_backbone--150000_checkpoint.pt")
    return tmp_path


def load(folder: Path, spec: EnvSpec, **fields: Any) -> Any:
    return OpenVLAOFTPolicyConfig(model_path=str(folder), num_action_chunks=4, **fields).build(spec, seed=0)


def test_every_file_is_read(folder: Path, spec: EnvSpec) -> None:
    policy = load(folder, spec, action_head="l1", use_proprio=True, use_film=True)
    for module, shapes in ((policy.decoder.head, action_head()), (policy.proprio_projector, proprio_projector())):
        assert_same(module.state_dict(), made_up(shapes, ""))
    saved = made_up(vision_backbone(rank=32), "")
    shift = saved["vision_backbone.fused_featurizer.blocks.1.shift.weight"]
    assert torch.equal(policy.film.fused_featurizer[1].shift.weight, shift)
    layer = "vision_backbone.featurizer.blocks.0.block.attn.qkv"
    down, up = (saved[f"{layer}.lora_{part}.default.weight"] for part in "AB")
    expected = saved[f"{layer}.base_layer.weight"] + 0.5 * up @ down  # α / r = min(32, 16) / 32
    assert torch.allclose(policy.vlm.vision_backbone.featurizer.blocks[0].attn.qkv.weight, expected, atol=1e-6)


def test_statistics_of_actions_and_of_proprioception(folder: Path, spec: EnvSpec) -> None:
    policy = load(folder, spec, use_proprio=True)
    top = policy.normalize_actions.unnormalize(torch.ones(A))
    assert top.tolist() == pytest.approx([0.1, 1.0])  # the second one is masked: it stays as it is
    middle = policy.normalize_states.normalize(torch.tensor([[0.5, 1.0, 9.0]]))
    assert middle.tolist()[0] == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)
    wide = load(folder, spec, use_proprio=True, normalization="min_max")
    assert wide.normalize_actions.unnormalize(torch.ones(A)).tolist() == pytest.approx([0.2, 1.0])
    assert wide.normalize_states.normalize(torch.tensor([[1.0, 1.0, 3.0]])).tolist()[0] == pytest.approx([0.0, 0.0, 1.0])


def test_a_loaded_policy_decides_and_scores(folder: Path, spec: EnvSpec, observe: Any) -> None:
    policy = load(folder, spec, action_head="l1", use_proprio=True, use_film=True, logprob_type="token_level")
    decision = policy.predict_action_batch(observe(3), generator=torch.Generator().manual_seed(0))
    found = policy.default_forward(batch_of(decision)).logprob[:, 0]
    assert torch.allclose(found, decision.logprob, atol=1e-4)


def test_only_what_is_asked_for_is_read(folder: Path, spec: EnvSpec) -> None:
    for part in ("action_head", "proprio_projector", "vision_backbone"):
        (folder / f"{part}--150000_checkpoint.pt").unlink()
    load(folder, spec)
    with pytest.raises(CheckpointError, match="expected one file 'action_head"):
        load(folder, spec, action_head="l1")


def test_a_head_of_another_model_is_refused(folder: Path, spec: EnvSpec) -> None:
    wrong = made_up(action_head())
    wrong["module.model.fc2.weight"] = torch.zeros(A + 1, WIDTH)
    torch.save(wrong, folder / "action_head--150000_checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"model\.fc2\.weight: expected shape \(2, 64\), found shape \(3, 64\)"):
        load(folder, spec, action_head="l1")


def test_nothing_is_unpickled(folder: Path, spec: EnvSpec) -> None:
    torch.save({"model.fc1.weight": Fraction(1, 2)}, folder / "action_head--150000_checkpoint.pt")
    with pytest.raises(CheckpointError, match="can't be read as tensors alone"):
        load(folder, spec, action_head="l1")
    torch.save([torch.zeros(2)], folder / "action_head--150000_checkpoint.pt")
    with pytest.raises(CheckpointError, match="expected tensors by name, found list"):
        load(folder, spec, action_head="l1")


def test_an_adapter_by_hand() -> None:
    state = {
        "a.base_layer.weight": torch.zeros(2, 2),
        "a.base_layer.bias": torch.ones(2),
        "a.lora_A.default.weight": torch.eye(2),
        "a.lora_B.default.weight": 3.0 * torch.eye(2),
        "b.weight": torch.ones(1),
    }
    found = merged(state)
    assert sorted(found) == ["a.bias", "a.weight", "b.weight"]
    assert torch.equal(found["a.weight"], 3.0 * torch.eye(2))  # r = 2 < 16: α / r = 1


def test_film_and_backbone_are_parted() -> None:
    one = torch.ones(1)
    film, backbone = split_film(
        {
            "vision_backbone.featurizer.blocks.3.scale.weight": one,
            "vision_backbone.featurizer.blocks.3.block.ls1.gamma": one,
            "vision_backbone.fused_featurizer.pos_embed": one,
        }
    )
    assert list(film) == ["featurizer.3.scale.weight"]
    assert sorted(backbone) == ["featurizer.blocks.3.ls1.scale_factor", "fused_featurizer.pos_embed"]


def assert_same(own: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        assert torch.equal(tensor, expected[name]), name
