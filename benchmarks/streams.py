"""Images per second of a stream through Ray Data and inline, against torch's DataLoader with the same decoding and views.

    python benchmarks/streams.py [--samples 4096] [--batch 128]

The same JPEG shards, the same function per sample, one run; what counts are the ratios.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from data.order import seed_of
from data.shards import BadSample, ShardSet, read
from data.stream import Reader
from data.streams.image import ImageStream

PASSES = 5


@dataclass
class Arguments:
    """How much is read."""

    samples: int = 4096
    batch: int = 128
    size: int = 64


def write_shards(folder: Path, samples: int, size: int) -> None:
    """Four shards of smooth random JPEGs."""
    rng = np.random.default_rng(0)
    for shard in range(4):
        with tarfile.open(folder / f"bench-train-{shard:06d}.tar", "w") as tar:
            for i in range(samples // 4):
                picture = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((size, size))
                data = io.BytesIO()
                picture.save(data, "JPEG")
                for name, payload in ((f"{i:06d}.jpg", data.getvalue()), (f"{i:06d}.cls", b"0")):
                    info = tarfile.TarInfo(name)
                    info.size = len(payload)
                    tar.addfile(info, io.BytesIO(payload))


class Files(Dataset[torch.Tensor]):
    """The shards for a DataLoader: raw bytes in memory, decoded and augmented per item."""

    def __init__(self, config: ImageStream) -> None:
        self.config = config
        shards = ShardSet.open(config.shards)
        found = (sample for shard in shards.shards for sample in read(shard, range(shard.samples)))
        self.samples = [sample for sample in found if not isinstance(sample, BadSample)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        rng = np.random.default_rng(seed_of(0, "image", 0, index))
        return torch.from_numpy(self.config.row(self.samples[index], rng)["image"])


def rate(batches: Iterator[Any], count: int, batch: int) -> float:
    """Images per second from the second batch on."""
    next(batches)
    began = time.perf_counter()
    for _ in range(count - 1):
        next(batches)
    return (count - 1) * batch / (time.perf_counter() - began)


def batches_of(reader: Reader) -> Iterator[Any]:
    """The reader's batches, without end."""
    while True:
        yield next(reader)


def main(a: Arguments) -> None:
    """Print a table."""
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as place:
        write_shards(Path(place), a.samples, a.size)
        config = ImageStream(shards=place, batch_size=a.batch, size=a.size, window=512)
        count = a.samples // a.batch
        results: dict[str, float] = {}
        for workers in (0, 2):
            loader = DataLoader(Files(config), batch_size=a.batch, shuffle=True, num_workers=workers)
            results[f"DataLoader, {workers} workers"] = rate(
                chain.from_iterable(repeat(loader, PASSES)), PASSES * count, a.batch
            )
        shards = ShardSet.open(place)
        for inline in (True, False):
            reader = Reader(config, "image", shards, 0, 0, 1, None, 0, PASSES * count, inline)
            # Over several passes from the first batch on, so that what Ray read ahead by then is a small part.
            results["stream, inline" if inline else "stream, Ray Data"] = rate(batches_of(reader), PASSES * count, a.batch)
            reader.close()
    base = results["DataLoader, 0 workers"]
    print("| reader | images/s | ratio |\n|---|---|---|")
    for name, value in results.items():
        print(f"| {name} | {value:,.0f} | {value / base:.2f} |")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
