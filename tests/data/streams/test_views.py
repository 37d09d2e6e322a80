"""Geometric views: torchvision's crop, CLIP's preprocessing, waveforms of one length."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from data.streams import views


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(width: int, height: int, low: int = 0, high: int = 256) -> Image.Image:
    return Image.fromarray(rng().integers(low, high, (height, width, 3), np.uint8))


def test_crop_boxes_follow_the_stated_distributions() -> None:
    draw, boxes = rng(), []
    for _ in range(4000):
        left, top, width, height = views._crop_box(300, 200, draw, (0.2, 1.0), views.RATIO)
        assert 0 <= left <= 300 - width and 0 <= top <= 200 - height
        boxes.append((left, top, width, height))
    left, top, width, height = np.array(boxes, float).T
    share, ratio = width * height / 60000, width / height
    assert share.min() == pytest.approx(0.2, abs=0.01) and share.max() <= 1
    assert ratio.min() > 3 / 4 - 0.02 and ratio.max() < 4 / 3 + 0.02
    # Areas of at most 0.375 fit at any ratio (width up to 300, height up to 200), so no rejection bends their
    # distribution there: uniform area, uniform log ratio, uniform place.
    small = (share > 0.2) & (share < 0.375)
    counts = np.histogram(share[small], bins=5, range=(0.2, 0.375))[0]
    assert counts.min() > 0.75 * counts.mean() and counts.max() < 1.25 * counts.mean()
    log_ratio = np.log(ratio[small])
    assert abs(log_ratio.mean()) < 0.02
    assert log_ratio.std() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)
    place = left[small] / (300 - width[small])
    assert place.mean() == pytest.approx(0.5, abs=0.03) and place.std() == pytest.approx(1 / math.sqrt(12), rel=0.05)


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
    assert views._crop_box(*size, rng(), (0.9, 1.0), views.RATIO) == expected


def test_fallback_within_the_ratio_is_the_whole_picture() -> None:
    # A square ratio never fits with an area of 1 in 10 x 11, and 10 / 11 is within the bounds.
    assert views._crop_box(10, 11, rng(), (1.0, 1.0), (0.909, 0.9091)) == (0, 0, 10, 11)


def test_random_resized_crop_is_crop_then_resize_away_from_the_border() -> None:
    picture = noise(90, 70)
    for seed in range(10):
        found = np.asarray(views.random_resized_crop(picture, 64, rng(seed))).astype(int)
        left, top, width, height = views._crop_box(90, 70, rng(seed), (0.2, 1.0), views.RATIO)
        crop = picture.crop((left, top, left + width, top + height))
        expected = np.asarray(crop.resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(found - expected)[3:-3, 3:-3].max() <= 1


def test_random_resized_crop_sees_the_neighbours_of_the_crop() -> None:
    """What the single call changes: the border is filtered with real pixels. A ramp stays a ramp up to its end."""
    ramp = Image.fromarray(np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], 60, 0).repeat(3, 2))
    inside = 0
    for seed in range(20):
        left, _, width, _ = views._crop_box(60, 60, rng(seed), (0.2, 0.3), views.RATIO)
        if 0 < left < 60 - width:
            inside += 1
            row = np.asarray(views.random_resized_crop(ramp, 64, rng(seed), (0.2, 0.3))).astype(float)[32, :, 0]
            assert np.diff(row).min() >= 1  # copies of the border would give a flat end
    assert inside > 5


@pytest.mark.parametrize("arguments", [{"size": 0}, {"scale": (0, 1)}, {"scale": (0.5, 1.5)}, {"ratio": (2, 1)}])
def test_random_resized_crop_refuses(arguments: dict) -> None:
    with pytest.raises(ValueError, match="scale \\(low, high\\) with 0 < low <= high <= 1"):
        views.random_resized_crop(noise(8, 8), **({"size": 4, "rng": rng()} | arguments))


def test_horizontal_flip() -> None:
    picture = noise(5, 3)
    np.testing.assert_array_equal(np.asarray(views.horizontal_flip(picture, rng(), 1.0)), np.asarray(picture)[:, ::-1])
    assert views.horizontal_flip(picture, rng(), 0.0) is picture
    draw = rng()
    assert np.mean([views.horizontal_flip(picture, draw) is picture for _ in range(2000)]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("size", [(90, 70), (70, 90), (33, 33), (64, 64), (300, 41), (20, 17), (64, 65)])
def test_resize_center_crop_equals_resizing_all_of_it(size: tuple[int, int]) -> None:
    picture = noise(*size, 96, 160)  # Pillow clips between its two passes, in either order: leave no overshoot to clip
    shorter = min(size)
    whole = picture.resize((max(64, 64 * size[0] // shorter), max(64, 64 * size[1] // shorter)), Image.Resampling.BICUBIC)
    left, top = round((whole.width - 64) / 2), round((whole.height - 64) / 2)
    expected = np.asarray(whole.crop((left, top, left + 64, top + 64))).astype(int)
    found = np.asarray(views.resize_center_crop(picture, 64)).astype(int)
    assert np.abs(found - expected).max() <= 1


def test_resize_center_crop_is_transformers_clip_preprocessing() -> None:
    processing = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    processor = processing.CLIPImageProcessorPil(
        size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48}, do_normalize=False, do_rescale=False
    )
    for size in ((80, 60), (60, 80), (100, 50)):
        picture = noise(*size, 96, 160)  # no overshoot to clip, see above
        expected = np.asarray(processor(picture, return_tensors="np")["pixel_values"])[0].astype(int)
        assert np.abs(views.center_view(picture, 48)[0].astype(int) - expected).max() <= 1


def test_resize_center_crop_of_a_very_long_picture_is_cheap() -> None:
    assert views.resize_center_crop(Image.new("RGB", (1_000_000, 1)), 224).size == (224, 224)
    with pytest.raises(ValueError, match="size=0"):
        views.resize_center_crop(noise(4, 4), 0)


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
    view = views.image_views(Image.fromarray(left_red), 1, size=8, rng=rng(), scale=(1, 1), ratio=(1, 1), flip=1.0)[0]
    np.testing.assert_array_equal(view, left_red[:, ::-1].transpose(2, 0, 1))
    gray = views.image_views(Image.new("L", (8, 8), 7), 1, size=8, rng=rng())
    assert gray.shape == (1, 3, 8, 8) and (gray == 7).all()


# ---- sound


def test_crop_or_pad_modes() -> None:
    wave = np.arange(10, dtype=np.int16)
    np.testing.assert_array_equal(views.crop_or_pad(wave, 4), [[0, 1, 2, 3]])
    np.testing.assert_array_equal(views.crop_or_pad(wave, 4, mode="center"), [[3, 4, 5, 6]])
    np.testing.assert_array_equal(views.crop_or_pad(wave, 10, rng(), "random"), [wave])
    for mode in ("start", "center", "random"):
        np.testing.assert_array_equal(views.crop_or_pad(wave, 12, rng(), mode), [[*wave, 0, 0]])
    starts = [views.crop_or_pad(wave, 4, rng(seed), "random")[0, 0] for seed in range(300)]
    assert set(starts) == set(range(7))
    two = views.crop_or_pad(np.arange(1000, dtype=np.int16), 4, rng(3), "random", n_views=2)
    assert two.shape == (2, 4) and two[0, 0] != two[1, 0]
    np.testing.assert_array_equal(two, views.crop_or_pad(np.arange(1000, dtype=np.int16), 4, rng(3), "random", n_views=2))


@pytest.mark.parametrize(("length", "samples"), [(3, 10), (5, 10), (7, 10), (10, 10), (1, 10), (9, 10), (13, 10)])
def test_crop_or_pad_repeats_whole_copies(length: int, samples: int) -> None:
    wave = np.arange(1, length + 1, dtype=np.int16)
    expected: list[int] = []
    while len(expected) + length <= samples:
        expected += wave.tolist()
    expected = (expected or wave[:samples].tolist()) + [0] * samples
    np.testing.assert_array_equal(views.crop_or_pad(wave, samples, pad="repeat"), [expected[:samples]])
    found = views.crop_or_pad(wave / np.float32(32768), samples, pad="repeat", n_views=2)
    np.testing.assert_array_equal(found, [expected[:samples]] * 2)


def test_crop_or_pad_of_nothing_is_silence() -> None:
    np.testing.assert_array_equal(views.crop_or_pad(np.zeros(0, np.float32), 3, pad="repeat"), [[0, 0, 0]])
    with pytest.raises(ValueError, match="pad='mirror'; allowed are 'silence', 'repeat'"):
        views.crop_or_pad(np.zeros(2, np.float32), 3, pad="mirror")  # type: ignore[arg-type]


def test_crop_view_is_bicubic() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    found = views.crop_view(image, 40, rng(), scale=(1.0, 1.0))
    assert found.shape == (1, 3, 40, 40)
    left, top, width, height = views._crop_box(40, 40, rng(), (1.0, 1.0), views.RATIO)
    expected = image.crop((left, top, left + width, top + height)).resize((40, 40), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(found[0].transpose(1, 2, 0), np.asarray(expected))


def test_crop_or_pad_is_16_bit_full_scale() -> None:
    wave = np.array([-2, -1, -0.5, 0, 1 / 32768, 0.5, 1, 2], np.float32)
    found = views.crop_or_pad(wave, 8)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, [[-32768, -32768, -16384, 0, 1, 16384, 32767, 32767]])


def test_crop_or_pad_refuses() -> None:
    wave = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="samples=0"):
        views.crop_or_pad(wave, 0)
    with pytest.raises(ValueError, match="'random' needs a numpy Generator"):
        views.crop_or_pad(wave, 2, mode="random")
    with pytest.raises(ValueError, match="mode='middle'; allowed are 'start', 'center', 'random'"):
        views.crop_or_pad(wave, 2, mode="middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"not float32 \(2, 2\)"):
        views.crop_or_pad(wave.reshape(2, 2), 2)
    with pytest.raises(ValueError, match="not int32"):
        views.crop_or_pad(wave.astype(np.int32), 2)
