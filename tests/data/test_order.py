"""The order of samples is compared with a naive version that builds complete epochs in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from multicse.data.order import Window, mixed_windows, permutation, seed_of, windows

COUNTS = [7, 0, 13, 1, 29, 4]


def naive_stream(
    counts: list[int], segment: int, segments: int, window: int, epochs: int, seed: int = 3
) -> list[tuple[int, ...]]:
    """Return the stream of a segment as (epoch, shard, index), from complete epochs."""
    stream: list[tuple[int, ...]] = []
    for epoch in range(epochs):
        shards = permutation(len(counts), seed_of(seed, "text", "shards", epoch))
        samples = [(epoch, int(s), i) for s in shards for i in range(counts[s])]
        mine = samples[len(samples) * segment // segments : len(samples) * (segment + 1) // segments]
        for number, low in enumerate(range(0, len(mine), window)):
            part = mine[low : low + window]
            stream += [part[i] for i in permutation(len(part), seed_of(seed, "text", "window", epoch, segment, number))]
    return stream


def flat(plan: list[Window]) -> list[tuple[int, ...]]:
    return [(w.epoch, *pick) for w in plan for pick in w.sample_indices]


def plan(
    segment: int = 0, segments: int = 1, window: int = 8, start: int = 0, samples: int = 150, **more: object
) -> list[Window]:
    settings = {"counts": COUNTS, "seed": 3, "stream": "text", **more}
    return list(windows(segment=segment, segments=segments, window=window, start=start, samples=samples, **settings))  # type: ignore[arg-type]


def epoch_sequence(counts: list[int], epoch: int, **settings: Any) -> list[tuple[int, int]]:
    until = itertools.takewhile(lambda part: part.epoch <= epoch, windows(counts, **settings))
    return [pick for part in until if part.epoch == epoch for pick in part.sample_indices]


@pytest.mark.parametrize(("segments", "window"), [(1, 8), (2, 5), (3, 1), (5, 100)])
def test_equals_the_naive_version(segments: int, window: int) -> None:
    for segment in range(segments):
        got = flat(plan(segment, segments, window, samples=100))
        assert len(got) >= 100
        assert got == naive_stream(COUNTS, segment, segments, window, epochs=segments * 3 + 1)[: len(got)]


@pytest.mark.parametrize("segments", [1, 3, 54])
def test_an_epoch_contains_every_sample_once(segments: int) -> None:
    parts = [
        epoch_sequence(COUNTS, seed=1, stream="a", epoch=2, segment=segment, segments=segments, window=6)
        for segment in range(segments)
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(pick for part in parts for pick in part) == [(s, i) for s, n in enumerate(COUNTS) for i in range(n)]


@pytest.mark.parametrize("start", [0, 7, 8, 27, 54, 1000])
def test_a_resumed_stream_continues_exactly(start: int) -> None:
    whole, resumed = plan(1, 2, 8, samples=1200), plan(1, 2, 8, start=start, samples=60)
    expected = flat(whole)[start:]
    assert flat(resumed) == expected[: len(flat(resumed))]
    ordinal = start
    for part in resumed:  # ordinals are positions in the endless stream, and lengths count the samples
        assert part.start == ordinal and len(part) == len(part.sample_indices)
        ordinal += len(part)
    assert ordinal >= start + 60


GOLDEN_PERMUTATION = [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]
GOLDEN_SEED = 1243134299395967995
GOLDEN_PICKS = ((4, 5), (4, 4), (4, 2), (4, 6), (4, 3), (4, 7))


def test_golden_values() -> None:
    """A run must be resumable with other versions of Python and numpy."""
    assert permutation(10, 7).tolist() == GOLDEN_PERMUTATION
    assert seed_of(0, "text", 1) == GOLDEN_SEED
    assert plan(1, 2, 6, samples=6)[0].sample_indices == GOLDEN_PICKS


def test_fewer_samples_than_segments() -> None:
    with pytest.raises(ValueError, match="3 samples cannot fill 4 segments"):
        plan(counts=[2, 1], segments=4)
    with pytest.raises(ValueError, match="contain no samples"):
        plan(counts=[0, 0])


def test_sets_with_separate_epochs_are_mixed_by_weight() -> None:
    """Every window mixes three to one, whatever the sizes; in two segments each set is complete in each of its epochs."""
    counts, parts, weights = [40, 20, 30], [2, 1], [3.0, 1.0]
    visited: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for segment in (0, 1):

        def plan(start: int, samples: int, segment: int = segment) -> Iterator[Window]:
            where: dict[str, int] = {"seed": 1, "segment": segment, "segments": 2, "window": 8}
            return mixed_windows(counts, parts, weights, stream="text", start=start, samples=samples, **where)

        for window in plan(0, 8 * 20):
            picks = window.sample_indices
            assert sum(shard < 2 for shard, _ in picks) == 6 and len(picks) == 8
            for pick in picks:
                visited[int(pick[0] == 2)].append(pick)
            again = next(plan(window.start + 3, 1))  # like a resumed run
            assert (again.sample_indices, again.start, again.epoch) == (picks[3:], window.start + 3, window.epoch)
    assert len(set(visited[0])) == 60 and len(visited[0]) == 240  # each segment: four times its half
    assert {visited[0].count(pick) for pick in visited[0]} == {4}
    assert len(set(visited[1])) == 30 and {visited[1].count(pick) for pick in visited[1]} <= {2, 3}
