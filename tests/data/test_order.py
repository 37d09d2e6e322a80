"""The order of samples is compared with a naive version that builds complete epochs in memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multicse.data.order import Window, batches_of, mixed_windows, permutation, seed_of, segment_count, tasks, windows

COUNTS = [7, 0, 13, 1, 29, 4]

Pick = tuple[int, int]


def naive_stream(
    counts: list[int], segment: int, segments: int, window: int, epochs: int, share: int = 1, seed: int = 3
) -> list[tuple[int, ...]]:
    """Return the stream of a segment as (epoch, shard, index), from complete epochs, each made from the one before."""
    shards = permutation(len(counts), seed_of(seed, "text", "shards")).tolist()
    samples = [(shard, i) for shard in shards for i in range(counts[shard])]
    mine = samples[len(samples) * segment // segments : len(samples) * (segment + 1) // segments]
    parts = [[pick for pick in mine if pick[0] == shard] for shard in shards]
    pieces = [part for part in parts if part]
    window, stream = max(window, share), list[tuple[int, ...]]()
    for epoch in range(epochs):
        order = permutation(len(pieces), seed_of(seed, "text", "pieces", epoch, segment))
        layout, made = [pick for i in order for pick in pieces[i]], list[Pick]()
        for number, low in enumerate(range(0, len(layout), window)):
            part = layout[low : low + window]
            made += [part[i] for i in permutation(len(part), seed_of(seed, "text", "window", epoch, segment, number))]
        started = [(shard, index) for _, shard, index in stream[len(stream) // share * share :]]
        new = share - len(started)
        for place in range(new):
            if made[place] in started:
                other = next(j for j in range(new, len(made)) if made[j] not in started)
                made[place], made[other] = made[other], made[place]
                started = [*started, made[other]]  # is used
        stream += [(epoch, *pick) for pick in made]
    return stream


def flat(plan: list[Window]) -> list[tuple[int, ...]]:
    return [(w.epoch, *pick) for w in plan for pick in w.sample_indices]


def plan(
    segment: int = 0, segments: int = 1, window: int = 8, start: int = 0, samples: int = 150, **more: object
) -> list[Window]:
    settings = {"counts": COUNTS, "seed": 3, "stream": "text", **more}
    return first(windows(segment=segment, segments=segments, window=window, start=start, **settings), samples)  # type: ignore[arg-type]


def first(plan: Iterator[Window], samples: int) -> list[Window]:
    """The first windows of an endless plan, with at least this many samples."""
    found: list[Window] = []
    while sum(map(len, found)) < samples:
        found.append(next(plan))
    return found


@pytest.mark.parametrize(
    ("segments", "window", "share"), [(1, 8, 1), (2, 5, 4), (3, 1, 1), (5, 100, 7), (54, 2, 1), (2, 8, 26), (1, 9, 30)]
)
def test_equals_the_naive_version(segments: int, window: int, share: int) -> None:
    for segment in {0, segments // 2, segments - 1}:
        got = flat(plan(segment, segments, window, samples=300, share=share))
        assert len(got) >= 300
        assert got == naive_stream(COUNTS, segment, segments, window, segments * 7 + 1, share)[: len(got)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_segments_with_lost_samples_keep_up(data: Any) -> None:
    """However many samples cannot be used, all segments give equally many, so that none of them waits in memory."""
    size, window = data.draw(st.integers(4, 20), "size"), data.draw(st.integers(1, 4), "window")
    shares = data.draw(st.lists(st.sampled_from([0, 1, 5, 9, 10]), min_size=2, max_size=4), "lost of ten")
    lost, given = Counter[int](), Counter[int]()
    plans = {
        s: windows([50], seed=0, stream="x", segment=s, segments=len(shares), window=window) for s in range(len(shares))
    }
    for task in islice(tasks(plans, size, lost), 30):
        read = Counter(made.segment for made in task for _ in range(len(made)))
        assert max(read.values()) < size + window, "a task is not larger than it should be"
        lost += {segment: number * shares[segment] // 10 for segment, number in read.items()}
        given = Counter({s: given[s] + read[s] - read[s] * shares[s] // 10 for s in plans})
        assert max(given.values()) - min(given.values()) < size + 2 * window


def split(data: Any, samples: int) -> list[int]:
    """Draw the sizes of shards with this number of samples."""
    cuts = sorted(data.draw(st.lists(st.integers(0, samples), max_size=6)))
    return [high - low for low, high in pairwise([0, *cuts, samples])]


def global_batches(plans: list[Iterator[Window]], share: int, count: int) -> list[list[Pick]]:
    streams = [(pick for window in plan for pick in window.sample_indices) for plan in plans]
    return [[pick for stream in streams for pick in islice(stream, share)] for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_batch_has_a_sample_twice_and_every_epoch_has_all(data: Any) -> None:
    """For any sizes; and from any batch on, a resumed run has the same batches."""
    batch = data.draw(st.integers(1, 40), "batch")
    samples = batch + data.draw(st.integers(0, 60), "further samples")
    counts, segments = split(data, samples), segment_count(data.draw(st.integers(1, 12), "segments"), batch, samples)
    share, window, shuffle = batch // segments, data.draw(st.integers(1, 50), "window"), data.draw(st.booleans(), "shuffle")
    order: dict[str, Any] = {"counts": counts, "stream": "text", "segments": segments, "window": window, "share": share}
    order |= {"seed": data.draw(st.integers(0, 99), "seed"), "shuffle": shuffle}
    steps = 4 * math.ceil(samples / batch) + 6

    def batches(step: int, steps: int) -> list[list[Pick]]:
        return global_batches([windows(segment=s, start=step * share, **order) for s in range(segments)], share, steps)

    found = batches(0, steps)
    assert all(len(set(picks)) == batch for picks in found)
    step = data.draw(st.integers(0, steps), "step")
    assert batches(step, steps - step) == found[step:]
    everything = {(shard, index) for shard, count in enumerate(counts) for index in range(count)}
    epochs = [
        [pick for made in first(windows(segment=s, **order), 3 * samples) if made.epoch == e for pick in made.sample_indices]
        for e in range(2)
        for s in range(segments)
    ]
    for epoch in (epochs[:segments], epochs[segments:]):
        picks = [pick for part in epoch for pick in part]
        assert len(picks) == samples and set(picks) == everything


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_batch_of_a_mixture_has_a_sample_twice(data: Any) -> None:
    batch = data.draw(st.integers(1, 24), "batch")
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=3), "sizes of the sets")
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)), "weights")
    sets = [split(data, size) for size in sizes]
    segments = segment_count(4, batch, min(sizes))
    share, window = batch // segments, data.draw(st.integers(1, 50), "window")
    batches = batches_of(window, share)
    for size, weight in zip(sizes, weights, strict=True):  # what `StreamConfig.check` requires
        own = size // segments
        assume(own >= batches * share or weight / sum(weights) * share + len(sizes) / batches <= own)
    order: dict[str, Any] = {"counts": [n for counts in sets for n in counts], "parts": [len(c) for c in sets]}
    order |= {"weights": weights, "seed": 1, "stream": "text", "segments": segments, "window": window, "share": share}
    plans = [mixed_windows(segment=s, **order) for s in range(segments)]
    begins = list(accumulate(order["parts"], initial=0))
    found = global_batches(plans, share, 4 * batches)
    assert all(len(set(picks)) == batch for picks in found)
    for made in islice(mixed_windows(segment=0, **order), 4):
        picks = made.sample_indices
        views = {(pick, made.epoch_of(made.start + place)) for place, pick in enumerate(picks)}
        assert len(views) == len(picks), "a sample that returns has other views"
        for (begin, end), size in zip(pairwise(begins), sizes, strict=True):
            seen, own = Counter(pick for pick in picks if begin <= pick[0] < end), size // segments
            if own < batches * share:  # in one order for all epochs
                assert max(seen.values(), default=0) <= math.ceil(seen.total() / own)
    for (begin, end), size, weight in zip(pairwise(begins), sizes, weights, strict=True):
        seen = Counter(pick for picks in found for pick in picks if begin <= pick[0] < end)
        share_of_set = weight / sum(weights) * len(found) * batch
        assert abs(seen.total() - share_of_set) <= segments * len(sizes)
        if size // segments * segments == size and size // segments < batches * share:  # its epochs end together
            assert not seen or max(seen.values()) - min([*seen.values(), *[0] * (size - len(seen))]) <= 1
