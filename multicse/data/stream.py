"""The endless stream of batches of a rank: the order of `data/order.py`, executed by Ray Data or in this process."""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from multicse.data.errors import DataError
from multicse.data.order import Window, mixed_windows, seed_of, tasks, windows
from multicse.data.shards import ShardSet
from multicse.data.streams.base import Batch, StreamConfig, Tokenize
from multicse.data.window import Chunk, ReaderLost, Skipped, WindowReader, batches, distinct

log = logging.getLogger(__name__)

OVERPLAN = 0.25  # share of additional samples in a plan, if the stream may skip that many
TASKS_PER_PLAN = 4096  # reading tasks of a plan: each costs Ray some 0.7 ms before the first batch
LOSSES = 3  # reading actors that may be lost in a row without a chunk in between
STORE = 0.5  # share of the object store that all streams of all ranks may fill
JOIN_TIMEOUT = 5.0  # seconds that the thread of a reader has to finish its batch when the reader is closed
CPU = torch.device("cpu")


class Uploads:
    """Copies batches to a GPU on a separate CUDA stream, concurrently with the training step."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def pin(self, batch: Batch) -> Batch:
        """Return the batch in page-locked memory; the host would wait for a copy from other memory."""
        with torch.cuda.device(self._device):  # the default of a new thread is the first GPU of the machine
            return batch.pin_memory()

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Start to copy a pinned batch; return the batch on the device and the event that its copies are finished."""
        with torch.cuda.stream(self._stream):
            return batch.to(self._device), self._stream.record_event()

    def receive(self, batch: Batch, arrival: torch.cuda.Event) -> Batch:
        """Return a batch that was sent. Later work on the device waits for it, but the host does not."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(arrival)
        for tensor in batch.tensors.values():
            tensor.record_stream(current)  # a later copy must not reuse its memory before the work with it is finished
        return batch


@dataclass
class Reader:
    """Iterator over the batches of one stream for one rank, from a given position, which measures its waiting time.

    The rank reads its share of the segments of the stream. Its batches are the rank's part of the global batches: all ranks
    in order give the same samples, with the same views, for every number of workers.

    Args:
        config: Settings of the stream.
        name: Name of the stream in the recipe.
        shards: Samples that the stream reads.
        seed: Seed of the run.
        rank: Rank of the worker.
        world_size: Number of workers.
        tokenize: Function from texts to token tensors (N, L), for streams with texts.
        start: Ordinal in each segment from which it reads, by the number of the segment; 0 for segments without an entry.
            Segments of other ranks are ignored.
        batches: Number of batches, for the plan of Ray; reading more is an error.
        inline: Read in this process instead of through Ray Data.
        streams: Number of streams of the rank, which share the object store.
        device: Device of the batches. While a batch is used, the next one is copied to a GPU.
        step: Number of the first batch; the random numbers of a batch depend on (seed, stream, segment, number).
    """

    config: StreamConfig
    name: str
    shards: ShardSet
    seed: int
    rank: int
    world_size: int
    tokenize: Tokenize | None
    start: Mapping[int, int]
    batches: int
    inline: bool = False
    streams: int = 1
    device: torch.device = CPU
    step: int = 0
    position: Mapping[int, int] = field(default_factory=dict)
    """Ordinal after the last sample that was returned, of each segment of this rank: the start of a resumed reader."""
    wait_seconds: float = 0.0
    """Total waiting time in seconds."""
    waiting_since: float | None = None
    """Value of `time.perf_counter` at the start of the current wait. If None, the reader does not wait."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of every skipped sample; callers may empty it, since `lost` counts all of them."""
    lost: int = 0
    """Number of skipped samples."""

    def __post_init__(self) -> None:
        own = self.config.segments_per_worker(self.shards, self.world_size)
        self._count = own * self.world_size
        self.segments = range(self.rank * own, (self.rank + 1) * own)
        """Numbers of the segments of this rank."""
        self.start = self.position = {segment: self.start.get(segment, 0) for segment in self.segments}
        self._share = self.config.batch_size // self._count
        self._window = math.ceil(self.config.window / self._count)
        self._task = math.ceil(self.config.window / own)
        self._reader = WindowReader(self.shards, self.config, self.name, self.seed, self._share, self.start)
        self._uploads = Uploads(self.device) if self.device.type == "cuda" else None
        self._source = self._prefetch(self._batches())

    def _batches(self) -> Iterator[tuple[Batch, dict[int, int], list[tuple[str, str]]]]:
        """Yield each batch with the position after it and the samples that were skipped before this position."""
        found = batches(self._chunks(), self.segments, self._share)
        for number, chunk in enumerate(islice(found, self.batches), self.step):
            # There may be millions of samples, and few reasons.
            skipped = [(item.key, sys.intern(item.reason)) for item in chunk.skipped]
            tensors = {**self.config.collate(chunk.columns, self.tokenize), **self._draws(number)}
            batch = Batch(tensors, chunk.columns["_key"].tolist())
            if self._uploads is not None:
                batch = self._uploads.pin(batch)
            ends = chunk.columns["_next"][self._share - 1 :: self._share].tolist()
            yield batch, dict(zip(self.segments, ends, strict=True)), skipped

    def _draws(self, number: int) -> dict[str, torch.Tensor]:
        """Return the random numbers for the views of a batch that are made on the device."""
        seeds = [seed_of(self.seed, self.name, segment, number) % 2**63 for segment in self.segments]
        parts = [self.config.draws(self._share, torch.Generator().manual_seed(seed)) for seed in seeds]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of plans of at most `TASKS_PER_PLAN`: Ray requires all tasks of a plan before the first batch.

        If more samples were skipped than a plan allows, the next plan assumes the share of good samples so far, and reads
        only the segments without enough good samples. All plans together end when a segment has lost as many samples as
        all segments of the rank may lose.

        Skipped samples move the later ones to other batches than the order assumes. So a sample that comes a second time in
        one of these batches is left out, as if the epoch did not have it.
        """
        share, needed, skips = self.config.max_skipped_share, self.batches * self._share, self.config.on_bad_sample == "skip"
        ends = math.ceil(needed * share / (1 - share) * len(self.segments)) + needed + self._window
        if skips:  # each epoch may once leave out all its samples
            ends += needed + math.ceil(self.shards.samples / self._count)
        started: dict[int, set[str]] = {segment: set() for segment in self.segments}
        at, good, more, losses = dict(self.start), dict.fromkeys(self.segments, 0), 1 + min(share, OVERPLAN), 0
        while behind := [segment for segment in self.segments if good[segment] < needed]:
            missing, most = needed - min(good.values()), ends - min(at[s] - self.start[s] for s in behind)
            if most <= 0:
                return
            plan = list(self._plan(at, behind, min(int(missing * more) + self._window, TASKS_PER_PLAN * self._task, most)))
            inline = (chunk for task in plan for chunk in self._reader.chunks(task, block_bytes=0))
            try:
                for chunk in inline if self.inline else self._through_ray(plan):
                    at = at | chunk.ends
                    chunk = distinct(chunk, started, self._share) if skips and chunk else chunk
                    for segment, count in chunk.counts.items():
                        good[segment] += count
                    losses = 0
                    yield chunk
            except ReaderLost as error:
                losses += 1
                if losses > LOSSES:
                    raise
                log.warning("stream %s: %s; reading resumes after sample %s", self.name, error, at)
                continue
            read = sum(at[s] - self.start[s] for s in self.segments)
            more = (1 + OVERPLAN) * read / sum(good.values()) if any(good.values()) else 2 * more

    def _through_ray(self, plan: list[tuple[Window, ...]]) -> Iterator[Chunk]:
        import ray

        from multicse.data.executor import Limits, ray_chunks

        cpus = int(ray.cluster_resources().get("CPU", 1)) // self.world_size
        limits = Limits(
            cpus=self.config.cpus,
            read_ahead=self.config.read_ahead or cpus + 2,
            readers=cpus + 1,  # one more than the cores hides that Ray Data polls for finished tasks every 0.1 s
            store_share=STORE / (self.world_size * self.streams),
        )
        return ray_chunks(self._reader, plan, limits)

    def _plan(self, start: Mapping[int, int], segments: Sequence[int], samples: int) -> Iterator[tuple[Window, ...]]:
        """Plan the reading tasks of some segments, for at least this many samples of each."""
        return tasks([self._windows(segment, start[segment]) for segment in segments], self._task, samples)

    def _windows(self, segment: int, start: int) -> Iterator[Window]:
        where: dict[str, Any] = {"seed": self.seed, "stream": self.name, "segment": segment, "segments": self._count}
        what: dict[str, Any] = {"window": self._window, "share": self._share, "start": start}
        if self.shards.parts:
            return mixed_windows(self.shards.counts, self.shards.parts, self.config.weights, **where, **what)
        return windows(self.shards.counts, **where, **what, shuffle=self.config.shuffle)

    def _prefetch(self, source: Iterator[Any], depth: int = 2) -> Iterator[Any]:
        """Start a thread that reads `depth` batches ahead, so that tokenising and stacking overlap with other work."""
        waiting: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
        self._stop = threading.Event()

        def put(item: tuple[str, Any]) -> bool:
            while not self._stop.is_set():
                try:
                    waiting.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                for item in source:
                    if not put(("item", item)):
                        return
                put(("end", None))
            except BaseException as error:
                put(("error", error))
            finally:
                source.close()  # type: ignore[attr-defined]  # a generator: ends Ray's execution

        def get() -> tuple[str, Any]:
            kind, value = waiting.get()
            if kind == "item" and self._uploads is not None:
                batch, *rest = value
                value = self._uploads.send(batch), *rest
            return kind, value

        def items() -> Iterator[Any]:
            sent: tuple[str, Any] | None = None
            while True:
                kind, value = sent or get()
                if kind == "error":
                    raise _cause(value)
                if kind == "end":
                    return
                if self._uploads is not None:
                    batch, *rest = value
                    sent = None if waiting.empty() else get()  # the next batch; if it is an error, the next call raises it
                    value = self._uploads.receive(*batch), *rest
                yield value

        self._thread = threading.Thread(target=work, name=f"stream-{self.name}", daemon=True)
        self._thread.start()
        return items()

    def __next__(self) -> Batch:
        began = self.waiting_since = time.perf_counter()
        try:
            batch, position, skipped = next(self._source)
        except StopIteration:
            raise DataError(
                f"stream {self.name!r} ended before the run: more samples were skipped than its plan allows; the next is "
                f"{self._next_bad()}. Repair the shards."
            ) from None
        self.waiting_since = None
        self.wait_seconds += time.perf_counter() - began
        self.position = position
        if skipped:
            self.skipped += skipped
            self.lost += len(skipped)
            self._check_share()
        return batch

    def _next_bad(self) -> str:
        """Return the key of a bad sample after the last batch, and the reason."""
        items = self._reader.decoded(next(self._plan(self.position, self.segments, 1)))
        return next((f"{item.key}: {item.reason}" for item in items if isinstance(item, Skipped)), "a later one")

    def _check_share(self) -> None:
        # Relative to at least one epoch: one bad sample in the first batch of 64 is not a share of one in 64.
        seen = max(sum(self.position.values()) - sum(self.start.values()), self.shards.samples // self.world_size)
        if self.lost > self.config.max_skipped_share * seen:
            key, reason = self.skipped[-1]
            raise DataError(
                f"stream {self.name!r}: {self.lost} of {seen} samples could not be used, more than "
                f"max_skipped_share={self.config.max_skipped_share:g}; the last was {key}: {reason}. "
                f"Repair the shards or raise streams.{self.name}.max_skipped_share."
            )

    def on_device(self, batch: Batch) -> Batch:
        """Make the batched views of a batch of this reader."""
        return self.config.on_device(batch)

    def close(self) -> None:
        """Stop reading and wait for the thread: if it worked in torch when Python ends, it would abort the process."""
        self._stop.set()
        self._source.close()  # type: ignore[attr-defined]  # a generator, as above
        self._thread.join(JOIN_TIMEOUT)


def _cause(error: BaseException) -> BaseException:
    """Return the DataError that a Ray task raised, instead of Ray's error that contains it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DataError):
            return DataError(str(seen)) if type(seen).__module__.startswith("ray") else seen
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error
