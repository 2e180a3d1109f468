import numpy as np
import pytest
import torch
import transformers

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.language import TokensConfig, VisionLanguageConfig, image_columns, save_language_model

IMAGE = 3
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TINY = VisionLanguageConfig(preset="tiny")


def picture(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), dtype=np.uint8)


def test_a_mark_becomes_as_many_tokens_as_the_picture_has_blocks():
    found = TINY.image_processor().read([5, IMAGE, 6, IMAGE, 7], [picture(8, 16), picture(24, 8)])
    assert found.tokens == (5, IMAGE, IMAGE, 6, IMAGE, IMAGE, IMAGE, 7)
    assert found.at.tolist() == [1, 2, 4, 5, 6]
    assert found.shown["image_grid"].tolist() == [[1, 2, 4], [0, 0, 0], [1, 6, 2], [0, 0, 0], [0, 0, 0]]
    assert found.shown["image_patches"].shape == (5, 4 * 3 * 2 * 4 * 4)
    assert found.shown["image_patches"].dtype == np.float32


def test_patches_are_pixels_in_the_order_of_the_paper():
    """Blocks of 2 × 2 patches, row after row; in a patch colour, frame (twice the same), row, column; CLIP's mean and deviation."""
    image = picture(8, 16)
    patches = TINY.image_processor().read([IMAGE, 5], [image]).shown["image_patches"].reshape(2, 2, 2, 3, 2, 4, 4)
    for block in range(2):
        for down in range(2):
            for right in range(2):
                pixels = image[4 * down : 4 * down + 4, 8 * block + 4 * right : 8 * block + 4 * right + 4] / 255
                for color in range(3):
                    expected = (pixels[..., color] - MEAN[color]) / STD[color]
                    for frame in range(2):
                        np.testing.assert_allclose(patches[block, down, right, color, frame], expected, atol=1e-5)


def test_columns_are_those_of_image_columns():
    processor = TINY.image_processor()
    found = processor.read([5, IMAGE, 6], [picture(16, 16)])
    ids = torch.tensor([found.tokens])
    whole = {name: torch.zeros(1, ids.shape[1], leaf.shape[1]) for name, leaf in found.shown.items()}
    for name, leaf in found.shown.items():
        whole[name][0, found.at] = torch.as_tensor(leaf, dtype=torch.float32)
    pixels = torch.from_numpy(found.shown["image_patches"]).view(-1, 96)
    expected = image_columns(ids, pixels, torch.tensor([[1, 4, 4]]), image_token_id=IMAGE)
    assert torch.equal(whole["image_patches"], expected["image_patches"])
    assert torch.equal(whole["image_grid"], expected["image_grid"].float())


def test_a_prompt_without_pictures_has_leaves_all_the_same():
    found = TINY.image_processor().read([5, 6], [])
    assert found.tokens == (5, 6)
    assert {name: leaf.shape for name, leaf in found.shown.items()} == {"image_patches": (0, 384), "image_grid": (0, 3)}


@pytest.mark.parametrize(
    ("prompt", "images", "words"),
    [
        ([5, 6], 1, "for each picture, found 0 for 1"),
        ([IMAGE, IMAGE, 6], 1, "for each picture, found 2 for 1"),
        ([5, IMAGE], 1, "expected something behind the picture"),
    ],
)
def test_marks_and_pictures_must_fit(prompt, images, words):
    with pytest.raises(ConfigError, match=words):
        TINY.image_processor().read(prompt, [picture(8, 8)] * images)


def test_the_processor_of_a_folder_is_the_one_that_was_saved(tmp_path):
    save_language_model(TINY.build(seed=0), tmp_path)
    config = VisionLanguageConfig(model_path=str(tmp_path))
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        config.image_processor()
    own = transformers.Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 16, "longest_edge": 6400})
    own.save_pretrained(str(tmp_path))
    try:
        processor = config.image_processor()
    except ImportError as error:  # transformers 5.16 finds no processor of a folder without torchvision
        if "Torchvision" not in str(error):
            raise
        pytest.skip("this transformers needs torchvision to find the processor of a folder")
    (tmp_path / "preprocessor_config.json").unlink()
    processor.save_pretrained(str(tmp_path))
    found = config.image_processor().read([IMAGE, 5], [picture(8, 8)])
    assert found.tokens == (*[IMAGE] * 4, 5), "a picture of 8 × 8 is enlarged to 16 × 16"


def test_architectures_that_look_in_another_way_are_refused():
    with pytest.raises(ConfigError, match="'llava' is shown no pictures here"):
        VisionLanguageConfig(preset="base", architecture="llava").image_processor()


@pytest.mark.parametrize("tokens", [None, TokensConfig(kind="characters", alphabet="ab")])
def test_marks_are_never_written_and_entropies_stay_finite(tokens):
    model = VisionLanguageConfig(preset="tiny", tokens=tokens).build(seed=0)
    logprobs = torch.log_softmax(model.logits(torch.randn(5, 64)), -1)
    marks = [IMAGE, *range(model.vocabulary - (3 if tokens else 4), model.vocabulary - (0 if tokens else 1))]
    assert (logprobs.exp()[:, marks] == 0).all()
    assert (logprobs.exp() > 0).sum() == 5 * (model.vocabulary - 4)
    assert (logprobs.exp() * logprobs).sum().isfinite()
