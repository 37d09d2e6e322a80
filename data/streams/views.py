"""Random geometric views of a picture, made in the stream with an explicit numpy Generator; they travel as uint8.

Colour and normalisation follow in batch on the trainer's device (`data/streams/device.py`).
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from multicse.data.streams.preprocess import to_chw

RATIO = (3 / 4, 4 / 3)
"""Width to height of a random crop (Inception's, and torchvision's default)."""


def random_resized_crop(
    image: Image.Image,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.2, 1.0),
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> Image.Image:
    """A crop of random area and shape, resized to size x size, antialiased, bilinear by default (torchvision's algorithm).

    The area is uniform in `scale` (a share of the picture), the log of width/height uniform in log `RATIO`; ten tries,
    then the largest central crop within `RATIO`. Crop and resize are one Pillow call, so pixels on the border are
    filtered with their real neighbours outside the crop, not with copies of themselves.
    """
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale={scale}; it is (low, high) with 0 < low <= high <= 1")
    left, top, width, height = _crop_box(image.width, image.height, rng, scale)
    return image.resize((size, size), resample, box=(left, top, left + width, top + height))


def _crop_box(
    image_width: int, image_height: int, rng: np.random.Generator, scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """left, top, width, height of the crop, in whole pixels."""
    for _ in range(10):
        area = image_width * image_height * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= image_width and 0 < height <= image_height:
            left = int(rng.integers(image_width - width + 1))
            return left, int(rng.integers(image_height - height + 1)), width, height
    width, height = image_width, image_height
    if image_width / image_height < RATIO[0]:
        height = min(image_height, max(1, round(image_width / RATIO[0])))
    elif image_width / image_height > RATIO[1]:
        width = min(image_width, max(1, round(image_height * RATIO[1])))
    return (image_width - width) // 2, (image_height - height) // 2, width, height


def horizontal_flip(image: Image.Image, rng: np.random.Generator, probability: float = 0.5) -> Image.Image:
    """The picture, mirrored with the given probability."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < probability else image


def image_views(
    image: Image.Image,
    n_views: int,
    *,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.2, 1.0),
    flip: float = 0.5,
) -> np.ndarray:
    """Independent random crops and flips of an RGB picture (NonLing-CSE): uint8 (V, 3, size, size)."""
    views = np.empty((n_views, 3, size, size), np.uint8)
    for view in views:
        view[:] = to_chw(horizontal_flip(random_resized_crop(image, size, rng, scale), rng, flip))
    return views
