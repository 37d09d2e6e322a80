"""A rank's endless stream of batches: the order of `data/order.py`, executed by Ray Data or in this process."""

from __future__ import annotations

import json
import math
import queue
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from data.batch import Batch
from data.errors import DataError
from data.order import Window, seed_of, windows
from data.shards import ShardSet
from data.streams.base import StreamConfig, Tokenize
from data.window import BLOCK_ROWS, Skipped, column_chunks, decoded, window_rows

SPARE = 0.25  # more samples than needed are planned, as far as a stream may skip that many
ROUND = 4096  # windows planned at once: each costs Ray some 0.7 ms before the first batch comes


def _ray_batches(
    plan: Iterator[Window], shards: ShardSet, config: StreamConfig, name: str, seed: int, size: int
) -> Iterator[dict[str, Any]]:
    """Ray Data executes the plan: one reading task per window, their blocks in the plan's order."""
    import ray
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    reference = ray.put(shards)

    def task(window: Window) -> ReadTask:
        def blocks() -> Iterator[Any]:
            for columns in column_chunks(window_rows(window, ray.get(reference), config, name, seed), BLOCK_ROWS):
                yield BlockAccessor.batch_to_block(columns)

        return ReadTask(
            blocks, BlockMetadata(num_rows=len(window.picks), size_bytes=None, exec_stats=None, input_files=None)
        )

    class Windows(Datasource):
        def get_name(self) -> str:
            return f"Stream({name})"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            return tasks

    tasks = [task(window) for window in plan]
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    dataset = ray.data.read_datasource(Windows(), override_num_blocks=len(tasks), num_cpus=config.cpus)
    yield from dataset.iter_batches(batch_size=size, batch_format="numpy", prefetch_batches=2, drop_last=True)


@dataclass
class Reader:
    """Batches of one stream for one rank, from a given position on, with what they cost to wait for.

    Args:
        config: the stream.
        name: its name in the recipe.
        shards: what it reads.
        seed: the run's seed.
        rank, world_size: which part of every pass is this reader's.
        tokenize: for text streams, texts -> token tensors (B, L).
        start: ordinal in this rank's endless stream to go on from.
        batches: how many batches will be asked for (a plan for Ray; more is an error).
        inline: read in this process instead of through Ray Data.
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
    position: int = 0
    """Ordinal after the last sample that was handed out: where a resumed reader starts."""
    wait_seconds: float = 0.0
    waiting_since: float | None = None
    """When it began to wait for the batch that it has not got yet, as `time.perf_counter` counts."""
    skipped: list[Skipped] = field(default_factory=list)
    """Key and reason of every sample that was left out; may be emptied, as `lost` counts them all."""
    lost: int = 0

    def __post_init__(self) -> None:
        self.position = self.start
        self._size = self.config.batch_size // self.world_size
        self._source = self._prefetched(self._batches())

    def _batches(self) -> Iterator[tuple[Batch, int, list[Skipped]]]:
        """Planned in rounds, since Ray wants all tasks of a plan before the first batch (`ROUND`). Where more samples were
        skipped than a round allows for, the next goes on behind the last batch, with as many as so far were needed for a
        good one. All rounds together end where the allowed share was lost.
        """
        share, window, size = self.config.max_skipped_share, self.config.window, self._size
        start, given, more = self.start, 0, 1 + min(share, SPARE)
        end = start + math.ceil(self.batches * size / (1 - share)) + window
        while True:
            wanted = min(int((self.batches - given) * size * more) + window, int(ROUND * window * more), end - start)
            last, before = start + wanted >= end, start
            for columns in self._read(self._plan(start, wanted)):
                if len(columns["_key"]) < self._size:
                    break  # what is left of a round: read again in the next
                # There may be millions, and few reasons.
                items = (item for text in columns["_skipped"] if text for item in json.loads(text))
                skipped = [(key, sys.intern(reason)) for key, reason in items]
                batch = Batch(self.config.collate(columns, self.tokenize), [str(key) for key in columns["_key"]])
                given, position = given + 1, int(columns["_next"][-1])
                yield batch, position, skipped
                start = position
            if given >= self.batches or last:
                return
            more = (1 + SPARE) * (start - self.start) / (given * size) if start > before else 2 * more

    def _read(self, plan: Iterator[Window]) -> Iterator[dict[str, Any]]:
        """Columns of the plan's good rows, a batch at a time."""
        if not self.inline:
            return _ray_batches(plan, self.shards, self.config, self.name, self.seed, self._size)
        rows = (row for window in plan for row in window_rows(window, self.shards, self.config, self.name, self.seed))
        return column_chunks(rows, self._size)

    def _plan(self, start: int, samples: int) -> Iterator[Window]:
        return windows(
            self.shards.counts,
            seed=self.seed,
            stream=self.name,
            rank=self.rank,
            world_size=self.world_size,
            window=self.config.window,
            start=start,
            samples=samples,
            shuffle=self.config.shuffle,
        )

    def _prefetched(self, source: Iterator[Any], depth: int = 2) -> Iterator[Any]:
        """Two batches ahead in a thread, so that tokenising and stacking overlap with the step."""
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

        self._thread = threading.Thread(target=work, name=f"stream-{self.name}", daemon=True)
        self._thread.start()
        while True:
            kind, value = waiting.get()
            if kind == "error":
                raise _cause(value)
            if kind == "end":
                return
            yield value

    def __next__(self) -> Batch:
        began = self.waiting_since = time.perf_counter()
        try:
            batch, position, skipped = next(self._source)
        except StopIteration:
            raise DataError(
                f"stream {self.name!r} ended before the run: more samples were skipped than its plan allows"
            ) from None
        self.waiting_since = None
        self.wait_seconds += time.perf_counter() - began
        if position - self.position > len(batch) + len(skipped):
            skipped += self._lost_windows(self.position, position)
        self.position = position
        if skipped:
            self.skipped += skipped
            self.lost += len(skipped)
            self._check_share()
        return batch

    def _lost_windows(self, start: int, end: int) -> list[Skipped]:
        """What was skipped in windows without one good row, which brought no row to say so: read once more."""
        lost: list[Skipped] = []
        for window in self._plan(start, end - start):
            items = list(decoded(window, self.shards, self.config, self.name, self.seed))
            bad = [item for item in items if isinstance(item, tuple)]
            lost += bad if len(bad) == len(items) else []
        return lost

    def _check_share(self) -> None:
        # Relative to at least a whole pass: one bad sample in the first batch is not a share of one in 64.
        seen = max(self.position - self.start, self.shards.samples // self.world_size)
        if self.lost > self.config.max_skipped_share * seen:
            key, reason = self.skipped[-1]
            raise DataError(
                f"stream {self.name!r}: {self.lost} of {seen} samples could not be used, more than "
                f"max_skipped_share={self.config.max_skipped_share:g}; the last was {key}: {reason}. "
                f"Repair the shards or raise streams.{self.name}.max_skipped_share."
            )

    def on_device(self, batch: Batch, device: torch.device, step: int) -> Batch:
        """The batch on `device` with its batched views; their randomness is (seed, stream, rank, step)."""
        generator = torch.Generator(device).manual_seed(seed_of(self.seed, self.name, self.rank, step) % 2**63)
        return self.config.on_device(batch.to(device), generator)

    def close(self) -> None:
        """Stop reading."""
        self._stop.set() if hasattr(self, "_stop") else None
        self._source.close()  # type: ignore[attr-defined]  # a generator, as above


def _cause(error: BaseException) -> BaseException:
    """The DataError that a Ray task raised, instead of Ray's wrapping of it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DataError):
            return DataError(str(seen)) if type(seen).__module__.startswith("ray") else seen
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error
