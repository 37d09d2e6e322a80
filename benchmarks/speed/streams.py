"""Samples per second of a stream, through Ray Data and in this process, against torch's DataLoader and webdataset.

    python -m benchmarks.speed.streams [--kinds small photographs sounds] [--seconds 6] [--rounds 3]

All read the same shards, decode and augment with the same functions, and have the same two cores. Every round begins anew.
The clock runs from two windows behind the start to two before the end, so that readers may work ahead at both its ends. How
far they are ahead is not measured: it decides short turns (0.5 seconds gave Ray twice the rate that two cores can have), so
take the default or more. What works in one process is compared by its processor time. Memory is that of all processes.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
import soundfile
import torch
import tyro
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.timer import Target, clock, ratios, show, watched
from multicse.data.shards import RawSample, ShardSet, index_of
from multicse.data.stream import Reader
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.trainers.engine.cluster import own_ray

Kind = Literal["small", "photographs", "sounds"]
TITLES: dict[Kind, str] = {
    "small": "64-pixel JPEG -> two crops of 64, batches of 128",
    "photographs": "500 x 375 JPEG -> two crops of 224, batches of 32",
    "sounds": "10 s of FLAC at 16 kHz -> waveform, batches of 32",
}
TARGETS: dict[str, dict[str, tuple[float, tuple[Kind, ...]]]] = {
    "in process": {"DataLoader, 0 workers": (1.0, ("small", "photographs", "sounds"))},
    "Ray Data": {
        "DataLoader, 2 workers": (0.9, ("small", "photographs", "sounds")),
        "webdataset, 2 workers": (1.0, ("photographs",)),
    },
}
"""Of ours over theirs, for these kinds. What works in one process comes first, since Ray's processes stay."""
Side = Callable[[int], Iterator[Any]]
"""So many batches."""


def fields_of(kind: Kind, rng: np.random.Generator) -> dict[str, bytes]:
    """A made sample whose spectrum falls as that of photographs and natural sounds does (amplitude 1 / frequency), with a
    caption and a class."""
    data, rest = io.BytesIO(), {"txt": b"Two dogs run through the high grass.", "cls": b"0"}
    if kind == "sounds":
        noise = np.fft.rfft(rng.standard_normal(160_000))
        wave = np.fft.irfft(noise / np.arange(1, len(noise) + 1))
        soundfile.write(data, 0.5 * wave / np.abs(wave).max(), 16_000, format="FLAC")
        return {"flac": data.getvalue(), **rest}
    width, height = (64, 64) if kind == "small" else (500, 375)
    far = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)) + 1 / width
    noise = np.fft.rfft2(rng.standard_normal((3, height, width))) / far
    noise[1:] = 0.7 * noise[0] + 0.3 * noise[1:]  # colours go together
    planes = np.fft.irfft2(noise, (height, width))
    pixels = np.clip(128 + 50 * planes / planes.std(), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    Image.fromarray(pixels).save(data, "JPEG", quality=90)
    return {"jpg": data.getvalue(), **rest}


def write(kind: Kind, folder: Path, count: int) -> None:
    """So many made samples in 4 shards."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(4):
        with webdataset.TarWriter(str(folder / f"bench-train-{shard:06d}.tar")) as tar:
            for number in range(count // 4):
                tar.write({"__key__": f"{shard}{number:06d}", **fields_of(kind, rng)})


def config_of(kind: Kind, folder: Path) -> StreamConfig:
    """Write shards; how they are streamed."""
    write(kind, folder, 2048 if kind == "small" else 256)
    if kind == "sounds":
        return AudioStream(shards=str(folder), batch_size=32, window=128)
    if kind == "small":
        return ImageStream(shards=str(folder), batch_size=128, size=64)
    return ImageStream(shards=str(folder), batch_size=32, size=224, window=128)  # a turn is several windows of every reader


class InShards(Dataset[dict[str, Any]]):
    """The samples by number, decoded and augmented by the stream's own function."""

    def __init__(self, config: StreamConfig, shards: ShardSet) -> None:
        self.config = config
        self.places = [(shard.url, members) for shard in shards.shards for members in index_of(shard.url, "").members]
        self.rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.rng = self.rng or np.random.default_rng(torch.initial_seed())  # one in every worker
        url, members = self.places[number]
        with open(url, "rb") as file:
            fields = {name: os.pread(file.fileno(), size, offset) for name, offset, size in members}
        return self.config.row(RawSample(str(number), url, fields), self.rng)

    def from_webdataset(self, sample: dict[str, Any]) -> dict[str, Any]:
        """The same of a sample that webdataset has read."""
        self.rng = self.rng or np.random.default_rng(torch.initial_seed())
        fields = {name: data for name, data in sample.items() if not name.startswith("__")}
        return self.config.row(RawSample(sample["__key__"], "", fields), self.rng)


def sides_of(config: StreamConfig, shards: ShardSet) -> dict[str, Side]:
    dataset, batch = InShards(config, shards), config.batch_size

    def ours(inline: bool) -> Side:
        def side(count: int) -> Iterator[Any]:
            reader = Reader(config, "bench", shards, 0, 0, 1, None, 0, count, inline)
            try:
                for _ in range(count):
                    yield next(reader)
            finally:
                reader.close()

        return side

    def loader(workers: int) -> Side:
        def side(count: int) -> Iterator[Any]:
            order = RandomSampler(dataset, num_samples=count * batch)
            return iter(DataLoader(dataset, batch, sampler=order, num_workers=workers))

        return side

    def theirs(count: int) -> Iterator[Any]:
        urls = [shard.url for shard in shards.shards]
        samples = webdataset.WebDataset(urls, shardshuffle=len(urls)).repeat().shuffle(config.window)
        return iter(DataLoader(samples.map(dataset.from_webdataset), batch, num_workers=2))

    return {
        "in process": ours(inline=True),
        "DataLoader, 0 workers": loader(0),
        "DataLoader, 2 workers": loader(2),
        "webdataset, 2 workers": theirs,
        "Ray Data": ours(inline=False),
    }


def seconds_of(side: Side, count: int, lead: int) -> tuple[float, float]:
    """Seconds of `count` batches behind the first `lead`, with as many to come: by the clock, and of this process."""
    batches = side(lead + count + lead)
    for _ in range(lead):
        next(batches)
    began, busy = clock(wall=True), clock()
    for _ in range(count):
        next(batches)
    return clock(wall=True) - began, clock() - busy


def main(kinds: tuple[Kind, ...] = ("small", "photographs", "sounds"), seconds: float = 6.0, rounds: int = 3) -> None:
    """Print tables. `seconds`: of every turn of every side, roughly."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    # With workers forked from a process with Ray's threads DataLoader has hung, waiting for a batch that never came.
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(
        ["torch", "webdataset", "multicse.data.streams.audio", "multicse.data.streams.image"]
    )
    with tempfile.TemporaryDirectory() as place:
        configs = {kind: config_of(kind, Path(place, kind)) for kind in kinds}
        shards = {kind: config.open() for kind, config in configs.items()}
        sides = {kind: sides_of(configs[kind], shards[kind]) for kind in kinds}
        leads = {kind: 2 * config.window // config.batch_size for kind, config in configs.items()}
        one = {kind: seconds_of(sides[kind]["DataLoader, 0 workers"], 4, 1)[0] / 4 for kind in kinds}
        for ours, others in TARGETS.items():
            alone = ours == "in process"  # and so is what it is compared with
            turns, length = (3 * rounds, seconds / 2) if alone else (rounds, 1.5 * seconds)
            counts = {kind: lead * max(1, round(length / one[kind] / lead)) for kind, lead in leads.items()}
            memory: dict[Kind, dict[str, float]] = {kind: {} for kind in kinds}
            for name in (*others, ours):
                if name == "Ray Data":  # the last, since its processes are there from then on
                    own_ray()
                    ray.init(
                        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
                    )
                for kind in kinds:
                    with watched() as peak:
                        seconds_of(sides[kind][name], leads[kind], leads[kind])
                    memory[kind][name] = peak[0]
            for kind in kinds:
                took: dict[str, list[float]] = {name: [] for name in (ours, *others)}
                for turn in range(turns):
                    for name in list(took)[:: -1 if turn % 2 else 1]:
                        took[name].append(seconds_of(sides[kind][name], counts[kind], leads[kind])[alone])
                show(TITLES[kind], took, counts[kind] * configs[kind].batch_size, ours)
                for theirs, (least, wanted) in others.items():
                    if kind in wanted:
                        Target(
                            area="streams",
                            what=f"{kind}: {ours} / {theirs}, samples per second{' of the processor' if alone else ''}",
                            at_least=least,
                            measured=ratios(took[theirs], took[ours]),
                            peak_mb={side: memory[kind][side] for side in (ours, theirs)},
                        ).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
