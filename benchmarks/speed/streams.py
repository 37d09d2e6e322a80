"""Samples per second of a stream, through Ray Data and in this process, against torch's DataLoader and webdataset.

    python -m benchmarks.speed.streams [--kinds small photographs sounds] [--seconds 1.5] [--rounds 3]

All read the same shards, decode and augment with the same functions, and have the same two cores. Every round begins anew
and is timed by the clock from its second batch on. Processor time and memory are those of all processes together.
"""

from __future__ import annotations

import io
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import ray
import soundfile
import torch
import tyro
import webdataset
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

from benchmarks.timer import ratio, show
from data.order import seed_of, windows
from data.shards import RawSample, ShardSet, index_of, read
from data.stream import Reader
from data.streams import decode
from data.streams.audio import AudioStream
from data.streams.base import StreamConfig
from data.streams.image import ImageStream
from data.window import Chunk, WindowReader, columns_of
from trainers.engine.cluster import own_token

Kind = Literal["small", "photographs", "sounds"]
TITLES: dict[Kind, str] = {
    "small": "64-pixel JPEG -> two crops of 64, batches of 128",
    "photographs": "500 x 375 JPEG -> two crops of 224, batches of 32",
    "sounds": "10 s of FLAC at 16 kHz -> waveform, batches of 32",
}
TARGETS: tuple[tuple[str, str, float, tuple[Kind, ...]], ...] = (
    ("Ray Data", "DataLoader, 2 workers", 0.9, ("small", "photographs", "sounds")),
    ("Ray Data", "webdataset, 2 workers", 1.0, ("photographs",)),
    ("in process", "DataLoader, 0 workers", 1.0, ("small", "photographs", "sounds")),
)
Side = Callable[[int], Iterator[Any]]
"""So many batches."""


def fields_of(kind: Kind, rng: np.random.Generator) -> dict[str, bytes]:
    """A made sample whose spectrum falls as that of photographs and natural sounds does (amplitude 1 / frequency)."""
    data = io.BytesIO()
    if kind == "sounds":
        noise = np.fft.rfft(rng.standard_normal(160_000))
        wave = np.fft.irfft(noise / np.arange(1, len(noise) + 1))
        soundfile.write(data, 0.5 * wave / np.abs(wave).max(), 16_000, format="FLAC")
        return {"flac": data.getvalue(), "cls": b"0"}
    width, height = (64, 64) if kind == "small" else (500, 375)
    far = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)) + 1 / width
    noise = np.fft.rfft2(rng.standard_normal((3, height, width))) / far
    noise[1:] = 0.7 * noise[0] + 0.3 * noise[1:]  # colours go together
    planes = np.fft.irfft2(noise, (height, width))
    pixels = np.clip(128 + 50 * planes / planes.std(), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    Image.fromarray(pixels).save(data, "JPEG", quality=90)
    return {"jpg": data.getvalue(), "cls": b"0"}


def config_of(kind: Kind, folder: Path) -> StreamConfig:
    """Write 4 shards; how they are streamed."""
    rng, count = np.random.default_rng(0), 2048 if kind == "small" else 256
    for shard in range(4):
        with webdataset.TarWriter(str(folder / f"bench-train-{shard:06d}.tar")) as tar:
            for number in range(count // 4):
                tar.write({"__key__": f"{shard}{number:06d}", **fields_of(kind, rng)})
    if kind == "sounds":
        return AudioStream(shards=str(folder), batch_size=32, window=128)
    if kind == "small":
        return ImageStream(shards=str(folder), batch_size=128, size=64)
    return ImageStream(shards=str(folder), batch_size=32, size=224, window=128)  # a turn is several windows of every reader


class InShards(Dataset[dict[str, Any]]):
    """The samples by number, decoded and augmented by the stream's own function."""

    def __init__(self, config: StreamConfig, shards: ShardSet) -> None:
        self.config = config
        self.places = [(shard.url, members) for shard in shards.shards for members in index_of(shard.url).members]
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


def processes() -> list[psutil.Process]:
    """This one and those it started, and they."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def total(value: Callable[[psutil.Process], float]) -> float:
    """Sum over all processes that are still there."""
    found = 0.0
    for process in processes():
        with suppress(psutil.Error):
            found += value(process)
    return found


def seconds_of(side: Side, count: int) -> tuple[float, float]:
    """Seconds from the first batch to the last of `count`: by the clock, and of processor time of all processes."""
    batches = side(count)
    next(batches)
    worked, began = total(lambda process: sum(process.cpu_times()[:4])), time.perf_counter()
    for _ in range(count - 1):
        next(batches)
    took = time.perf_counter() - began
    return took, total(lambda process: sum(process.cpu_times()[:4])) - worked


def peak_mb(call: Callable[[], object]) -> float:
    """Peak megabytes of all processes during a call; shared pages are counted once."""
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, total(lambda process: process.memory_full_info().pss / 2**20))

    thread = threading.Thread(target=watch)
    thread.start()
    call()
    done.set()
    thread.join()
    return peak


def where_it_goes(config: StreamConfig, shards: ShardSet) -> None:
    """Print the milliseconds of every stage of a batch, one after the other in this process."""
    reader = WindowReader(shards, config, "bench", 0, config.batch_size, 0)
    plan = next(windows(shards.counts, seed=0, stream="bench", rank=0, world_size=1, window=config.batch_size))
    seen: dict[str, float] = {}
    began = time.perf_counter()

    def stage(name: str) -> None:
        nonlocal began
        seen[name] = seen.get(name, 0.0) + time.perf_counter() - began
        began = time.perf_counter()

    samples = [sample for shard, first, stop in plan.ranges for sample in read(shards.shards[shard], range(first, stop))]
    stage("read")
    for sample in samples:
        assert isinstance(sample, RawSample)
        rng = np.random.default_rng(seed_of(0, "bench", 0, sample.shard, sample.key))
        stage("seed")
        if "flac" in sample.fields:
            decode.audio(sample.fields["flac"], "flac", rate=16_000, key=sample.key)
        else:
            decode.image(sample.fields["jpg"], key=sample.key)
        stage("decode")
        config.row(sample, rng)
        stage("decode and views")
    seen["views"] = seen.pop("decode and views") - seen["decode"]
    rows = [row for row in reader.decoded(plan) if isinstance(row, dict)]
    began = time.perf_counter()
    chunk = Chunk(columns_of(rows), [])
    stage("stack")
    reference = ray.put(chunk.to_block())
    stage("serialise")
    chunk = Chunk.from_block(ray.get(reference))
    stage("fetch")
    config.collate(chunk.columns, None)
    stage("collate")
    parts = ", ".join(f"{name} {1e3 * part:.1f} ({part / sum(seen.values()):.0%})" for name, part in seen.items())
    print(f"\nWhere it goes, ms of a batch: {parts}")


def main(kinds: tuple[Kind, ...] = ("small", "photographs", "sounds"), seconds: float = 1.5, rounds: int = 3) -> None:
    """Print tables. `seconds`: of every turn of every side, roughly."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    found: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as place:
        raced: dict[Kind, tuple[StreamConfig, ShardSet, dict[str, Side]]] = {}
        memory: dict[Kind, dict[str, float]] = {}
        counts: dict[Kind, int] = {}
        for kind in kinds:
            folder = Path(place, kind)
            folder.mkdir()
            config = config_of(kind, folder)
            raced[kind] = config, config.open(), sides_of(config, config.open())
            plain = raced[kind][2]["DataLoader, 0 workers"]
            counts[kind] = 1 + max(8, round(1.5 * seconds / (seconds_of(plain, 5)[0] / 4)))
        for with_ray in (False, True):  # whose processes are there from then on
            if with_ray:
                own_token()
                ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            for kind, (_, _, sides) in raced.items():
                for name in [name for name in sides if (name == "Ray Data") == with_ray]:
                    memory.setdefault(kind, {})[name] = peak_mb(lambda: seconds_of(sides[name], counts[kind] // 2))  # noqa: B023
        for kind, (config, shards, sides) in raced.items():
            took: dict[str, list[float]] = {name: [] for name in sides}
            worked: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(rounds):
                for name in list(sides)[:: -1 if turn % 2 else 1]:
                    clock, processor = seconds_of(sides[name], counts[kind])
                    took[name].append(clock)
                    worked[name].append(processor)
            samples = (counts[kind] - 1) * config.batch_size
            show(TITLES[kind], took, samples, ours="Ray Data")
            print("\n| of all processes | CPU s per 1,000 samples | peak MB |\n|---|---:|---:|")
            for name in sides:
                print(f"| {name} | {1000 * statistics.median(worked[name]) / samples:.2f} | {memory[kind][name]:,.0f} |")
            where_it_goes(config, shards)
            for ours, theirs, target, wanted in TARGETS:
                if kind in wanted:
                    found.append((f"{kind}: {ours} to {theirs}", ratio(took[theirs], took[ours]), target))
    print("\n| speed | ratio | target | |\n|---|---:|---:|---|")
    for name, value, target in found:
        print(f"| {name} | {value:.2f} | {target:.2f} | {'reached' if value >= target else 'not reached'} |")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
