"""The endless stream of batches of a rank: the order of `data/order.py`, executed by Ray Data or in this process."""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from multicse.data.errors import DataError
from multicse.data.order import Window, mixed_windows, seed_of, windows
from multicse.data.shards import ShardSet
from multicse.data.streams.base import Batch, StreamConfig, Tokenize
from multicse.data.window import Chunk, ReaderLost, Skipped, WindowReader, batches

log = logging.getLogger(__name__)

OVERPLAN = 0.25  # share of additional samples in a plan, if the stream may skip that many
WINDOWS_PER_PLAN = 4096  # windows of a plan: each costs Ray some 0.7 ms before the first batch
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

    Args:
        config: Settings of the stream.
        name: Name of the stream in the recipe.
        shards: Samples that the stream reads.
        seed: Seed of the run.
        rank: Rank of the worker.
        world_size: Number of workers.
        tokenize: Function from texts to token tensors (N, L), for streams with texts.
        start: Ordinal in the endless stream of this rank from which it reads.
        batches: Number of batches, for the plan of Ray; reading more is an error.
        inline: Read in this process instead of through Ray Data.
        streams: Number of streams of the rank, which share the object store.
        device: Device of the batches. While a batch is used, the next one is copied to a GPU.
        step: Number of the first batch; the random numbers of a batch depend on (seed, stream, rank, number).
    """

    config: StreamConfig
    name: str
    shards: ShardSet
    seed: int
    rank: int
    world_size: int
    tokenize: Tokenize | None
    start: int
    batches: int
    inline: bool = False
    streams: int = 1
    device: torch.device = CPU
    step: int = 0
    position: int = 0
    """Ordinal after the last sample that was returned: the start of a resumed reader."""
    wait_seconds: float = 0.0
    """Total waiting time in seconds."""
    waiting_since: float | None = None
    """Value of `time.perf_counter` at the start of the current wait. If None, the reader does not wait."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of every skipped sample; callers may empty it, since `lost` counts all of them."""
    lost: int = 0
    """Number of skipped samples."""

    def __post_init__(self) -> None:
        self.position = self.start
        self._size = self.config.batch_size // self.world_size
        self._uploads = Uploads(self.device) if self.device.type == "cuda" else None
        self._source = self._prefetch(self._batches())

    def _batches(self) -> Iterator[tuple[Batch, int, list[tuple[str, str]]]]:
        """Yield each batch with the ordinal after it and the samples that were skipped before this ordinal."""
        for number, chunk in enumerate(islice(batches(self._chunks(), self._size), self.batches), self.step):
            # There may be millions of samples, and few reasons.
            skipped = [(item.key, sys.intern(item.reason)) for item in chunk.skipped]
            seed = seed_of(self.seed, self.name, self.rank, number) % 2**63
            draws = self.config.draws(len(chunk), torch.Generator().manual_seed(seed))
            tensors = {**self.config.collate(chunk.columns, self.tokenize), **draws}
            batch = Batch(tensors, chunk.columns["_key"].tolist())
            if self._uploads is not None:
                batch = self._uploads.pin(batch)
            yield batch, int(chunk.columns["_next"][-1]), skipped

    def _chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of plans of at most `WINDOWS_PER_PLAN`: Ray requires all tasks of a plan before the first batch.

        If more samples were skipped than a plan allows, the next plan assumes the share of good samples so far. All plans
        together end when the allowed share is lost. If the reading actor dies, a new one reads the rest.
        """
        reader = WindowReader(self.shards, self.config, self.name, self.seed, self._size, self.start)
        share, window, needed = self.config.max_skipped_share, self.config.window, self.batches * self._size
        start, good, more = self.start, 0, 1 + min(share, OVERPLAN)
        end = start + math.ceil(needed / (1 - share)) + window
        losses = 0
        while good < needed and start < end:
            plan = list(self._plan(start, min(int((needed - good) * more) + window, WINDOWS_PER_PLAN * window, end - start)))
            inline = (chunk for part in plan for chunk in reader.chunks(part, block_bytes=0))
            try:
                for chunk in inline if self.inline else self._through_ray(reader, plan):
                    good += len(chunk)
                    start, losses = chunk.end, 0
                    yield chunk
            except ReaderLost as error:
                losses += 1
                if losses > LOSSES:
                    raise
                log.warning("stream %s: %s; reading resumes after sample %d", self.name, error, start)
                continue
            start = plan[-1].start + len(plan[-1])
            more = (1 + OVERPLAN) * (start - self.start) / good if good else 2 * more

    def _through_ray(self, reader: WindowReader, plan: list[Window]) -> Iterator[Chunk]:
        import ray

        from multicse.data.executor import Limits, ray_chunks

        cpus = int(ray.cluster_resources().get("CPU", 1)) // self.world_size
        limits = Limits(
            cpus=self.config.cpus,
            read_ahead=self.config.read_ahead or cpus + 2,
            readers=cpus + 1,  # one more than the cores hides that Ray Data polls for finished tasks every 0.1 s
            store_share=STORE / (self.world_size * self.streams),
        )
        return ray_chunks(reader, plan, limits)

    def _plan(self, start: int, samples: int) -> Iterator[Window]:
        where: dict[str, Any] = {"seed": self.seed, "stream": self.name, "rank": self.rank, "world_size": self.world_size}
        what: dict[str, Any] = {"window": self.config.window, "start": start, "samples": samples}
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
        reader = WindowReader(self.shards, self.config, self.name, self.seed, self._size, self.start)
        items = reader.decoded(next(self._plan(self.position, self.config.window)))
        return next((f"{item.key}: {item.reason}" for item in items if isinstance(item, Skipped)), "a later one")

    def _check_share(self) -> None:
        # Relative to at least one epoch: one bad sample in the first batch of 64 is not a share of one in 64.
        seen = max(self.position - self.start, self.shards.samples // self.world_size)
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
