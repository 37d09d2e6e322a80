"""Streams of pictures without text: random views of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from multicse.data.shards import RawSample
from multicse.data.streams import decode, views
from multicse.data.streams.base import LabelledStream, Row, Tokenize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from multicse.data.batch import Batch


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
        arrays = views.image_views(picture, self.n_views, size=self.size, scale=self.scale, flip=self.flip, rng=rng)
        return {"image": arrays, **self.label_of(sample)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        import torch

        return {"image": torch.from_numpy(rows["image"]), **self.labels(rows)}

    def on_device(self, batch: Batch, generator: torch.Generator) -> Batch:
        from multicse.data.streams import device, preprocess

        image = batch["image"].flatten(0, 1).float() / 255
        image = device.color_jitter(image, generator, *self.jitter, probability=self.jitter_probability)
        image = device.random_grayscale(image, generator, probability=self.grayscale_probability)
        image = preprocess.normalise(image, self.mean, self.std)
        return batch.replace(image=image.view(batch["image"].shape))
