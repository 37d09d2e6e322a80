"""Geometric views of images: the random crop of torchvision, and flips."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from multicse.data.streams import image as views


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(width: int, height: int, low: int = 0, high: int = 256) -> Image.Image:
    return Image.fromarray(rng().integers(low, high, (height, width, 3), np.uint8))


def test_random_resized_crop_is_crop_then_resize_away_from_the_border() -> None:
    image = noise(90, 70)
    for seed in range(10):
        found = np.asarray(views.random_resized_crop(image, 64, rng(seed))).astype(int)
        left, top, width, height = views._crop_box(90, 70, rng(seed), (0.2, 1.0))
        crop = image.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - expected)[3:-3, 3:-3].max() <= 1


@pytest.mark.parametrize("source", [(32, 32), (1, 1), (500, 3), (8, 8)])
def test_image_views(source: tuple[int, int]) -> None:
    image = noise(*source)
    found = views._image_views(image, 3, size=16, rng=rng(5))
    assert found.shape == (3, 3, 16, 16) and found.dtype == np.uint8 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, views._image_views(image, 3, size=16, rng=rng(5)))
    if source == (32, 32):
        assert (found[0] != found[1]).any()
        assert (found != views._image_views(image, 3, size=16, rng=rng(6))).any()
