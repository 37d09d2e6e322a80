"""Pictures per second of a stream, inline and through Ray Data, against torch's DataLoader with the same decoding and views.

    python -m benchmarks.speed.streams [--samples 4096] [--batch 128] [--size 64]

The DataLoader has the raw bytes in memory; the streams read WebDataset shards. Times are those of the clock.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import ray
import torch
import tyro
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from data.order import seed_of
from data.shards import RawSample, ShardSet
from data.stream import Reader
from data.streams.image import ImageStream

PASSES = 5


def smooth_jpegs(count: int, size: int) -> list[dict[str, bytes]]:
    """Random pictures as cameras have them: no noise from pixel to pixel."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((size, size)).save(data, "JPEG")
        found.append({"jpg": data.getvalue(), "cls": b"0"})
    return found


class InMemory(Dataset[torch.Tensor]):
    """The pictures for a DataLoader, decoded and augmented by the stream's own function."""

    def __init__(self, config: ImageStream, pictures: list[dict[str, bytes]]) -> None:
        self.config, self.pictures = config, pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng(seed_of(0, "image", 0, index))
        return torch.from_numpy(self.config.row(RawSample("0", str(index), self.pictures[index]), rng)["image"])


def rate(batches: Iterator[Any], count: int, batch: int) -> float:
    """Pictures per second from the second batch on, over several passes, so that what was read ahead is a small part."""
    next(batches)
    began = time.perf_counter()
    for _ in range(count - 1):
        next(batches)
    return (count - 1) * batch / (time.perf_counter() - began)


def main(samples: int = 4096, batch: int = 128, size: int = 64) -> None:
    """Print a table."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    pictures, count = smooth_jpegs(samples, size), PASSES * samples // batch
    with tempfile.TemporaryDirectory() as place:
        for shard in range(4):
            with webdataset.TarWriter(f"{place}/bench-train-{shard:06d}.tar") as tar:
                for i, fields in enumerate(pictures[shard::4]):
                    tar.write({"__key__": f"{shard}{i:06d}", **fields})
        config = ImageStream(shards=place, batch_size=batch, size=size, window=512)
        rates: dict[str, float] = {}
        for workers in (0, 2):
            loader = DataLoader(InMemory(config, pictures), batch_size=batch, shuffle=True, num_workers=workers)
            rates[f"DataLoader, {workers} workers"] = rate(chain.from_iterable(repeat(loader, PASSES)), count, batch)
        shards = ShardSet.open(place)
        for name, inline in (("stream, inline", True), ("stream, Ray Data", False)):
            reader = Reader(config, "image", shards, 0, 0, 1, None, 0, count, inline)
            rates[name] = rate(iter(reader.__next__, None), count, batch)
            reader.close()
    base = rates["DataLoader, 0 workers"]
    print("| reader | pictures/s | ratio to the first |\n|---|---:|---:|")
    for name, value in rates.items():
        print(f"| {name} | {value:,.0f} | {value / base:.2f} |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
