"""Streams of pictures without text: random views of each.

Geometric views are made where the shards are read, by an explicit numpy Generator, and travel as uint8. Colour and
normalisation follow in batch on the trainer's device (`data/streams/device.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field

from multicse.data.shards import RawSample
from multicse.data.streams import decode
from multicse.data.streams.base import Batch, LabelledStream, Row, Tokenize
from multicse.data.streams.preprocess import normalise, to_chw

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RATIO = (3 / 4, 4 / 3)
"""Width to height of a random crop (Inception's, and torchvision's default)."""


class ImageStream(LabelledStream):
    """Two random views of every image, SimCLR's (NonLing-CSE): ``image`` (B, V, 3, size, size)."""

    kind: Literal["image"] = "image"
    """Kind of the stream; fixed, since its other settings belong to it."""
    size: int = Field(224, gt=0)
    """Pixels of a side of a view; the method's image_size is the same."""
    n_views: int = Field(2, gt=0)
    """Independent crops of every image."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest share of the image's area in a crop."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability of a mirror image."""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """Largest change of brightness, contrast, saturation and hue."""
    jitter_probability: float = Field(0.8, ge=0, le=1)
    """Share of views whose colours are changed."""
    grayscale_probability: float = Field(0.2, ge=0, le=1)
    """Share of views without colour."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of red, green, blue in 0 to 1; views are (x - mean) / std. The default is ImageNet's."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of red, green and blue."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("kind", decode.IMAGES), *super().needs()]

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        picture = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        arrays = image_views(picture, self.n_views, size=self.size, scale=self.scale, flip=self.flip, rng=rng)
        return {"image": arrays, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"image": torch.from_numpy(rows["image"]), **self.labels(rows)}

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        from multicse.data.streams.device import JITTER_DRAWS

        # One column is for `random_grayscale`.
        numbers = [torch.rand(samples * self.n_views, size, generator=generator) for size in (JITTER_DRAWS, 1)]
        return {"draws": torch.cat(numbers, 1).view(samples, self.n_views, -1)}

    def on_device(self, batch: Batch) -> Batch:
        from multicse.data.streams import device

        draws = batch["draws"].flatten(0, 1)
        image = batch["image"].flatten(0, 1).float() / 255
        image = device.color_jitter(image, draws[:, :-1], *self.jitter, probability=self.jitter_probability)
        image = device.random_grayscale(image, draws[:, -1], probability=self.grayscale_probability)
        image = normalise(image, self.mean, self.std)
        return batch.replace(image=image.view(batch["image"].shape))


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
        crop = random_resized_crop(image, size, rng, scale)
        view[:] = to_chw(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < flip else crop)
    return views
