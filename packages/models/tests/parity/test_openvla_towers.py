from pathlib import Path

import pytest
import torch
from made_up_weights import made_up_weights
from safetensors.torch import load_file

from rlinf.models.openvla import PrismaticConfig, TextConfig, VisionConfig
from rlinf.models.openvla.vision import VisionTransformer
from rlinf.models.openvla.weight_map import TOWERS, own_name, unused_shapes

FIXTURE = load_file(Path(__file__).parent / "openvla_towers.safetensors")
SHAPES = {name.removeprefix("shape/"): tuple(shape.tolist()) for name, shape in FIXTURE.items() if name.startswith("shape/")}
SIZES = {"image_size": 28, "patch_size": 7, "width": 32, "depth": 3, "heads": 4}
DINO = VisionConfig(**SIZES, mlp_width=128, layer_scale=True, registers=4)
SIGLIP = VisionConfig(**SIZES, mlp_width=119)
UNUSED = unused_shapes(PrismaticConfig(vision=(DINO, SIGLIP), text=TextConfig()))


@pytest.mark.parametrize(("index", "config"), [(0, DINO), (1, SIGLIP)], ids=["dinov2", "siglip"])
def test_features_are_those_of_timm(index, config):
    prefix, tower = TOWERS[index], VisionTransformer(config)
    published = {name: array for name, array in made_up_weights(SHAPES).items() if name.startswith(prefix)}
    own = {own_name(name): torch.from_numpy(array) for name, array in published.items()}
    tower.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in own.items() if name not in UNUSED})
    with torch.no_grad():
        found = tower(FIXTURE["pixels"][:, 3 * index : 3 * index + 3])
    torch.testing.assert_close(found, FIXTURE[prefix + "features"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("index", "config"), [(0, DINO), (1, SIGLIP)], ids=["dinov2", "siglip"])
def test_what_is_left_out_is_all_that_timm_has_beside(index, config):
    prefix = TOWERS[index]
    theirs = {own_name(name): shape for name, shape in SHAPES.items() if name.startswith(prefix)}
    ours = {prefix + name: tuple(tensor.shape) for name, tensor in VisionTransformer(config).state_dict().items()}
    assert theirs == ours | {name: shape for name, shape in UNUSED.items() if name.startswith(prefix)}
