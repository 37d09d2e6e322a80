"""Streams of images without text, as random views.

Reading tasks make the geometric views from an explicit numpy Generator and send them as uint8. Colour and normalisation
follow in batch on the device of the trainer (`data/streams/device.py`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image
from pydantic import Field, NonNegativeFloat, PositiveFloat

from multicse.data.settings import refuse_idle
from multicse.data.shards import RawSample
from multicse.data.streams import decode
from multicse.data.streams.base import Batch, LabelledStream, Row, Tokenize
from multicse.data.streams.preprocess import normalise, to_chw

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RATIO = (3 / 4, 4 / 3)
"""Smallest and largest ratio of width to height of a random crop (Inception's, and torchvision's default)."""


class ImageStream(LabelledStream):
    """Images, each as two random views like SimCLR's (NonLing-CSE): ``image`` (B, V, 3, size, size)."""

    kind: Literal["image"] = "image"
    """Kind of the stream; it cannot be changed."""
    size: int = Field(224, gt=0)
    """Height and width of a view in pixels; it must equal image_size of the method."""
    n_views: int = Field(2, gt=0)
    """Number of views per image, which are independent random crops."""
    scale: tuple[float, float] = (0.2, 1.0)
    """Smallest and largest area of a crop, as a share of the area of the image."""
    flip: float = Field(0.5, ge=0, le=1)
    """Probability that a view is flipped horizontally."""
    jitter: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = (0.4, 0.4, 0.4, 0.1)
    """Largest random change of brightness, contrast, saturation (factors) and hue (circles)."""
    jitter_probability: float = Field(0.8, ge=0, le=1)
    """Probability that the colours of a view are changed by `jitter`."""
    grayscale_probability: float = Field(0.2, ge=0, le=1)
    """Probability that a view becomes gray."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of red, green, blue (0 to 1) that is subtracted from the pixels. The default is ImageNet's."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)
    """Standard deviation of red, green, blue (0 to 1) by which the pixels are divided. The default is ImageNet's."""

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require an image field, and the class if it is read."""
        return [("kind", decode.IMAGES), *super().needs()]

    def check_settings(self) -> None:
        """Check also the areas of crops, and that the colours can change."""
        super().check_settings()
        if not any(self.jitter):
            refuse_idle(self, ["jitter_probability"], "jitter changes nothing; set one of its numbers above 0")
        if not self.jitter_probability:
            refuse_idle(self, ["jitter"], "no view is changed; set jitter_probability above 0")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale={self.scale}: set the smallest and the largest area, above 0 and at most 1")

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the geometric views ``image``, uint8 (V, 3, size, size), and the class."""
        image = decode.image(decode.member(sample.fields, decode.IMAGES, sample.key), key=sample.key)
        views = np.empty((self.n_views, 3, self.size, self.size), np.uint8)
        for view in views:
            crop = random_resized_crop(image, self.size, rng, self.scale)
            view[:] = to_chw(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < self.flip else crop)
        return {"image": views, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``image``, uint8 (B, V, 3, size, size), and, if the samples have classes, ``label`` (B,)."""
        import torch

        return {"image": torch.from_numpy(rows["image"]), **self.labels(rows)}

    def draws(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the numbers of the colour changes, (B, V, `JITTER_DRAWS` + 1)."""
        import torch

        from multicse.data.streams.device import JITTER_DRAWS

        # The last column is for `random_grayscale`.
        numbers = [torch.rand(samples * self.n_views, size, generator=generator) for size in (JITTER_DRAWS, 1)]
        return {"draws": torch.cat(numbers, 1).view(samples, self.n_views, -1)}

    def on_device(self, batch: Batch) -> Batch:
        """Change the colours and normalise."""
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
    scale: tuple[float, float],
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> Image.Image:
    """Crop a random area and resize it with antialiasing (the algorithm of torchvision's RandomResizedCrop).

    The log of width/height is uniform in log `RATIO`. After ten crops that do not fit, the largest central crop within
    `RATIO` is taken. Crop and resize are one Pillow call, so pixels on the border are filtered with their real neighbours
    outside the crop.

    Args:
        image: Image.
        size: Height and width of the result in pixels.
        rng: Source of all randomness.
        scale: Smallest and largest area of the crop, as a share of the image; the area is uniform between them.
        resample: Filter.
    """
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale={scale}; it must be (low, high) with 0 < low <= high <= 1")
    left, top, width, height = _crop_box(image.width, image.height, rng, scale)
    return image.resize((size, size), resample, box=(left, top, left + width, top + height))


def _crop_box(
    image_width: int, image_height: int, rng: np.random.Generator, scale: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Draw left, top, width and height of the crop, in pixels."""
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
