"""Makes openvla_towers.safetensors: what timm's vision transformers say, with made-up weights under the published names.

    uv venv --python 3.11 /tmp/ref-openvla
    uv pip install --python /tmp/ref-openvla/bin/python timm==0.9.10 safetensors
    /tmp/ref-openvla/bin/python packages/models/tests/parity/make_openvla.py

timm 0.9.10 is the version that the published checkpoints of OpenVLA ask for.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_weights import made_up_weights

HERE = Path(__file__).parent
SIZES = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 0}


def towers() -> dict[str, VisionTransformer]:
    """DINOv2 with registers and SigLIP in small, by the prefix of their published names."""
    dino = VisionTransformer(**SIZES, init_values=1e-5, reg_tokens=4, no_embed_class=True)
    siglip = VisionTransformer(**SIZES, mlp_ratio=3.7362, class_token=False, global_pool="map")
    return {"vision_backbone.featurizer.": dino, "vision_backbone.fused_featurizer.": siglip}


def main() -> None:
    """Writes the fixture."""
    pixels = torch.randn(2, 6, 28, 28, generator=torch.Generator().manual_seed(0))
    found = {"pixels": pixels}
    for i, (prefix, tower) in enumerate(towers().items()):
        names = {prefix + name: tuple(tensor.shape) for name, tensor in tower.state_dict().items()}
        made = made_up_weights(names)
        tower.load_state_dict({name.removeprefix(prefix): torch.from_numpy(array) for name, array in made.items()})
        with torch.no_grad():
            picture = pixels[:, 3 * i : 3 * i + 3]
            (features,) = tower.eval().get_intermediate_layers(picture, n={SIZES["depth"] - 2})
        found[prefix + "features"] = features.contiguous()
        found |= {"shape/" + name: torch.tensor(shape) for name, shape in names.items()}
    save_file(found, HERE / "openvla_towers.safetensors")


if __name__ == "__main__":
    main()
