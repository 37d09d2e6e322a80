"""Reading and decoding of the samples of windows, in Ray's reading tasks. It avoids torch, whose import takes seconds."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from multicse.data.errors import DataError
from multicse.data.order import Window, seed_of
from multicse.data.remote import StoreError
from multicse.data.shards import BadSample, RawSample, ShardSet, read
from multicse.data.streams.base import Row, StreamConfig

BLOCK_BYTES = 2**24  # bytes of a block: small enough to stream, large enough to hide Ray's cost per block


class ReaderLost(Exception):
    """The process that reads for a stream has died; another process can read the rest."""


class Skipped(NamedTuple):
    """A sample that was left out."""

    ordinal: int
    """Position in the endless stream of the segment."""
    key: str
    reason: str
    segment: int = 0
    """Number of the segment."""


@dataclass(frozen=True)
class Chunk:
    """Samples in the order of reading: the good ones as columns, and the samples that were skipped around them."""

    columns: dict[str, np.ndarray]
    """Columns (N, ...) of the samples, with the key ``_key``, the segment ``_segment`` and the ordinal after the sample
    ``_next``. Empty if N is 0."""
    skipped: list[Skipped]

    def __len__(self) -> int:
        return len(self.columns["_key"]) if self.columns else 0

    @property
    def counts(self) -> Counter[int]:
        """Number of good samples of each segment of the chunk."""
        return Counter(self.columns["_segment"].tolist() if self.columns else ())

    @property
    def ends(self) -> dict[int, int]:
        """Ordinal after the last sample, good or skipped, of each segment of the chunk."""
        found = [(item.segment, item.ordinal + 1) for item in self.skipped]
        if self.columns:
            found += zip(self.columns["_segment"].tolist(), self.columns["_next"].tolist(), strict=True)
        return dict(sorted(found))

    def to_block(self) -> pa.Table:
        """Return a table of one row, which Ray does not split: the bytes of all columns (not copied), types and shapes."""
        about = {name: (column.dtype.str, column.shape) for name, column in self.columns.items()}
        cells = {}
        for name, column in self.columns.items():
            ends = pa.py_buffer(np.array([0, column.nbytes]))
            cells[name] = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(column)])
        return pa.table({"": [json.dumps([about, self.skipped])], **cells})

    @classmethod
    def from_block(cls, block: pa.Table) -> Chunk:
        """Return the chunk of a block of `to_block`. Its arrays are views of the block in Ray's store and keep it alive."""
        about, skipped = json.loads(block[""][0].as_py())
        columns = {
            name: np.asarray(_ArrowView(block[name].chunk(0).buffers()[2], dtype, shape))
            for name, (dtype, shape) in about.items()
        }
        return cls(columns, [Skipped(*item) for item in skipped])


class _ArrowView:
    """Writable view of an Arrow buffer, from which numpy makes an array without a copy."""

    def __init__(self, buffer: pa.Buffer, dtype: str, shape: Sequence[int]) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"data": (buffer.address, False), "typestr": dtype, "shape": tuple(shape), "version": 3}


def batches(chunks: Iterable[Chunk], segments: Sequence[int], share: int) -> Iterator[tuple[Chunk, dict[int, int]]]:
    """Yield batches of `share` good samples of each segment, segment after segment, and the ordinals after these samples.

    Each contains the samples that were skipped before the last sample of their segment in it. Samples are copied only if
    a batch's samples are not consecutive in one chunk.

    Args:
        chunks: Chunks, in which the samples of a segment are in order.
        segments: Numbers of the segments.
        share: Number of samples of each segment in a batch.
    """
    runs: dict[int, deque[_Run]] = {segment: deque() for segment in segments}
    ready = dict.fromkeys(segments, 0)
    skipped: list[Skipped] = []
    for chunk in chunks:
        skipped += chunk.skipped
        first = 0
        for segment, rows in groupby(chunk.columns["_segment"].tolist() if chunk.columns else ()):
            stop = first + len(list(rows))
            runs[segment].append(_Run(chunk, first, stop))
            ready[segment] += stop - first
            first = stop
        while min(ready.values()) >= share:
            taken: list[_Run] = []
            for segment in segments:
                _take(runs[segment], share, taken)
                ready[segment] -= share
            parts = [{name: c[first:stop] for name, c in part.columns.items()} for part, first, stop in taken]
            columns = parts[0]
            if len(parts) > 1:
                columns = {name: np.concatenate([part[name] for part in parts]) for name in columns}
            ends = dict(zip(segments, columns["_next"][share - 1 :: share].tolist(), strict=True))
            yield Chunk(columns, [item for item in skipped if item.ordinal < ends[item.segment]]), ends
            skipped = [item for item in skipped if item.ordinal >= ends[item.segment]]


class _Run(NamedTuple):
    """Consecutive samples of one segment in a chunk."""

    chunk: Chunk
    first: int
    stop: int


def _take(runs: deque[_Run], samples: int, taken: list[_Run]) -> None:
    """Move the first samples of a segment to the end of `taken`, and join neighbouring runs."""
    while samples:
        chunk, first, stop = runs.popleft()
        if stop - first > samples:
            runs.appendleft(_Run(chunk, first + samples, stop))
            stop = first + samples
        samples -= stop - first
        if taken and taken[-1].chunk is chunk and taken[-1].stop == first:
            first = taken.pop().first
        taken.append(_Run(chunk, first, stop))


def distinct(chunk: Chunk, started: Mapping[int, set[str]], share: int) -> Chunk:
    """Return the chunk without the samples that their batch of `batches` would contain a second time.

    Args:
        chunk: Samples after those of the previous calls.
        started: Keys of the samples of each segment in its started batch, which this updates.
        share: Number of samples of each segment in a batch.
    """
    if not chunk:
        return chunk
    columns = chunk.columns
    keep = np.ones(len(chunk), bool)
    for row, (segment, key) in enumerate(zip(columns["_segment"].tolist(), columns["_key"].tolist(), strict=True)):
        keep[row] = key not in started[segment]
        started[segment].add(key)
        if len(started[segment]) == share:
            started[segment].clear()
    if keep.all():
        return chunk
    return Chunk({name: column[keep] for name, column in columns.items() if keep.any()}, chunk.skipped)


class WindowReader(NamedTuple):
    """Reader and decoder of the samples of windows."""

    shards: ShardSet
    config: StreamConfig
    name: str
    seed: int
    share: int
    """Number of samples of each segment in a batch."""
    start: Mapping[int, int]
    """Ordinal of the first sample of the first batch in each segment."""

    def alone(self, task: Sequence[Window]) -> tuple[WindowReader, Sequence[Window]]:
        """Return a reader that contains only the shards of a task, and the windows with their new numbers."""
        used = sorted({shard for window in task for shard, _, _ in window.ranges})
        number = {shard: place for place, shard in enumerate(used)}
        shards = replace(self.shards, shards=tuple(self.shards.shards[shard] for shard in used), first=None, parts=())
        ranges = [tuple((number[shard], first, stop) for shard, first, stop in window.ranges) for window in task]
        return self._replace(shards=shards), [replace(w, ranges=new) for w, new in zip(task, ranges, strict=True)]

    def chunks(self, task: Sequence[Window], block_bytes: int = BLOCK_BYTES) -> Iterator[Chunk]:
        """Yield the samples of a task, batch after batch, in chunks of at most `block_bytes`, but of at least one batch.

        Unless samples are skipped, chunks consist of complete batches, except at the ends of the task.
        """
        numbers = np.sort(np.concatenate([self._batch_numbers(window) for window in task]))
        skipped: list[Skipped] = []
        rows = self._good(task, skipped)
        for row in rows:
            number = (row["_next"] - 1 - self.start[row["_segment"]]) // self.share
            batch = self.share * len(self.start) * sum(np.asarray(value).nbytes for value in row.values())
            first, stop = np.searchsorted(numbers, [number, number + max(1, block_bytes // batch)])
            yield Chunk(columns_of(chain([row], rows), int(stop - first)), skipped.copy())
            skipped.clear()
        if skipped:
            yield Chunk({}, skipped)

    def _batch_numbers(self, window: Window) -> np.ndarray:
        """Return the number of the batch of every sample of a window if no sample is skipped, (N,)."""
        return (np.arange(len(window)) + window.start - self.start[window.segment]) // self.share

    def _good(self, task: Sequence[Window], skipped: list[Skipped]) -> Iterator[Row]:
        """Yield the rows of a task; samples that are skipped before a row are appended to `skipped` first."""
        for item in self.decoded(task):
            if isinstance(item, Skipped):
                skipped.append(item)
            else:
                yield item

    def decoded(self, task: Sequence[Window]) -> Iterator[Row | Skipped]:
        """Yield every sample of a task: a decoded row, or for ``on_bad_sample="skip"`` the reason to skip it.

        The samples are in the order of their batches, and within a batch in the order of the segments.
        """
        places = sorted(
            (number, window.segment, ordinal := window.start + place, window.epoch_of(ordinal), *pick)
            for window in task
            for place, (number, pick) in enumerate(
                zip(self._batch_numbers(window).tolist(), window.sample_indices, strict=True)
            )
        )
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for place, (*_, shard, index) in enumerate(places):
            by_shard.setdefault(shard, []).append((index, place))
        raw: list[Any] = [None] * len(places)
        for shard, wanted in by_shard.items():
            wanted.sort()
            found = read(self.shards.shards[shard], [index for index, _ in wanted])
            for (_, place), sample in zip(wanted, found, strict=True):
                raw[place] = sample
        seeds = [
            seed_of(self.seed, self.name, epoch, sample.shard, sample.key)
            for (_, _, _, epoch, *_), sample in zip(places, raw, strict=True)
        ]
        for (place, sample), rng in zip(enumerate(raw), generators(seeds), strict=True):
            raw[place] = None  # images are large, decoded as well as encoded
            (_, segment, ordinal, *_), label = places[place], f"{sample.shard}/{sample.key}"
            try:
                if isinstance(sample, BadSample):
                    raise DataError(sample.reason)
                row = self._row(sample, rng) | {"_key": label, "_next": ordinal + 1, "_segment": segment}
            except StoreError:
                raise
            except DataError as error:
                if self.config.on_bad_sample == "raise":
                    raise DataError(
                        f"stream {self.name!r}, sample {label}: {error}. Repair or remove the sample, or set "
                        f"streams.{self.name}.on_bad_sample to 'skip' to leave out and count such samples."
                    ) from error
                yield Skipped(ordinal, label, str(error), segment)
                continue
            yield row

    def _row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the row of a sample, alone or mixed with another sample of the whole set."""
        number = self.config.mixup_index(self.shards.samples, rng) if self.config.mixes else None
        if number is None:
            return self.config.row(sample, rng)
        other = self.shards.sample(number)
        if isinstance(other, BadSample):
            raise DataError(f"its partner {other.shard}/{other.key}: {other.reason}")
        return self.config.mixed(sample, other, rng)


def columns_of(rows: Iterable[Row], most: int) -> dict[str, np.ndarray]:
    """Stack at most the first `most` rows, which have equal names, to columns (N, ...).

    Arrays are copied to their place one by one, while they are in the processor's cache.
    """
    columns: dict[str, Any] = {}
    count = 0
    for count, row in enumerate(islice(rows, most), 1):
        if not columns:
            arrays = {name for name, value in row.items() if isinstance(value, np.ndarray)}
            columns = {n: np.empty((most, *v.shape), v.dtype) if n in arrays else [] for n, v in row.items()}
        for name, value in row.items():
            if name in arrays:
                if value.shape != columns[name].shape[1:]:  # numpy could broadcast it
                    raise DataError(f"{name}: a view of shape {value.shape} among views of {columns[name].shape[1:]}")
                columns[name][count - 1] = value
            else:
                columns[name].append(value)
    return {name: column[:count] if name in arrays else np.array(column) for name, column in columns.items()}


def generators(seeds: Iterable[int]) -> Iterator[np.random.Generator]:
    """Yield a generator for each seed (0 to 2**64 - 1); its draws depend on the seed alone.

    All are one generator whose key changes, which is ten times as fast as a new one: use each before you take the next.
    """
    bits = np.random.Philox(key=0)
    fresh: Any = bits.state
    generator = np.random.Generator(bits)
    for seed in seeds:
        fresh["state"]["key"][0] = seed
        bits.state = fresh
        yield generator
