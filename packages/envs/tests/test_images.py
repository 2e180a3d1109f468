from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.env import EnvContract
from rlinf.envs.tabletop.config import Tabletop
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.images import Augmentation, AugmentImages, ResizeImages, center_crop, crop, jitter, resize, shift

ONE = np.ones(1, np.float32)
EVERYTHING = Augmentation(shift=2, crop=0.7, brightness=0.3, contrast=0.3, saturation=0.3)


def grey(*rows):
    """One image `[1, H, W, 1]`."""
    return np.array(rows, np.uint8)[None, ..., None]


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_shift_by_hand():
    image = grey([1, 2, 3], [4, 5, 6], [7, 8, 9])
    assert shift(image, np.array([[1, 0]]))[0, ..., 0].tolist() == [[4, 5, 6], [7, 8, 9], [7, 8, 9]]
    assert shift(image, np.array([[0, -2]]))[0, ..., 0].tolist() == [[1, 1, 1], [4, 4, 4], [7, 7, 7]]


@settings(max_examples=25)
@given(offset=st.tuples(st.integers(-4, 4), st.integers(-4, 4)))
def test_shift_is_pad_and_crop(offset):
    images = noise(1, 9, 11, 3)
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="edge")
    expected = crop(padded, 4 + np.array([offset]), (9, 11))
    assert np.array_equal(shift(images, np.array([offset])), expected)


def test_crop_by_hand_and_beyond_the_border():
    image = grey([1, 2, 3], [4, 5, 6], [7, 8, 9])
    assert crop(image, np.array([[1, 0]]), (2, 2))[0, ..., 0].tolist() == [[4, 5], [7, 8]]
    assert center_crop(image, (1, 1))[0, ..., 0].tolist() == [[5]]
    with pytest.raises(ShapeError, match="doesn't fit"):
        crop(image, np.array([[2, 0]]), (2, 2))


def test_resize_by_hand():
    assert resize(grey([0, 100], [0, 100]), (1, 1))[0, ..., 0].tolist() == [[50]]
    assert resize(grey([0, 100]), (1, 4))[0, ..., 0].tolist() == [[0, 25, 75, 100]]
    flat = np.full((1, 7, 5, 3), 200, np.uint8)
    assert (resize(flat, (3, 11)) == 200).all()


def test_small_images_are_averages_not_samples():
    """A fine chessboard becomes grey; without antialiasing it would be black or white."""
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    small = resize(board.astype(np.uint8)[None, ..., None], (8, 8))
    assert np.abs(small.astype(int) - 127.5).max() <= 1


@pytest.mark.parametrize("size", [(224, 224), (17, 40), (50, 33), (48, 64)])
def test_resize_is_that_of_pillow(size):
    image_module = pytest.importorskip("PIL.Image", reason="the extra rlinf-envs[video] is not installed")
    images = noise(2, 50, 64, 3)
    for image, found in zip(images, resize(images, size), strict=True):
        wanted = np.asarray(image_module.fromarray(image).resize(size[::-1], image_module.Resampling.BILINEAR))
        assert np.abs(found.astype(int) - wanted).max() <= 1


def test_colours_by_hand():
    image = np.array([[[[100, 0, 0], [0, 100, 0]]]], np.uint8)
    assert jitter(image, brightness=2 * ONE, contrast=ONE, saturation=ONE).tolist() == [[[[200, 0, 0], [0, 200, 0]]]]
    assert jitter(image, brightness=9 * ONE, contrast=ONE, saturation=ONE).max() == 255
    mean = round((29.9 + 58.7) / 2)
    assert jitter(image, brightness=ONE, contrast=0 * ONE, saturation=ONE).tolist() == [[[[mean] * 3, [mean] * 3]]]
    assert jitter(image, brightness=ONE, contrast=ONE, saturation=0 * ONE).tolist() == [[[[30] * 3, [59] * 3]]]


def test_factors_of_one_and_each_image_for_itself():
    images = noise(3, 6, 5, 3)
    one = np.ones(3, np.float32)
    assert np.array_equal(jitter(images, brightness=one, contrast=one, saturation=one), images)
    factor = np.array([0.5, 1.0, 1.5], np.float32)
    together = jitter(images, brightness=factor, contrast=factor, saturation=factor)
    for i in range(3):
        part = dict.fromkeys(("brightness", "contrast", "saturation"), factor[i : i + 1])
        assert np.array_equal(together[i], jitter(images[i : i + 1], **part)[0])


@pytest.mark.parametrize("images", [noise(5, 5, 3), noise(2, 5, 5, 3).astype(np.float32)])
def test_other_arrays_are_refused(images):
    with pytest.raises(ShapeError, match=r"uint8 \[N, H, W, C\]"):
        shift(images, np.zeros((2, 2), int))


@pytest.mark.parametrize("wrong", [{"shift": -1}, {"crop": 0.0}, {"contrast": 2.0}])
def test_an_augmentation_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match=rf"^{next(iter(wrong))}: expected"):
        Augmentation(**wrong)


def tables(num_envs=3, obs_mode="rgb"):
    config = Tabletop(task="pick_place", obs_mode=obs_mode, image_size=16)
    return config.make(num_envs, max_episode_steps=6, ignore_terminations=False, render=False)


def test_an_augmented_environment_keeps_the_contract_and_its_input():
    EnvContract(factory=lambda: EnforceContract(AugmentImages(tables(), EVERYTHING))).run()
    env = EnforceContract(AugmentImages(tables(), EVERYTHING))
    plain = tables()
    augmented, _ = env.reset(seed=1)
    original, _ = plain.reset(seed=1)
    for key in ("main_images", "wrist_images"):
        assert augmented[key].shape == original[key].shape
        assert not any(np.array_equal(augmented[key][i], original[key][i]) for i in range(3))
    assert np.array_equal(augmented["states"], original["states"])


def test_one_draw_for_an_episode():
    jump = Augmentation(brightness=0.5, per_episode=True)
    env, plain = EnforceContract(AugmentImages(tables(1), jump)), tables(1)
    level = []
    for seed in (1, 2):
        augmented, original = env.reset(seed=seed)[0], plain.reset(seed=seed)[0]
        for _ in range(3):
            level.append(augmented["main_images"].astype(float).mean() / original["main_images"].mean())
            action = np.zeros(env.action_space.shape, np.float32)
            augmented, original = env.step(action)[0], plain.step(action)[0]
    assert max(level[:3]) - min(level[:3]) < 0.02
    assert abs(level[0] - level[3]) > 0.02


def test_resized_images():
    EnvContract(factory=lambda: ResizeImages(tables(), (10, 12), center_crop=0.8)).run()
    env = ResizeImages(tables(), (16, 16))
    assert np.array_equal(env.reset(seed=1)[0]["main_images"], tables().reset(seed=1)[0]["main_images"])


def test_views_side_by_side():
    images = noise(2, 3, 8, 8, 3)
    small = resize(images.reshape(-1, 8, 8, 3), (4, 4)).reshape(2, 3, 4, 4, 3)
    assert np.array_equal(small[1, 2], resize(images[1, 2:3], (4, 4))[0])


def test_without_images():
    with pytest.raises(ConfigError, match="no images among"):
        AugmentImages(tables(obs_mode="state"), EVERYTHING)
    with pytest.raises(ConfigError, match="resize"):
        ResizeImages(tables(), (0, 4))
