"""The endless stream of batches of a rank: the order of `data/order.py`, executed by Ray Data or in this process.

It is a chain of iterators: a plan of windows without an end, tasks of several windows, chunks of decoded samples, batches.
From the batches on, each value comes with the position in the stream after it, from which a resumed run reads on.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self

import torch

from multicse.data.errors import DataError
from multicse.data.order import Window, mixed_windows, seed_of, tasks, windows
from multicse.data.prefetch import Prefetch, pinned, uploaded
from multicse.data.shards import ShardSet
from multicse.data.streams.base import Batch, StreamConfig, Tokenize
from multicse.data.window import Chunk, ReaderLost, WindowReader, batches, distinct

log = logging.getLogger(__name__)

TASKS_PER_PLAN = 4096  # reading tasks that Ray gets at once: each costs it some 0.7 ms before the first batch
LOSSES = 3  # reading actors that may be lost in a row without a chunk in between
STORE = 0.5  # share of the object store that all streams of all ranks may fill
CPU = torch.device("cpu")


class Position(NamedTuple):
    """Position in a stream after a batch."""

    segments: dict[int, int]
    """Ordinal after the last sample, of each segment."""
    skipped: list[tuple[str, str]]
    """Key and reason of the samples that were skipped since the position before."""


@dataclass
class Reader:
    """Iterator over the batches of one stream for one rank, which measures its waiting time.

    The rank reads its share of the segments of the stream. Its batches are the rank's part of the global batches: all ranks
    in order give the same samples, with the same views, for every number of workers. It reads from its entry as a context
    manager to its exit.

    Args:
        config: Settings of the stream.
        name: Name of the stream in the recipe.
        shards: Samples that the stream reads.
        seed: Seed of the run.
        rank: Rank of the worker.
        world_size: Number of workers.
        tokenize: Function from texts to token tensors (N, L), for streams with texts.
        batches: Number of batches of the run, after which nothing is read ahead; reading more is an error.
        inline: Read in this process instead of through Ray Data.
        streams: Number of streams of the rank, which share the object store.
        device: Device of the batches. While a batch is used, the next one is copied to a GPU.
    """

    config: StreamConfig
    name: str
    shards: ShardSet
    seed: int
    rank: int
    world_size: int
    tokenize: Tokenize | None
    batches: int
    inline: bool = False
    streams: int = 1
    device: torch.device = CPU
    position: Mapping[int, int] = field(default_factory=dict)
    """Ordinal after the last sample that was returned, of each segment of this rank, 0 if there is none. Those of other
    segments are ignored."""
    number: int = 0
    """Number of the next batch; its random numbers depend on (seed, stream, segment, number)."""
    wait_seconds: float = 0.0
    """Total waiting time in seconds."""
    waiting_since: float | None = None
    """Value of `time.perf_counter` at the start of the current wait. If None, the reader does not wait."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of every skipped sample; callers may empty it."""

    def __post_init__(self) -> None:
        own = self.config.segments_per_worker(self.shards, self.world_size)
        self._count = own * self.world_size
        self.segments = range(self.rank * own, (self.rank + 1) * own)
        """Numbers of the segments of this rank."""
        self._share = self.config.batch_size // self._count
        self._window = math.ceil(self.config.window / self._count)
        self._task = math.ceil(self.config.window / own)
        self.position = {segment: self.position.get(segment, 0) for segment in self.segments}

    def state_dict(self) -> dict[str, Any]:
        """Return the arguments of a reader that continues after the last batch."""
        return {"number": self.number, "position": dict(self.position)}

    def __enter__(self) -> Self:
        self._reader = WindowReader(self.shards, self.config, self.name, self.seed, self._share, self.position)
        self._ahead = Prefetch(self._batches(self.number), f"stream-{self.name}")
        self._source = uploaded(self._ahead, self.device) if self.device.type == "cuda" else self._ahead
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._ahead.close()

    def __next__(self) -> Batch:
        began = self.waiting_since = time.perf_counter()
        batch, (self.position, skipped) = next(self._source)
        self.waiting_since = None
        self.wait_seconds += time.perf_counter() - began
        self.number += 1
        self.skipped += skipped
        return batch

    def on_device(self, batch: Batch) -> Batch:
        """Make the batched views of a batch of this reader."""
        return self.config.on_device(batch)

    def _batches(self, start: int) -> Generator[tuple[Batch, Position]]:
        """Yield the batches from number `start` on."""
        found = islice(batches(self._chunks(), self.segments, self._share), self.batches - start)
        for number, (chunk, ends) in enumerate(found, start):
            tensors = {**self.config.collate(chunk.columns, self.tokenize), **self._draws(number)}
            batch = Batch(tensors, chunk.columns["_key"].tolist())
            if self.device.type == "cuda":
                batch = pinned(batch, self.device)
            # There may be millions of samples, and few reasons.
            yield batch, Position(ends, [(item.key, sys.intern(item.reason)) for item in chunk.skipped])

    def _draws(self, number: int) -> dict[str, torch.Tensor]:
        """Return the random numbers for the views of a batch that are made on the device."""
        seeds = [seed_of(self.seed, self.name, segment, number) % 2**63 for segment in self.segments]
        parts = [self.config.draws(self._share, torch.Generator().manual_seed(seed)) for seed in seeds]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the stream; a reading actor that is lost is replaced.

        Skipped samples move the later ones to other batches than the order assumes. So a sample that comes a second time in
        one of these batches is left out, as if the epoch did not have it.
        """
        started: dict[int, set[str]] = {segment: set() for segment in self.segments}
        at, bad, idle, losses = dict(self._reader.start), 0, 0, 0
        while True:
            lost = Counter[int]()
            plan = tasks({segment: self._windows(segment, at[segment]) for segment in self.segments}, self._task, lost)
            try:
                for chunk in self._inline(plan) if self.inline else self._through_ray(plan):
                    at, losses, kept = at | chunk.ends, 0, chunk
                    if self.config.on_bad_sample == "skip":
                        kept = distinct(chunk, started, self._share)
                        lost += chunk.counts - kept.counts + Counter(item.segment for item in chunk.skipped)
                        bad, idle = bad + len(chunk.skipped), 0 if kept else idle + len(chunk) + len(chunk.skipped)
                        self._check(chunk, bad, sum(at.values()) - sum(self._reader.start.values()), idle)
                    yield kept
            except ReaderLost as error:
                losses += 1
                if losses > LOSSES:
                    raise
                log.warning("stream %s: %s; reading resumes after sample %s", self.name, error, at)

    def _inline(self, plan: Iterator[tuple[Window, ...]]) -> Iterator[Chunk]:
        return (chunk for task in plan for chunk in self._reader.chunks(task, block_bytes=0))

    def _through_ray(self, plan: Iterator[tuple[Window, ...]]) -> Iterator[Chunk]:
        import ray

        from multicse.data.executor import Limits, ray_chunks

        cpus = int(ray.cluster_resources().get("CPU", 1)) // self.world_size
        limits = Limits(
            cpus=self.config.cpus,
            read_ahead=self.config.read_ahead or cpus + 2,
            readers=cpus + 1,  # one more than the cores hides that Ray Data polls for finished tasks every 0.1 s
            store_share=STORE / (self.world_size * self.streams),
        )
        while True:  # only once, unless the run is long or samples are skipped
            left = math.ceil((self.batches - self.number) * self._share / self._task)
            yield from ray_chunks(self._reader, list(islice(plan, min(left, TASKS_PER_PLAN))), limits)

    def _windows(self, segment: int, start: int) -> Iterator[Window]:
        where: dict[str, Any] = {"seed": self.seed, "stream": self.name, "segment": segment, "segments": self._count}
        what: dict[str, Any] = {"window": self._window, "share": self._share, "start": start}
        if self.shards.parts:
            return mixed_windows(self.shards.counts, self.shards.parts, self.config.weights, **where, **what)
        return windows(self.shards.counts, **where, **what, shuffle=self.config.shuffle)

    def _check(self, chunk: Chunk, bad: int, read: int, idle: int) -> None:
        """Check what is left of the samples.

        Args:
            chunk: Chunk that was read.
            bad: Number of samples that were skipped.
            read: Number of samples that were read.
            idle: Number of samples since the last sample of a batch.
        """
        # Relative to at least one epoch: one bad sample in the first batch of 64 is not a share of one in 64.
        seen = max(read, self.shards.samples // self.world_size)
        if chunk.skipped and bad > self.config.max_skipped_share * seen:
            _, key, reason, _ = chunk.skipped[-1]
            raise DataError(
                f"stream {self.name!r}: {bad} of {seen} samples could not be used, more than "
                f"max_skipped_share={self.config.max_skipped_share:g}; the last was {key}: {reason}. "
                f"Repair the shards or raise streams.{self.name}.max_skipped_share."
            )
        if idle > self.shards.samples + self.config.window:
            raise DataError(
                f"stream {self.name!r}: one of its {self._count} segments has fewer than {self._share} samples that can be "
                f"used, so a batch would have one twice; {bad} samples were skipped. Repair the shards, or set "
                f"streams.{self.name}.batch_size or segments to a lower number."
            )
