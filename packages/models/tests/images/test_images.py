"""Images against the libraries that the public models were trained with; see make_reference.py."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.observations.images import fit_images, resize, standardize

HERE = Path(__file__).parent
PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


MADE = SimpleNamespace(**runpy.run_path(str(HERE / "make_reference.py")))
CAMERA = {name: MADE.camera(*shape, i) for i, (name, shape) in enumerate(MADE.SOURCES.items())}


def references(library, kind):
    """The source, the size and the expected levels of each reference."""
    arrays = load_file(HERE / f"reference_{library}.safetensors")
    for key, expected in arrays.items():
        found_kind, source, size = key.split("/")
        if found_kind == kind:
            yield CAMERA[source], tuple(int(n) for n in size.split("x")), expected


def worst(found, expected):
    return np.abs(np.asarray(found).astype(int) - expected.astype(int)).max()


def off(found, expected):
    return np.mean(np.asarray(found) != expected)


def pillow(image, height, width, kernel):
    """The width first, then the height: what one call did up to Pillow 12. From 13 on it takes the order that is less work."""
    return np.asarray(Image.fromarray(image).resize((width, image.shape[0]), kernel).resize((width, height), kernel))


@pytest.mark.parametrize("kernel", PILLOW)
@pytest.mark.parametrize("source", CAMERA)
def test_pillow_exactly(kernel, source):
    image = CAMERA[source]
    for height, width in ((28, 28), (64, 80), (200, 5), (5, 200), image.shape[:2], (image.shape[0], 9), (1, 1)):
        expected = pillow(image, height, width, PILLOW[kernel])
        assert worst(resize(image[None], (height, width), filter=kernel)[0], expected) == 0


@given(st.data())
def test_pillow_exactly_on_any_levels(data):
    sides = st.integers(1, 24)
    height, width, to_height, to_width = (data.draw(sides) for _ in range(4))
    kernel = data.draw(st.sampled_from(sorted(PILLOW)))
    image = np.frombuffer(data.draw(st.binary(min_size=height * width * 3, max_size=height * width * 3)), dtype=np.uint8)
    image = image.reshape(height, width, 3)
    expected = pillow(image, to_height, to_width, PILLOW[kernel])
    assert worst(resize(image, (to_height, to_width), filter=kernel), expected) == 0


def test_openpi_exactly():
    for image, size, expected in references("openpi", "pad"):
        assert worst(fit_images(image[None], size, fit="pad")[0], expected) == 0


def test_tensorflow_lanczos_within_one_level():
    for image, size, expected in references("tensorflow", "lanczos"):
        found = resize(image, size, filter="lanczos", rounding="once")
        assert worst(found, expected) <= 1
        assert off(found, expected) < 1e-3
        # Pillow rounds and clips between the passes: that is another picture.
        assert worst(resize(image, size, filter="lanczos"), expected) > 1


def test_openvla_crop_within_one_level():
    for image, size, expected in references("tensorflow", "crop"):
        found = fit_images(image, size, filter="lanczos", rounding="once", crop_scale=0.9, crop_of="area")
        assert worst(found, expected) <= 1
        assert off(found, expected) < 1e-3


def test_groot_within_one_level():
    for image, size, expected in references("torchvision", "groot"):
        found = fit_images(image, size, rounding="down", crop_scale=0.95)
        assert worst(found, expected) <= 1
        assert off(found, expected) < 1e-3
        assert off(fit_images(image, size, rounding="once", crop_scale=0.95), expected) > 0.1


def test_a_batch_is_its_rows_and_leading_axes_are_kept():
    images = np.stack([MADE.camera(20, 30, seed) for seed in range(6)])
    settings = {"fit": "pad", "filter": "bicubic", "crop_scale": 0.9}
    whole = standardize(fit_images(images, (16, 12), **settings))
    assert whole.shape == (6, 3, 16, 12)
    torch.testing.assert_close(
        torch.cat([standardize(fit_images(images[i : i + 1], (16, 12), **settings)) for i in range(6)]), whole, rtol=0, atol=0
    )
    views = standardize(fit_images(images.reshape(2, 3, 20, 30, 3), (16, 12), **settings))
    torch.testing.assert_close(views.flatten(0, 1), whole, rtol=0, atol=0)
    assert standardize(fit_images(images[:0], 8)).shape == (0, 3, 8, 8)


def test_numpy_and_torch_are_the_same_and_stay_as_they_were():
    images = CAMERA["wide"][None].copy()
    before, tensor = images.copy(), torch.from_numpy(images.copy())
    images.setflags(write=False)
    for size in ((48, 64), (17, 19)):
        found = fit_images(images, size)
        torch.testing.assert_close(found, fit_images(tensor, size))
        found.zero_()
        for kernel in PILLOW:
            fit_images(tensor, size, filter=kernel).zero_()
    assert (images == before).all()
    assert (tensor.numpy() == before).all()


def test_fit():
    white = np.full((1, 10, 20, 3), 255, dtype=np.uint8)
    padded = fit_images(white, 20, fit="pad")[0, :, :, 0]
    assert padded[:5].max() == 0
    assert padded[5:15].min() == 255
    assert padded[15:].max() == 0
    columns = np.zeros((1, 10, 20, 3), dtype=np.uint8)
    columns[:, :, 5:15] = 200
    assert fit_images(columns, 10, fit="crop").unique().tolist() == [200]
    assert fit_images(columns, 10, crop_scale=0.5).unique().tolist() == [200]
    assert 0 in fit_images(columns, 10).unique().tolist()
    assert fit_images(white, (3, 40), fit="crop").shape == (1, 3, 40, 3)
    assert fit_images(white, (1, 50), fit="pad").shape == (1, 1, 50, 3)


def test_standardize():
    levels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    assert standardize(levels).flatten().tolist() == pytest.approx([-1.0, -0.6, 1.0])
    found = standardize(levels, mean=(0.0, 0.1, 0.5), std=(1.0, 0.5, 0.25)).flatten().tolist()
    assert found == pytest.approx([0.0, 0.2, 2.0])


def test_wrong_images_and_settings_are_named():
    with pytest.raises(ShapeError, match=r"images: expected \[\*, H, W, 3\] uint8, found \[1, 4, 4, 3\] float32"):
        resize(torch.zeros(1, 4, 4, 3), 2)
    with pytest.raises(ShapeError, match=r"found \[1, 3, 4, 4\]"):
        resize(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), 2)
    image = CAMERA["wide"]
    for wrong, message in (
        ({"filter": "cubic"}, "filter: expected nearest, bilinear"),
        ({"fit": "letterbox"}, "fit: expected stretch, pad or crop"),
        ({"crop_scale": 1.5}, "crop_scale"),
        ({"crop_of": "side", "crop_scale": 0.9}, "crop_of: expected sides or area"),
        ({"rounding": "up"}, "rounding"),
        ({"filter": "lanczos", "rounding": "down"}, "bilinear and bicubic only"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_images(image, 8, **wrong)
    with pytest.raises(ConfigError, match="size: expected a positive"):
        resize(image, 0)
