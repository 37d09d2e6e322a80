"""The order of the samples of a stream: a pure function of (seed, stream, epoch, segment) and sizes, without Ray or files.

Once per run, the shards are permuted, concatenated and cut into contiguous segments, so a segment has the same samples in
every epoch. In each epoch its pieces of shards are permuted and read in windows of consecutive samples, each shuffled
separately, epoch after epoch: an endless stream. The position in each of these streams (an ordinal) is all that is needed
to resume a run.

Every batch contains equally many samples of each segment (a share), segment after segment, and each worker reads an equal
number of consecutive segments. So all numbers of workers that divide the number of segments train on the same global
batches.

Example: two ranks read ten samples in two shards, a (6) and b (4), with seed 0 and the settings ``batch_size=4``,
``segments=8`` and ``window=8``. A comma separates windows, a slash separates epochs, and a gap separates the ranks::

    shards    b        b0 b1 b2 b3
              a        a0 a1 a2 a3 a4 a5
    segments  0        b0 b1
              1        b2 b3 a0
              2        a1 a2
              3        a3 a4 a5
    windows   0        b1 b0 / b1 b0
              1        a0 b2, b3 / b3 b2, a0
              2        a2 a1 / a2 a1
              3        a3 a4, a5 / a4 a3, a5
    task 0    rank 0   segment 0: b1 b0 / b1 b0
                       segment 1: a0 b2, b3 / b3 b2
              rank 1   segment 2: a2 a1 / a2 a1
                       segment 3: a3 a4, a5 / a4 a3
    block 0   rank 0   b1 a0 b0 b2 b1 b3 b0 b3 b2
              rank 1   a2 a3 a1 a4 a2 a5 a1 a4 a3
    batches   0        b1 a0   a2 a3
              1        b0 b2   a1 a4
              2        b1 b3   a2 a5
              3        b0 b3   a1 a4
    position  after 2  3 3   3 3

- The *shards* are permuted and cut into 4 *segments*: 8 does not divide a batch of 4. Each segment gives every batch a share
  of one sample. Rank 0 reads segments 0 and 1, rank 1 reads segments 2 and 3.
- A *window* contains 8 / 4 samples of a segment, the last of an epoch fewer. Segment 1 consists of a piece of each shard;
  they change places in epoch 1.
- A *task* contains the windows that are read together: 8 / 2 samples of each segment of the rank, up to complete windows.
- A *block* contains samples of a task in the order of their batches (here all, at most 16 MB). The b2 at the end belongs to
  batch 4, whose sample of segment 0 is in task 1. `data/window.py` calls a block a chunk until Arrow contains it.
- A *batch* has four samples. With one rank or four, the global batches are equal.
- The *position* counts the samples of each segment in all epochs. From it, one, two or four ranks resume with batch 3. The
  b3 in batch 2 is of epoch 0 and the b3 in batch 3 of epoch 1, so their views are different.

No batch contains a sample twice, as its own negative. Segments have no sample in common, so only the batch in which an
epoch of a segment ends and the next one begins needs care: it has the last samples of the one and the first samples of the
other. Those of the first that are among the last change places with the next samples that are not. This moves samples only
within the first share of an epoch, so the end of an epoch of two or more shares does not depend on the epoch before. In a
smaller segment it does, back to the last epoch that began with a batch.
"""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, count
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
    """Epoch of the stream, from 0; the number of the window, if it mixes several sets."""
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
    swaps: tuple[tuple[int, int], ...] = ()
    """Places in the shuffled window whose samples change places."""
    share: int = 0
    """Number of samples of a batch, if the window mixes several sets: the same samples go to different batches. Else 0."""

    def __len__(self) -> int:
        return sum(stop - first for _, first, stop in self.ranges) - self.skip

    def epoch_of(self, ordinal: int) -> int:
        """Return the number that seeds the views of a sample of the window; it differs where a sample returns."""
        return ordinal // self.share if self.share else self.epoch

    @property
    def sample_indices(self) -> tuple[tuple[int, int], ...]:
        """Shard and index in the shard of every sample, in the order of reading."""
        shards = np.concatenate([np.full(stop - first, shard) for shard, first, stop in self.ranges])
        indexes = np.concatenate([np.arange(first, stop) for _, first, stop in self.ranges])
        order = np.arange(len(shards)) if self.seed is None else permutation(len(shards), self.seed)
        if self.share:
            # Like cards: the shuffled samples, the same ones one after the other, are dealt to the batches in turn.
            samples = (shards * (indexes.max() + 1) + indexes)[order]
            _, first, same = np.unique(samples, return_index=True, return_inverse=True)
            order = order[np.argsort(first[same], kind="stable")].reshape(self.share, -1).T.ravel()
        for one, other in self.swaps:
            order[[one, other]] = order[[other, one]]
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


class _Segment:
    """A segment of a set of shards: the same samples in every epoch, in an order that differs between epochs."""

    def __init__(
        self, counts: Sequence[int], seed: int, stream: str, segment: int, segments: int, shuffle: bool = True
    ) -> None:
        low, end = bounds(sum(counts), segment, segments)
        self.size = end - low
        order = permutation(len(counts), seed_of(seed, stream, "shards")).tolist() if shuffle else range(len(counts))
        before, pieces = 0, []
        for shard in order:
            first, stop = max(low - before, 0), min(end - before, counts[shard])
            if first < stop:
                pieces.append((shard, first, stop))
            before += counts[shard]

        def layout(epoch: int) -> tuple[list[Range], list[int]]:
            """Return the pieces of an epoch, and the number of samples before each of them."""
            here = pieces
            if shuffle:
                here = [pieces[i] for i in permutation(len(pieces), seed_of(seed, stream, "pieces", epoch, segment))]
            return here, list(accumulate((stop - first for _, first, stop in here), initial=0))

        self._layout = lru_cache(2)(layout)

    def ranges(self, epoch: int, low: int, high: int) -> list[Range]:
        """Return the samples `low` to `high` of an epoch."""
        pieces, ends = self._layout(epoch)
        ranges: list[Range] = []
        place = bisect_right(ends, low) - 1
        while low < high:
            (shard, first, _), stop = pieces[place], min(high, ends[place + 1])
            ranges.append((shard, first + low - ends[place], first + stop - ends[place]))
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
    share: int = 1,
    start: int = 0,
    shuffle: bool = True,
) -> Iterator[Window]:
    """Plan the endless stream of a segment, epoch after epoch, from ordinal `start`.

    Args:
        counts: Number of samples of every shard.
        seed: Seed of the run.
        stream: Name of the stream; the streams of a run have different orders.
        segment: Number of the segment.
        segments: Number of segments.
        window: Number of samples that are shuffled together, at least `share`; the last window of an epoch may be smaller.
        share: Number of samples of the segment in a batch. The segment must have at least as many.
        start: Ordinal of the first sample, as saved in a checkpoint.
        shuffle: If False, shards and samples are in file order.
    """
    own = _Segment(counts, seed, stream, segment, segments, shuffle)
    size, window = own.size, max(window, share)

    def plan(epoch: int, number: int) -> Window:
        low = number * window
        ranges = own.ranges(epoch, low, min(low + window, size))
        seed_here = seed_of(seed, stream, "window", epoch, segment, number) if shuffle else None
        return Window(epoch, number, epoch * size + low, tuple(ranges), seed_here, 0, segment)

    begin = start // size
    # The epochs before the first one are planned only for their last samples.
    known = begin - 1 if size >= 2 * share else begin - begin % (share // math.gcd(size, share))
    last: set[tuple[int, int]] = set()  # the samples of the started batch
    for epoch in count(max(0, known)):
        first = plan(epoch, 0)
        first = replace(first, swaps=_swaps(first.sample_indices, last, share - len(last))) if last else first
        at = start - epoch * size
        for number in range(max(0, at) // window, -(-size // window)) if at < size else ():
            made = plan(epoch, number) if number else first
            skip = max(0, start - made.start)
            yield replace(made, start=made.start + skip, skip=skip)
        old = (epoch + 1) * size % share if shuffle else 0  # in file order the next epoch begins far enough from here
        numbers = range(max(0, size - old) // window, -(-size // window))
        ends = (plan(epoch, number) if number else first for number in numbers)
        last = set([pick for made in ends for pick in made.sample_indices][-old:]) if old else set()


def _swaps(picks: Sequence[tuple[int, int]], last: set[tuple[int, int]], places: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of places that change so that none of the samples `last` is in the first places of a window."""
    free = (place for place in range(places, len(picks)) if picks[place] not in last)
    return tuple(zip((place for place in range(places) if picks[place] in last), free, strict=False))


def batches_of(window: int, share: int) -> int:
    """Return the number of batches in a window of `mixed_windows`: at least two, so that it can hold a sample twice."""
    return max(2, math.ceil(window / share))


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
    share: int = 1,
    start: int = 0,
) -> Iterator[Window]:
    """Plan the endless stream of a segment from several sets of shards, with a fixed share of each set in every window.

    Every set has its own epochs, so a small set with a large weight is repeated more often. A set that is smaller than a
    window has one order of its samples for all epochs: then it is not in a window more often than the window has batches,
    and no batch contains a sample twice. A set has `parts` consecutive shards of `counts` and one of the `weights` (only the
    ratios matter); `window` is rounded up to complete batches; the other arguments equal `windows`'s.
    """
    begins = list(accumulate(parts, initial=0))
    sets = [
        _Segment(counts[begin : begin + size], seed, f"{stream}/{part}", segment, segments)
        for part, (begin, size) in enumerate(zip(begins, parts, strict=False))
    ]
    window = batches_of(window, share) * share
    total, largest = sum(weights), max(range(len(weights)), key=weights.__getitem__)

    def taken(number: int) -> list[int]:
        """Return the number of samples of each set in all windows before; rounding goes to the largest set."""
        shares = [0 if part == largest else int(weight / total * number * window) for part, weight in enumerate(weights)]
        shares[largest] = number * window - sum(shares)
        return shares

    def ranges(part: int, low: int, high: int) -> Iterator[Range]:
        """Yield the samples `low` to `high` of all epochs of a set."""
        own = sets[part]
        while low < high:
            epoch, inside = divmod(low, own.size)
            stop = min(high - low + inside, own.size)
            for shard, first, end in own.ranges(epoch if own.size >= window else 0, inside, stop):
                yield shard + begins[part], first, end
            low += stop - inside

    for number in count(start // window):
        places = zip(range(len(parts)), taken(number), taken(number + 1), strict=True)
        here = tuple(chain.from_iterable(ranges(*place) for place in places))
        skip = max(0, start - number * window)
        seed_here = seed_of(seed, stream, "window", 0, segment, number)
        yield Window(number, number, number * window + skip, here, seed_here, skip, segment, share=share)


def tasks(plans: Mapping[int, Iterator[Window]], size: int, lost: Mapping[int, int]) -> Iterator[tuple[Window, ...]]:
    """Combine the endless plans of several segments to reading tasks, so that all segments are planned equally far.

    Args:
        plans: Plan of each segment by its number.
        size: Number of samples of each segment in a task, up to complete windows.
        lost: Number of planned samples of each segment that turned out not to be usable. More of it are planned.
    """
    planned = dict.fromkeys(plans, 0)
    while True:
        target = (min(planned[segment] - lost[segment] for segment in plans) // size + 1) * size
        task: list[Window] = []
        for segment, plan in plans.items():
            while planned[segment] - lost[segment] < target:
                task.append(next(plan))
                planned[segment] += len(task[-1])
        yield tuple(task)
