import pytest
import torch
from transformers import Qwen3ForCausalLM, SiglipVisionModel

from rlinf.models.gr00t import BASE, TINY
from rlinf.models.gr00t._backbone import EagleBackbone, _language_config, _vision_config, initialise, pixel_shuffle
from rlinf.models.gr00t.head import ActionHead
from rlinf.models.gr00t.prompt import PADDING

PLACEHOLDER = 3


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    found = EagleBackbone(TINY).eval()
    initialise(found)
    return found


def test_pixel_shuffle_of_four_by_four_by_hand():
    patches = torch.arange(16.0).view(1, 16, 1).repeat(1, 1, 2)
    patches[..., 1] += 100.0
    found = pixel_shuffle(patches)
    assert found.shape == (1, 4, 8)
    assert found[0, 0].tolist() == [0, 100, 1, 101, 4, 104, 5, 105]
    assert found[0, 1].tolist() == [2, 102, 3, 103, 6, 106, 7, 107]
    assert found[0, 2].tolist() == [8, 108, 9, 109, 12, 112, 13, 113]


def test_pixel_shuffle_is_eagle_s_for_any_width():
    patches = torch.randn(3, 36, 5)
    x = patches.view(3, 6, 6, 5).reshape(3, 6, 3, 10).transpose(1, 2).reshape(3, 3, 3, 20).transpose(1, 2)
    torch.testing.assert_close(pixel_shuffle(patches), x.reshape(3, 9, 20), atol=0.0, rtol=0.0)


@pytest.mark.parametrize("views", [1, 2])
def test_images_take_the_places_of_their_placeholders(backbone, views):
    pixels = torch.randn(2, views, 3, 32, 32)
    ids = torch.full((2, 4 * views + 6), 40)
    ids[0, 2 : 2 + 4 * views] = PLACEHOLDER
    ids[1, 1 : 1 + 4 * views] = PLACEHOLDER
    embedded = backbone.language.get_input_embeddings()(ids)
    tokens = backbone.image_tokens(pixels.flatten(0, 1)).view(2, 4 * views, -1)
    for row, start in ((0, 2), (1, 1)):
        embedded[row, start : start + 4 * views] = tokens[row]
    expected = backbone.language(inputs_embeds=embedded, use_cache=False).last_hidden_state
    torch.testing.assert_close(backbone(ids, PLACEHOLDER, pixels), expected, atol=1e-6, rtol=0.0)


def test_the_kept_layers_give_what_the_whole_model_truncated_as_the_reference_does_it_gives(backbone):
    """Eagle pads on the left with a mask and takes `hidden_states[select_layer]` of the truncated model."""
    config = _language_config(TINY.language)
    config.num_hidden_layers = 3
    config.layer_types = ["full_attention"] * 3
    whole = Qwen3ForCausalLM(config).eval()
    whole.model.load_state_dict({**whole.model.state_dict(), **backbone.language.state_dict()})
    whole.model.layers = whole.model.layers[:2]
    whole.config.num_hidden_layers = 2
    right = torch.tensor([[5, 6, 7, 8, 9], [50, 60, 70, PADDING, PADDING]])
    left = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 50, 60, 70]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    expected = whole(input_ids=left, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states[2]
    found = backbone(right, PLACEHOLDER, None)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(found[1, :3], expected[1, 2:], atol=1e-5, rtol=0.0)


def test_the_vision_tower_is_siglip_s_last_layer_normalised(backbone):
    tower = SiglipVisionModel(_vision_config(TINY.vision)).eval()
    tower.load_state_dict(backbone.vision.state_dict())
    pixels = torch.randn(2, 3, 32, 32)
    patches = tower(pixel_values=pixels).last_hidden_state
    expected = backbone.connector(pixel_shuffle(patches))
    torch.testing.assert_close(backbone.image_tokens(pixels), expected, atol=1e-6, rtol=0.0)


def test_base_has_the_published_sizes():
    with torch.device("meta"):
        backbone, head = EagleBackbone(BASE), ActionHead(BASE.head, BASE.language.width)

    def millions(*modules):
        return [round(sum(p.numel() for p in module.parameters()) / 1e6) for module in modules]

    assert millions(backbone.vision, backbone.connector, backbone.language) == [412, 2, 915]
    assert millions(head.transformer, head.context) == [550, 201]
    assert millions(backbone, head) == [1329, 1069]
    assert BASE.tokens_per_image == 256
