"""The order of samples is compared with a naive version that builds complete epochs in memory."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.mark.parametrize(("segments", "window"), [(1, 8), (2, 5), (3, 1), (5, 100), (54, 2)])
def test_equals_the_naive_version(segments: int, window: int) -> None:
    for segment in range(segments):
        got = flat(plan(segment, segments, window, samples=100))
        assert len(got) >= 100
        assert got == naive_stream(COUNTS, segment, segments, window, epochs=segments * 3 + 1)[: len(got)]


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
