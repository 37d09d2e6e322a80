"""Augmentation: two random views of a picture against decoding alone; colours on the device, in batch, against kornia; and
log-mel spectrograms against transformers' feature extractor.

    python -m benchmarks.speed.views [--source 32] [--size 64] [--batch 96] [--rounds 15]
"""

from __future__ import annotations

import io

import kornia.augmentation as K
import numpy as np
import torch
import tyro
from PIL import Image
from transformers import ASTFeatureExtractor

from benchmarks.timer import device, race, show
from data.streams import decode, views
from data.streams import device as photometric
from data.streams.image import ImageStream
from data.streams.preprocess import log_mel, normalise, samples_for


def main(source: int = 32, size: int = 64, batch: int = 96, rounds: int = 15) -> None:
    """Print three tables. `source` and `size` are sides of a stored picture and of a view, in pixels."""
    on = device()
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    stored = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (source, source, 3), np.uint8)).save(stored, "PNG")
    data = stored.getvalue()

    def crops() -> None:
        for _ in range(batch):
            views.image_views(decode.image(data, "a"), 2, size=size, rng=rng)

    sides = {"ours": crops, "decoding alone": lambda: [decode.image(data, "a") for _ in range(batch)]}
    show(f"PNG of {source} px to 2 random crops of {size}, one picture after the other", race(sides, rounds), batch)

    image = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=on)
    mean, std = (ImageStream.model_fields[name].default for name in ("mean", "std"))
    theirs = torch.nn.Sequential(
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(torch.tensor(mean), torch.tensor(std)),
    ).to(on)

    def ours() -> torch.Tensor:
        changed = photometric.color_jitter(image.float() / 255, generator)
        return normalise(photometric.random_grayscale(changed, generator), mean, std)

    with torch.no_grad():
        took = race({"ours": ours, "kornia": lambda: theirs(image.float() / 255)}, rounds)
    show(f"jitter, gray, normalise: {batch} x 3 x {size} x {size} on {on}", took, batch)

    wave = torch.randint(-9999, 9999, (16, 1, samples_for(16_000, 1024)), dtype=torch.int16, device=on)
    single = [row[0].float().cpu().numpy() / 2**15 for row in wave]
    extract = ASTFeatureExtractor()
    took = race(
        {
            "ours": lambda: log_mel(wave, rate=16_000, bins=128, frames=1024),
            "ASTFeatureExtractor": lambda: extract(single, sampling_rate=16_000),
        },
        rounds,
    )
    show(f"log-mel: 16 clips of 1,024 frames and 128 bins on {on}", took, 16)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
