"""Reading and decoding of the samples of a window, in Ray's reading tasks. It avoids torch, whose import takes seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from multicse.data.errors import DataError
from multicse.data.order import Window, seed_of
from multicse.data.remote import StoreError
from multicse.data.shards import BadSample, RawSample, ShardSet, read
from multicse.data.streams.base import Row, StreamConfig
from multicse.data.tables import READ_AT_ONCE

BLOCK_BYTES = 2**24  # bytes of a block: small enough to stream, large enough to hide Ray's cost per block


class ReaderLost(Exception):
    """The process that reads for a stream has died; another process can read the rest."""


class Skipped(NamedTuple):
    """A sample that was left out."""

    ordinal: int
    """Position in the endless stream of the rank."""
    key: str
    reason: str


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples of a stream: the good ones as columns, and the samples that were skipped around them."""

    columns: dict[str, np.ndarray]
    """Columns (N, ...) of the samples, with the key ``_key`` and the ordinal after the sample ``_next``. Empty if N is 0."""
    skipped: list[Skipped]

    def __len__(self) -> int:
        return len(self.columns["_key"]) if self.columns else 0

    @property
    def end(self) -> int:
        """Ordinal after the last sample, good or skipped."""
        good = [int(self.columns["_next"][-1])] if self.columns else []
        return max([*good, *(item.ordinal + 1 for item in self.skipped[-1:])])

    def split(self, size: int) -> tuple[Chunk, Chunk]:
        """Split after the first `size` good samples and the samples that were skipped before the last of them, by views."""
        end = self.columns["_next"][size - 1]
        return (
            Chunk({n: c[:size] for n, c in self.columns.items()}, [item for item in self.skipped if item.ordinal < end]),
            Chunk({n: c[size:] for n, c in self.columns.items()}, [item for item in self.skipped if item.ordinal >= end]),
        )

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
    """View of an Arrow buffer, from which numpy makes an array without a copy.

    The array is writable, as torch requires: nothing else reads the block.
    """

    def __init__(self, buffer: pa.Buffer, dtype: str, shape: Sequence[int]) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"data": (buffer.address, False), "typestr": dtype, "shape": tuple(shape), "version": 3}


def batches(chunks: Iterable[Chunk], size: int) -> Iterator[Chunk]:
    """Yield the same samples as chunks of `size` good ones. They are copied only if a batch spans several chunks."""
    held: list[Chunk] = []
    missing = size
    for chunk in chunks:
        while len(chunk) >= missing:
            last, chunk = chunk.split(missing)
            held.append(last)
            columns = last.columns
            if len(parts := [part.columns for part in held if len(part)]) > 1:
                columns = {name: np.concatenate([part[name] for part in parts]) for name in columns}
            yield Chunk(columns, [item for part in held for item in part.skipped])
            held, missing = [], size
        held.append(chunk)
        missing -= len(chunk)


class WindowReader(NamedTuple):
    """Reader and decoder of the samples of windows."""

    shards: ShardSet
    config: StreamConfig
    name: str
    seed: int
    size: int
    """Number of samples of a batch."""
    start: int
    """Ordinal of the first sample of the first batch."""

    def alone(self, window: Window) -> tuple[WindowReader, Window]:
        """Return a reader that contains only the shards of a window, and the window with their new numbers, for a task."""
        used = sorted({shard for shard, _, _ in window.ranges})
        shards = replace(self.shards, shards=tuple(self.shards.shards[shard] for shard in used), first=None, parts=())
        ranges = tuple((used.index(shard), first, stop) for shard, first, stop in window.ranges)
        return self._replace(shards=shards), replace(window, ranges=ranges)

    def chunks(self, window: Window, block_bytes: int = BLOCK_BYTES) -> Iterator[Chunk]:
        """Yield the samples of a window in chunks of at most `block_bytes`, but of at least one batch.

        Unless samples are skipped, chunks consist of complete batches, except at the ends of the window.
        """
        before = (window.start - self.start) % self.size  # samples of the batch in which the window starts
        skipped: list[Skipped] = []
        rows = self._good(window, skipped)
        for row in rows:
            batch = self.size * sum(np.asarray(value).nbytes for value in row.values())
            room = self.size * max(1, block_bytes // batch) - before
            left = window.start + len(window) + 1 - row["_next"]
            yield Chunk(columns_of(chain([row], rows), min(room, left)), skipped.copy())
            skipped.clear()
            before = 0
        if skipped:
            yield Chunk({}, skipped)

    def _good(self, window: Window, skipped: list[Skipped]) -> Iterator[Row]:
        """Yield the rows of a window; samples that are skipped before a row are appended to `skipped` first."""
        for item in self.decoded(window):
            if isinstance(item, Skipped):
                skipped.append(item)
            else:
                yield item

    def decoded(self, window: Window) -> Iterator[Row | Skipped]:
        """Yield every sample of a window in its order: a decoded row, or for ``on_bad_sample="skip"`` the reason to skip it.

        Raises:
            DataError: If a sample is bad and `on_bad_sample` is "raise".
        """
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for place, (shard, index) in enumerate(window.sample_indices):
            by_shard.setdefault(shard, []).append((index, place))
        raw: list[Any] = [None] * len(window)
        for shard, wanted in by_shard.items():
            wanted.sort()
            found = read(self.shards.shards[shard], [index for index, _ in wanted], READ_AT_ONCE)
            for (_, place), sample in zip(wanted, found, strict=True):
                raw[place] = sample
        seeds = [seed_of(self.seed, self.name, window.epoch, sample.shard, sample.key) for sample in raw]
        for (place, sample), rng in zip(enumerate(raw), generators(seeds), strict=True):
            raw[place] = None  # images are large, decoded as well as encoded
            ordinal, label = window.start + place, f"{sample.shard}/{sample.key}"
            try:
                if isinstance(sample, BadSample):
                    raise DataError(sample.reason)
                row = self._row(sample, rng) | {"_key": label, "_next": ordinal + 1}
            except StoreError:
                raise
            except DataError as error:
                if self.config.on_bad_sample == "raise":
                    raise DataError(
                        f"stream {self.name!r}, sample {label}: {error}. Repair or remove the sample, or set "
                        f"streams.{self.name}.on_bad_sample to 'skip' to leave out and count such samples."
                    ) from error
                yield Skipped(ordinal, label, str(error))
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
    """Stack rows to columns.

    Arrays are copied to their place one by one, while they are in the processor's cache.

    Args:
        rows: Rows with equal names.
        most: Largest number of rows that are taken.

    Returns:
        Columns by name, each (N, ...).

    Raises:
        DataError: If the arrays of a name have different shapes.
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
