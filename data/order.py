"""Which sample is read when: a pure function of (seed, stream, pass, rank, world size). No Ray, no files.

A pass visits every sample of a stream once. Its shards are permuted, laid end to end and cut into one contiguous segment
per rank; a rank reads its segment in windows of consecutive samples, each shuffled on its own. Passes follow each other
without a gap, so a rank sees one endless stream, and a position in it (an ordinal) says exactly where a run stands.
"""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import SupportsIndex

import numpy as np

from multicse.data.errors import DataError

Range = tuple[int, int, int]
"""Consecutive samples of one shard: shard, first index, index after the last."""


def seed_of(*parts: SupportsIndex | str) -> int:
    """A seed in [0, 2**64) that depends on every part, on their order and on their types: ``seed_of(1) != seed_of("1")``.

    The same on every machine and in every process (unlike `hash`): 64 bits of BLAKE2b over the parts' representations.
    """
    plain = [part if isinstance(part, str) else operator.index(part) for part in parts]  # numpy integers print otherwise
    return int.from_bytes(hashlib.blake2b(",".join(map(repr, plain)).encode(), digest_size=8).digest(), "big")


def permutation(n: int, seed: int) -> np.ndarray:
    """A random permutation of ``range(n)``: int64 (n,).

    Sorting raw random words, since numpy keeps its bit generators' streams across versions but not what
    `Generator.permutation` makes of them; and an order that changes with numpy could not be resumed.
    """
    return np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable")


@dataclass(frozen=True)
class Window:
    """Samples that are read and shuffled together.

    What is to be read is kept as ranges and a seed, so that the plan of a long run stays small; `sample_indices` unfolds it.
    """

    pass_: int
    """Pass of the stream, from 0."""
    number: int
    """Window of that pass, from 0."""
    start: int
    """Ordinal of the first pick in the rank's endless stream."""
    ranges: tuple[Range, ...]
    """What the complete window covers, in the order of the pass."""
    seed: int | None = None
    """Of the shuffle; none: file order."""
    skip: int = 0
    """Number of leading samples that are left out, because a resumed run has consumed them."""

    def __len__(self) -> int:
        return sum(stop - first for _, first, stop in self.ranges) - self.skip

    @property
    def sample_indices(self) -> tuple[tuple[int, int], ...]:
        """(shard, index in the shard) of every sample, in the order in which they are handed out."""
        shards = np.concatenate([np.full(stop - first, shard) for shard, first, stop in self.ranges])
        indexes = np.concatenate([np.arange(first, stop) for _, first, stop in self.ranges])
        order = np.arange(len(shards)) if self.seed is None else permutation(len(shards), self.seed)
        order = order[self.skip :]
        return tuple(zip(shards[order].tolist(), indexes[order].tolist(), strict=True))


def segment(total: int, rank: int, world_size: int) -> tuple[int, int]:
    """First sample of a rank's part of a pass and the sample after its last; sizes differ by at most one.

    Raises:
        DataError: there are fewer samples than ranks, so that some rank would wait for ever.
    """
    if total < world_size:
        raise DataError(
            f"{total} samples cannot feed {world_size} workers: give the stream at least {world_size} samples "
            f"or use at most {total} workers"
            if total
            else "the shards hold no samples; pack them again, or check the URLs"
        )
    return total * rank // world_size, total * (rank + 1) // world_size


def _epoch_shards(
    counts: Sequence[int], seed: int, stream: str, pass_: int, shuffle: bool
) -> tuple[Sequence[int], list[int]]:
    """Return the order in which a pass visits the shards, on which all ranks agree, and how many samples are before each."""
    order = permutation(len(counts), seed_of(seed, stream, "shards", pass_)).tolist() if shuffle else range(len(counts))
    return order, list(accumulate((counts[shard] for shard in order), initial=0))


def _between(order: Sequence[int], ends: list[int], low: int, high: int) -> list[Range]:
    """The samples `low` to `high` of a pass."""
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
    rank: int,
    world_size: int,
    window: int,
    start: int = 0,
    samples: int | None = None,
    shuffle: bool = True,
) -> Iterator[Window]:
    """A rank's endless stream, pass after pass, from ordinal `start` on; found in time that does not depend on `start`.

    Args:
        counts: samples of every shard.
        seed, stream: the run's seed and the stream's name; streams of one run have orders of their own.
        rank, world_size: which part of every pass.
        window: samples shuffled together; the last window of a pass may be smaller.
        start: ordinal of the first sample wanted (what a checkpoint remembers); samples before it are left out.
        samples: end with the window in which at least this many samples have been planned; none: never end.
        shuffle: off: shards and samples in file order.

    Raises:
        DataError: fewer samples than ranks.
    """
    begin, end = segment(sum(counts), rank, world_size)
    size, planned = end - begin, 0
    for pass_ in count(start // size):
        order, ends = _epoch_shards(counts, seed, stream, pass_, shuffle)
        first = max(0, start - pass_ * size) // window
        for number in range(first, -(-size // window)):
            if samples is not None and planned >= samples:
                return
            ranges = _between(order, ends, begin + number * window, min(begin + (number + 1) * window, end))
            ordinal = pass_ * size + number * window
            skip = max(0, start - ordinal)
            seed_here = seed_of(seed, stream, "window", pass_, rank, number) if shuffle else None
            made = Window(pass_, number, ordinal + skip, tuple(ranges), seed_here, skip)
            planned += len(made)
            yield made


class _EndlessSegment:
    """One set of a mixture as a rank reads it: its segment of pass after pass. A pass is laid out once."""

    def __init__(self, counts: Sequence[int], seed: int, stream: str, rank: int, world_size: int) -> None:
        self._begin, self._end = segment(sum(counts), rank, world_size)
        self._layout = lru_cache(2)(partial(_epoch_shards, counts, seed, stream, shuffle=True))

    def between(self, low: int, high: int) -> list[Range]:
        """The samples `low` to `high` of all passes."""
        ranges: list[Range] = []
        size = self._end - self._begin
        while low < high:
            pass_, inside = divmod(low, size)
            stop = min(high - low, size - inside) + inside
            ranges += _between(*self._layout(pass_), self._begin + inside, self._begin + stop)
            low += stop - inside
        return ranges


def mixed_windows(
    counts: Sequence[int],
    parts: Sequence[int],
    weights: Sequence[float],
    *,
    seed: int,
    stream: str,
    rank: int,
    world_size: int,
    window: int,
    start: int = 0,
    samples: int | None = None,
) -> Iterator[Window]:
    """The same of several sets of shards, each of which gives its share of every window.

    Every set has passes of its own, one after the other, so a small one of large weight comes round more often; `pass_`
    of a window is its number, so that what comes again is another view.

    Args:
        parts: of each set the number of its shards, which follow each other in `counts`.
        weights: of each set; only their ratios count.
    """
    begins = list(accumulate(parts, initial=0))
    sets = [
        _EndlessSegment(counts[begin : begin + size], seed, f"{stream}/{part}", rank, world_size)
        for part, (begin, size) in enumerate(zip(begins, parts, strict=False))
    ]
    total, largest = sum(weights), max(range(len(weights)), key=weights.__getitem__)

    def taken(number: int) -> list[int]:
        """Samples of each set in all windows before; roundings are the largest one's."""
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
        seed_here = seed_of(seed, stream, "window", 0, rank, number)
        yield Window(number, number, number * window + skip, tuple(ranges), seed_here, skip)
        planned += window - skip
