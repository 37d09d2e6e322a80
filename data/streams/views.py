"""Geometric views of one sample, made in the stream with an explicit numpy Generator; they travel as uint8 and int16.

Colour, normalisation and spectrograms follow in batch on the trainer's device (`data/streams/device.py`).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from PIL import Image

RATIO = (3 / 4, 4 / 3)
"""Width to height of a random crop (Inception's, and torchvision's default)."""


def random_resized_crop(
    image: Image.Image,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = RATIO,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> Image.Image:
    """A crop of random area and shape, resized to size x size, antialiased, bilinear by default (torchvision's algorithm).

    The area is uniform in `scale` (a share of the picture), the log of width/height uniform in log `ratio`; ten tries,
    then the largest central crop within `ratio`. Crop and resize are one Pillow call, so pixels on the border are
    filtered with their real neighbours outside the crop, not with copies of themselves.
    """
    if size < 1 or not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
        raise ValueError(
            f"random_resized_crop: size={size}, scale={scale}, ratio={ratio}; size must be at least 1, "
            "scale (low, high) with 0 < low <= high <= 1, ratio (low, high) with 0 < low <= high"
        )
    left, top, width, height = _crop_box(image.width, image.height, rng, scale, ratio)
    return image.resize((size, size), resample, box=(left, top, left + width, top + height))


def _crop_box(
    image_width: int,
    image_height: int,
    rng: np.random.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """left, top, width, height of the crop, in whole pixels."""
    for _ in range(10):
        area = image_width * image_height * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= image_width and 0 < height <= image_height:
            left = int(rng.integers(image_width - width + 1))
            return left, int(rng.integers(image_height - height + 1)), width, height
    width, height = image_width, image_height
    if image_width / image_height < ratio[0]:
        height = min(image_height, max(1, round(image_width / ratio[0])))
    elif image_width / image_height > ratio[1]:
        width = min(image_width, max(1, round(image_height * ratio[1])))
    return (image_width - width) // 2, (image_height - height) // 2, width, height


def horizontal_flip(image: Image.Image, rng: np.random.Generator, probability: float = 0.5) -> Image.Image:
    """The picture, mirrored with the given probability."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < probability else image


def resize_center_crop(image: Image.Image, size: int) -> Image.Image:
    """CLIP's preprocessing: the shorter side resized to `size` (bicubic, antialiased), then the central size x size.

    Only the part that is kept is computed, so an extremely long picture costs no more than a square one.
    """
    if size < 1:
        raise ValueError(f"resize_center_crop: size={size}; it must be at least 1")
    shorter = min(image.width, image.height)
    width, height = (max(size, int(size * side / shorter)) for side in (image.width, image.height))
    left, top = round((width - size) / 2), round((height - size) / 2)
    # The window of the resized picture, in pixels of the original: the same filter positions as resizing all of it.
    x, y = image.width / width, image.height / height
    box = (left * x, top * y, min((left + size) * x, image.width), min((top + size) * y, image.height))
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def image_views(
    image: Image.Image,
    n_views: int,
    *,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.2, 1.0),
    ratio: tuple[float, float] = RATIO,
    flip: float = 0.5,
) -> np.ndarray:
    """Independent random crops and flips of an RGB picture (NonLing-CSE): uint8 (V, 3, size, size)."""
    views = np.empty((n_views, 3, size, size), np.uint8)
    for view in views:
        view[:] = _planes(horizontal_flip(random_resized_crop(image, size, rng, scale, ratio), rng, flip))
    return views


def center_view(image: Image.Image, size: int) -> np.ndarray:
    """The one view of evaluation, `resize_center_crop`: uint8 (1, 3, size, size)."""
    return np.ascontiguousarray(_planes(resize_center_crop(image, size)))[None]


def crop_view(
    image: Image.Image, size: int, rng: np.random.Generator, scale: tuple[float, float] = (0.9, 1.0)
) -> np.ndarray:
    """open_clip's augmentation, one bicubic random crop of most of the picture, not mirrored: uint8 (1, 3, size, size)."""
    cropped = random_resized_crop(image, size, rng, scale, resample=Image.Resampling.BICUBIC)
    return np.ascontiguousarray(_planes(cropped))[None]


def _planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB")).transpose(2, 0, 1)


def crop_or_pad(
    wave: np.ndarray,
    samples: int,
    rng: np.random.Generator | None = None,
    mode: Literal["start", "center", "random"] = "start",
    n_views: int = 1,
    pad: Literal["silence", "repeat"] = "silence",
) -> np.ndarray:
    """Waveforms of one length: longer ones cut at `mode`, shorter ones followed by silence, or repeated (`pad`).

    With silence, ``min(len(wave), samples)`` of a view is sound; `device.log_mel` and `device.mixup` want to know it.

    Args:
        wave: (T,) float of full scale -1 to 1, or int16.
        samples: length of a view.
        rng: for mode "random", where every view has its own cut.
        mode: the part of a longer waveform that is kept; the released code of NonLing-CSE keeps the start.
        n_views: number of views.
        pad: what follows a shorter waveform: "silence", or as many whole copies of it as fit and then silence
            ("repeat", CLAP's "repeatpad"; Zhao et al. 2023). An empty waveform is silence either way.

    Returns:
        int16 (V, samples).
    """
    if wave.ndim != 1 or not (wave.dtype == np.int16 or np.issubdtype(wave.dtype, np.floating)):
        raise ValueError(f"crop_or_pad: a waveform must be (T,) of float or int16, not {wave.dtype} {wave.shape}")
    if samples < 1:
        raise ValueError(f"crop_or_pad: samples={samples}; it must be at least 1")
    if pad not in ("silence", "repeat"):
        raise ValueError(f"crop_or_pad: pad={pad!r}; allowed are 'silence', 'repeat'")
    room = max(0, len(wave) - samples)
    if mode == "random":
        if rng is None:
            raise ValueError("crop_or_pad: mode 'random' needs a numpy Generator")
        starts = rng.integers(room + 1, size=n_views).tolist()
    elif mode in ("start", "center"):
        starts = [room // 2 if mode == "center" else 0] * n_views
    else:
        raise ValueError(f"crop_or_pad: mode={mode!r}; allowed are 'start', 'center', 'random'")
    views = np.zeros((n_views, samples), np.int16)
    for view, start in zip(views, starts, strict=True):
        part = wave[start : start + samples]
        if part.dtype != np.int16:
            part = np.clip(np.rint(part * 32768.0), -32768, 32767).astype(np.int16)
        copies = samples // len(part) if pad == "repeat" and len(part) else 1
        view[: copies * len(part)] = np.tile(part, copies)
    return views
