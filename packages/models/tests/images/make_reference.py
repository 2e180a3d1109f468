"""Makes reference_<library>.safetensors: images as the libraries resize them that the public models were trained with.

Each library in a throw-away environment of its own:

    uv venv --python 3.11 /tmp/tf && uv pip install --python /tmp/tf/bin/python tensorflow-cpu numpy safetensors
    /tmp/tf/bin/python packages/models/tests/images/make_reference.py tensorflow
    uv venv --python 3.11 /tmp/openpi && uv pip install --python /tmp/openpi/bin/python openpi-client==0.1.2 pillow safetensors
    /tmp/openpi/bin/python packages/models/tests/images/make_reference.py openpi
    uv venv --python 3.11 /tmp/tv && uv pip install --python /tmp/tv/bin/python torch torchvision numpy safetensors
    /tmp/tv/bin/python packages/models/tests/images/make_reference.py torchvision
"""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

FOLDER = Path(__file__).parent


def camera(height, width, seed):
    """A picture with what resizing finds hard: edges, thin stripes, noise, flat areas, black and white."""
    rng = np.random.Generator(np.random.Philox(seed))
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack([255 * columns / width, 127.5 + 127.5 * np.sin(rows * columns / 40), 255 * (columns // 3 % 2)], axis=-1)
    image[height // 4 : height // 2, width // 4 : width // 2] = 255
    image[height // 2 : 3 * height // 4, width // 3 : width // 2] = 0
    # A little noise everywhere, so that no level lies half-way between two by symmetry; much of it on the right.
    image += rng.normal(0, 3, size=image.shape)
    image[:, 3 * width // 4 :] += rng.normal(0, 40, size=(height, width - 3 * width // 4, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


SOURCES = {"wide": (48, 64), "square": (72, 72), "tall": (57, 31)}
"""Height and width of each picture; its seed is its place."""


def tensorflow():
    import tensorflow as tf

    out = {}
    for i, (name, shape) in enumerate(SOURCES.items()):
        image = tf.constant(camera(*shape, i))
        for size in ((28, 28), (40, 48)):
            resized = tf.image.resize(image, size, method="lanczos3", antialias=True)
            levels = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
            out[f"lanczos/{name}/{size[0]}x{size[1]}"] = levels.numpy()
        side = tf.sqrt(tf.constant(0.9))
        square = tf.cast(
            tf.clip_by_value(tf.round(tf.image.resize(image, (40, 40), method="lanczos3", antialias=True)), 0, 255), tf.uint8
        )
        part = tf.image.convert_image_dtype(square, tf.float32)[None]
        box = tf.reshape(tf.stack([(1 - side) / 2, (1 - side) / 2, (1 - side) / 2 + side, (1 - side) / 2 + side]), (1, 4))
        part = tf.clip_by_value(tf.image.crop_and_resize(part, box, [0], (40, 40)), 0, 1)
        out[f"crop/{name}/40x40"] = tf.image.convert_image_dtype(part, tf.uint8, saturate=True)[0].numpy()
    return out, "tensorflow-cpu"


def openpi():
    from openpi_client.image_tools import resize_with_pad

    out = {}
    for i, (name, shape) in enumerate(SOURCES.items()):
        for size in ((28, 28), (40, 48)):
            out[f"pad/{name}/{size[0]}x{size[1]}"] = np.ascontiguousarray(resize_with_pad(camera(*shape, i)[None], *size)[0])
    return out, "openpi-client"


def torchvision():
    import torch
    import torchvision.transforms.v2 as transforms

    torch.set_num_threads(1)
    out = {}
    for i, (name, (height, width)) in enumerate(SOURCES.items()):
        image = torch.from_numpy(camera(height, width, i))[None]
        for size in ((28, 28), (40, 48)):
            crop = transforms.CenterCrop((int(height * 0.95), int(width * 0.95)))
            resize = transforms.Resize(size, interpolation=transforms.InterpolationMode.BILINEAR, antialias=True)
            floats = resize(crop((image.to(torch.float32) / 255.0).permute(0, 3, 1, 2)))
            levels = (floats.permute(0, 2, 3, 1) * 255).to(torch.uint8)
            out[f"groot/{name}/{size[0]}x{size[1]}"] = levels[0].contiguous().numpy()
    return out, "torchvision"


if __name__ == "__main__":
    arrays, distribution = {"tensorflow": tensorflow, "openpi": openpi, "torchvision": torchvision}[sys.argv[1]]()
    version = importlib.metadata.version(distribution)
    save_file(arrays, FOLDER / f"reference_{sys.argv[1]}.safetensors", metadata={"made by": f"{distribution} {version}"})
