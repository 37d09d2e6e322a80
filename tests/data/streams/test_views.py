"""Geometric views of pictures: torchvision's random crop, and flips."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from multicse.data.streams import image as views


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(width: int, height: int, low: int = 0, high: int = 256) -> Image.Image:
    return Image.fromarray(rng().integers(low, high, (height, width, 3), np.uint8))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((400, 20), (186, 0, 27, 20)),  # too wide for any crop of this scale: the widest in the centre, 20 * 4 / 3
        ((20, 400), (0, 186, 20, 27)),  # too tall: 20 / (3 / 4)
        ((100, 1), (49, 0, 1, 1)),
        ((1, 100), (0, 49, 1, 1)),
    ],
)
def test_fallback_is_the_largest_central_crop(size: tuple[int, int], expected: tuple[int, int, int, int]) -> None:
    assert views._crop_box(*size, rng(), (0.9, 1.0)) == expected


def test_random_resized_crop_is_crop_then_resize_away_from_the_border() -> None:
    picture = noise(90, 70)
    for seed in range(10):
        found = np.asarray(views.random_resized_crop(picture, 64, rng(seed))).astype(int)
        left, top, width, height = views._crop_box(90, 70, rng(seed), (0.2, 1.0))
        crop = picture.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - expected)[3:-3, 3:-3].max() <= 1


@pytest.mark.parametrize("source", [(32, 32), (1, 1), (500, 3), (8, 8)])
def test_image_views(source: tuple[int, int]) -> None:
    picture = noise(*source)
    found = views.image_views(picture, 3, size=16, rng=rng(5))
    assert found.shape == (3, 3, 16, 16) and found.dtype == np.uint8 and found.flags.c_contiguous
    np.testing.assert_array_equal(found, views.image_views(picture, 3, size=16, rng=rng(5)))
    if source == (32, 32):
        assert (found[0] != found[1]).any()
        assert (found != views.image_views(picture, 3, size=16, rng=rng(6))).any()


def test_image_views_channels_and_axes() -> None:
    left_red = np.zeros((8, 8, 3), np.uint8)
    left_red[:, :4, 0], left_red[:, 4:, 2] = 255, 255
    view = views.image_views(Image.fromarray(left_red), 1, size=8, rng=rng(), scale=(1, 1), flip=1.0)[0]
    np.testing.assert_array_equal(view, left_red[:, ::-1].transpose(2, 0, 1))
    gray = views.image_views(Image.new("L", (8, 8), 7), 1, size=8, rng=rng())
    assert gray.shape == (1, 3, 8, 8) and (gray == 7).all()
