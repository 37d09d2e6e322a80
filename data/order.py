"""The order of the samples of a stream: a pure function of (seed, stream, epoch, segment, segments), without Ray or files.

In each epoch the shards are permuted, concatenated and cut into contiguous segments. Each segment is read in windows of
consecutive samples, each shuffled separately, epoch after epoch: an endless stream. The position in each of these streams
(an ordinal) is all that is needed to resume a run.

Every batch contains equally many samples of each segment, segment after segment, and each worker reads an equal number of
consecutive segments. So all numbers of workers that divide the number of segments train on the same global batches.
"""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import SupportsIndex

import numpy as np

Range = tuple[int, int, int]
"""Consecutive samples of one shard: number of the shard, first index, index after the last."""


def seed_of(*parts: SupportsIndex | str) -> int:
    """Hash parts to 64 bits that depend on their values, types and order, equal on every machine and in every process."""
    plain = [part if isinstance(part, str) else operator.index(part) for part in parts]  # numpy integers print otherwise
    return int.from_bytes(hashlib.blake2b(",".join(map(repr, plain)).encode(), digest_size=8).digest(), "big")


def permutation(n: int, seed: int) -> np.ndarray:
    """Return a random permutation of ``range(n)``, int64 (n,), for a seed of at least 0.

    It sorts raw random words, because numpy keeps the output of its bit generators across versions, but not the output of
    `Generator.permutation`. An order that changes with the version of numpy could not be resumed.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable")


@dataclass(frozen=True)
class Window:
    """Samples that are read and shuffled together: ranges and a seed, so that the plan of a long run stays small."""

    epoch: int
    """Epoch of the stream, from 0."""
    number: int
    """Number of the window in its epoch, from 0."""
    start: int
    """Ordinal of the first sample in the endless stream of the segment."""
    ranges: tuple[Range, ...]
    """Samples of the complete window, in the order of the epoch."""
    seed: int | None = None
    """Seed of the shuffle. If None, the samples are in file order."""
    skip: int = 0
    """Number of leading samples that are left out, because a resumed run has consumed them."""
    segment: int = 0
    """Number of the segment."""

    def __len__(self) -> int:
        return sum(stop - first for _, first, stop in self.ranges) - self.skip

    @property
    def sample_indices(self) -> tuple[tuple[int, int], ...]:
        """Shard and index in the shard of every sample, in the order of reading."""
        shards = np.concatenate([np.full(stop - first, shard) for shard, first, stop in self.ranges])
        indexes = np.concatenate([np.arange(first, stop) for _, first, stop in self.ranges])
        order = np.arange(len(shards)) if self.seed is None else permutation(len(shards), self.seed)
        order = order[self.skip :]
        return tuple(zip(shards[order].tolist(), indexes[order].tolist(), strict=True))


def segment_count(segments: int, batch_size: int, samples: int) -> int:
    """Return the largest divisor of `segments` that also divides `batch_size` and does not exceed `samples`; at least 1.

    Args:
        segments: Largest number of segments.
        batch_size: Number of samples of a global batch.
        samples: Number of samples of the stream, of its smallest set if it mixes several.
    """
    common = math.gcd(segments, batch_size)
    return max(count for count in range(1, common + 1) if common % count == 0 and count <= max(1, samples))


def bounds(total: int, segment: int, segments: int) -> tuple[int, int]:
    """Return the first sample of a segment, and the sample after its last one, as positions in the order of an epoch."""
    return total * segment // segments, total * (segment + 1) // segments


def _epoch_shards(
    counts: Sequence[int], seed: int, stream: str, epoch: int, shuffle: bool
) -> tuple[Sequence[int], list[int]]:
    """Return the order of the shards in an epoch, equal for all segments, and the number of samples before each of them."""
    order = permutation(len(counts), seed_of(seed, stream, "shards", epoch)).tolist() if shuffle else range(len(counts))
    return order, list(accumulate((counts[shard] for shard in order), initial=0))


def _between(order: Sequence[int], ends: list[int], low: int, high: int) -> list[Range]:
    """Return the ranges of the samples `low` to `high` of an epoch."""
    ranges: list[Range] = []
    place = bisect_right(ends, low) - 1
    while low < high:
        stop = min(high, ends[place + 1])
        if stop > low:  # an empty shard has no range
            ranges.append((order[place], low - ends[place], stop - ends[place]))
        low, place = stop, place + 1
    return ranges


def windows(
    counts: Sequence[int],
    *,
    seed: int,
    stream: str,
    segment: int,
    segments: int,
    window: int,
    start: int = 0,
    samples: int | None = None,
    shuffle: bool = True,
) -> Iterator[Window]:
    """Plan the endless stream of a segment, epoch after epoch, from ordinal `start`.

    Args:
        counts: Number of samples of every shard.
        seed: Seed of the run.
        stream: Name of the stream; the streams of a run have different orders.
        segment: Number of the segment.
        segments: Number of segments.
        window: Number of samples that are shuffled together; the last window of an epoch may be smaller.
        start: Ordinal of the first sample, as saved in a checkpoint.
        samples: Stop after the window with which at least this many samples are planned. If None, never stop.
        shuffle: If False, shards and samples are in file order.
    """
    begin, end = bounds(sum(counts), segment, segments)
    size, planned = end - begin, 0
    for epoch in count(start // size):
        order, ends = _epoch_shards(counts, seed, stream, epoch, shuffle)
        first = max(0, start - epoch * size) // window
        for number in range(first, -(-size // window)):
            if samples is not None and planned >= samples:
                return
            ranges = _between(order, ends, begin + number * window, min(begin + (number + 1) * window, end))
            ordinal = epoch * size + number * window
            skip = max(0, start - ordinal)
            seed_here = seed_of(seed, stream, "window", epoch, segment, number) if shuffle else None
            made = Window(epoch, number, ordinal + skip, tuple(ranges), seed_here, skip, segment)
            planned += len(made)
            yield made


class _EndlessSegment:
    """A segment of one set of a mixture, epoch after epoch. The layout of an epoch is cached."""

    def __init__(self, counts: Sequence[int], seed: int, stream: str, segment: int, segments: int) -> None:
        self._begin, self._end = bounds(sum(counts), segment, segments)
        self._layout = lru_cache(2)(partial(_epoch_shards, counts, seed, stream, shuffle=True))

    def between(self, low: int, high: int) -> list[Range]:
        """Return the ranges of the samples `low` to `high` of all epochs."""
        ranges: list[Range] = []
        size = self._end - self._begin
        while low < high:
            epoch, inside = divmod(low, size)
            stop = min(high - low, size - inside) + inside
            ranges += _between(*self._layout(epoch), self._begin + inside, self._begin + stop)
            low += stop - inside
        return ranges


def mixed_windows(
    counts: Sequence[int],
    parts: Sequence[int],
    weights: Sequence[float],
    *,
    seed: int,
    stream: str,
    segment: int,
    segments: int,
    window: int,
    start: int = 0,
    samples: int | None = None,
) -> Iterator[Window]:
    """Plan the endless stream of a segment from several sets of shards, with a fixed share of each set in every window.

    Every set has its own epochs, so a small set with a large weight is repeated more often. `Window.epoch` is the number of
    the window, so that repeated samples get new views. A set has `parts` consecutive shards of `counts` and one of the
    `weights` (only the ratios matter); the other arguments equal `windows`'s.
    """
    begins = list(accumulate(parts, initial=0))
    sets = [
        _EndlessSegment(counts[begin : begin + size], seed, f"{stream}/{part}", segment, segments)
        for part, (begin, size) in enumerate(zip(begins, parts, strict=False))
    ]
    total, largest = sum(weights), max(range(len(weights)), key=weights.__getitem__)

    def taken(number: int) -> list[int]:
        """Return the number of samples of each set in all windows before; rounding goes to the largest set."""
        shares = [0 if part == largest else int(weight / total * number * window) for part, weight in enumerate(weights)]
        shares[largest] = number * window - sum(shares)
        return shares

    planned = 0
    for number in count(start // window):
        if samples is not None and planned >= samples:
            return
        ranges: list[Range] = []
        for part, (low, high) in enumerate(zip(taken(number), taken(number + 1), strict=True)):
            ranges += [(shard + begins[part], first, last) for shard, first, last in sets[part].between(low, high)]
        skip = max(0, start - number * window)
        seed_here = seed_of(seed, stream, "window", 0, segment, number)
        yield Window(number, number, number * window + skip, tuple(ranges), seed_here, skip, segment)
        planned += window - skip


def tasks(plans: Sequence[Iterator[Window]], size: int, samples: int) -> Iterator[tuple[Window, ...]]:
    """Combine the plans of several segments to reading tasks; after each task all segments are planned equally far.

    Args:
        plans: Endless plan of each segment.
        size: Number of samples of each segment in a task, up to complete windows.
        samples: Stop when at least this many samples of each segment are planned.
    """
    planned = [0] * len(plans)
    for target in range(size, samples + size, size):
        task: list[Window] = []
        for place, plan in enumerate(plans):
            while planned[place] < target:
                task.append(next(plan))
                planned[place] += len(task[-1])
        if task:
            yield tuple(task)
