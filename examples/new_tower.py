"""A stream and a tower of your own: captions that lose words, and BEiT (Bao et al., ICLR 2022) as the encoder of images."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from multicse.data.offline import OFFLINE
from multicse.data.shards import RawSample
from multicse.data.streams.base import Row
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import ImageTextStream
from multicse.models.tower import Modality, Tower, TowerConfig
from multicse.models.towers import CLSVision
from multicse.pipelines import parts
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.recipe import Recipe


class ShortCaptionStream(ImageTextStream):
    """Images with a caption that has lost some of its words: ``image`` (B, 1, 3, size, size) and tokens (B, 1, L)."""

    kind: Literal["short_captions"] = "short_captions"
    deletion: float = Field(0.2, ge=0, lt=1)
    """Probability that a word is deleted; at least one word stays."""

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the image and the shortened caption, in a reading task; all randomness is from `rng`."""
        row = super().row(sample, rng)
        words = row["text"].split()
        kept = [word for word in words if rng.random() >= self.deletion]
        return {**row, "text": " ".join(kept or words[:1])}


class BEiTTower(TowerConfig):
    """BEiT with random weights, pooled by the CLS token."""

    modality: ClassVar[Modality] = "image"

    kind: Literal["beit"] = "beit"
    input: ImageInput = ImageInput()
    width: int = Field(128, gt=0)
    """Dimension of the hidden states; a multiple of 32."""
    layers: int = Field(4, gt=0)
    """Number of transformer layers."""

    def config(self) -> Any:
        """Return the configuration of the network, of any model of transformers."""
        from transformers import BeitConfig

        return BeitConfig(
            image_size=self.input.size,
            patch_size=self.input.size // 8,
            hidden_size=self.width,
            intermediate_size=4 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.width // 32,
        )

    def wrap(self, model: Any) -> Tower:
        """Return the encoder of images; exports contain the network as a model of transformers."""
        return CLSVision(model, self.width, (3, self.input.size, self.input.size))


def demo() -> Recipe:
    """Train CLIP for minutes on a laptop, offline."""
    size = ImageInput(size=64)
    pairs = ShortCaptionStream(shards=f"{OFFLINE}/emoji-train", batch_size=64, input=size)
    return parts.demo_of_pairs("short-captions", CLIPConfig(tower=BEiTTower(input=size), embed_dim=128), pairs, "emoji")


def smoke() -> Recipe:
    """Train for eight steps, as tests do."""
    return parts.smoke(demo())


RECIPES = {"demo": demo, "smoke": smoke}
