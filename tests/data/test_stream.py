"""Streams through Ray Data and inline give equal batches in the order of `data/order.py`, wherever they start."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Set
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multicse.data.errors import DataError
from multicse.data.order import tasks
from multicse.data.stream import Reader
from multicse.data.streams.image import ImageStream
from multicse.data.streams.text import TextStream
from multicse.data.window import Chunk, Skipped, batches, generators
from tests.data.packing import lengths, letters, reader
from tests.worlds import write_images, write_tar, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextStream:
    return TextStream(shards=write_text(tmp_path_factory.mktemp("text"), (33, 20, 27)), batch_size=8, window=16)


def keys(found: Reader, count: int) -> list[str]:
    out = [key for _ in range(count) for key in next(found).keys]
    found.close()
    return out


def test_a_sample_has_other_views_in_every_epoch(tmp_path: Path) -> None:
    found = reader(ImageStream(shards=write_images(tmp_path, 30), batch_size=6, size=8, window=7))
    batches = [next(found) for _ in range(10)]  # two epochs
    found.close()
    assert not torch.equal(batches[0]["draws"], batches[1]["draws"])
    first, again = (
        {k: image for b in part for k, image in zip(b.keys, b["image"], strict=True)} for part in (batches[:5], batches[5:])
    )
    assert first.keys() == again.keys() and all(not torch.equal(first[key], again[key]) for key in first)


@contextlib.contextmanager
def pretended_gpu() -> Iterator[list[tuple[Any, ...]]]:
    """A GPU to which no tensor is moved; the list contains every call in order."""
    calls: list[tuple[Any, ...]] = []
    inside = ["nowhere"]

    def made(name: str) -> SimpleNamespace:
        def record() -> str:
            calls.append(("record", name))
            return f"event {sum(call[0] == 'record' for call in calls)}"

        return SimpleNamespace(name=name, record_event=record, wait_event=lambda event: calls.append(("wait", name, event)))

    @contextlib.contextmanager
    def stream(side: SimpleNamespace) -> Iterator[None]:
        inside.append(side.name)
        yield
        inside.pop()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(("pin", threading.current_thread().name))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        calls.append(("copy", inside[-1], str(device), non_blocking))
        return tensor

    def use(tensor: torch.Tensor, stream: SimpleNamespace) -> None:
        calls.append(("use", stream.name))

    step, here = made("step"), contextlib.nullcontext()
    cuda: dict[str, Any] = {"Stream": lambda _: made("side"), "current_stream": lambda _: step, "device": lambda _: here}
    tensors = patch.multiple(torch.Tensor, pin_memory=pin, to=to, record_stream=use)
    with patch.multiple(torch.cuda, stream=stream, **cuda), tensors:
        yield calls


def test_the_next_batch_is_copied_to_a_gpu_while_one_is_used(text: TextStream) -> None:
    plain = reader(text, lengths)
    with pretended_gpu() as calls:
        found = reader(text, lengths, 3, device=torch.device("cuda", 1))
        pinned, deadline = [("pin", "stream-x")] * 3, time.monotonic() + 60
        while len(calls) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)  # the thread pins the third batch when the first two are ready
        assert calls == pinned
        first = next(found)
        copied = [("copy", "side", "cuda:1", True), ("record", "side")]
        assert calls == [*pinned, *copied, *copied, ("wait", "step", "event 1"), ("use", "step")]
        expected = next(plain)
        # A run that resumes here reads the batch that was copied ahead again.
        assert first.keys == expected.keys and found.position == plain.position
        assert [next(found).keys, next(found).keys] == [next(plain).keys, next(plain).keys]
        assert [call for call in calls if call[0] == "wait"] == [("wait", "step", f"event {number}") for number in (1, 2, 3)]
        found.close()
    plain.close()


def test_an_error_after_a_batch_does_not_replace_the_batch(text: TextStream) -> None:
    seen: list[str] = []

    def once(texts: list[str]) -> dict[str, torch.Tensor]:
        seen.extend(texts)
        if len(seen) > 8:
            raise DataError("the second batch")
        return letters(texts)

    with pretended_gpu():
        found = reader(text, once, 3, device=torch.device("cuda"))
        found._ahead.thread.join(60)
        assert len(next(found)) == 8
        with pytest.raises(DataError, match="the second batch"):
            next(found)
        found.close()


def numbered(low: int, high: int, bad: Set[tuple[int, int]] = frozenset(), segments: int = 1) -> Chunk:
    """Return the samples `low` to `high` of all segments, except for those (segment, ordinal) that are bad."""
    every = [(segment, i) for segment in range(segments) for i in range(low, high)]
    good = np.array([one for one in every if one not in bad]).reshape(-1, 2)
    segment, ordinal = good.T.copy()
    columns = {"_key": ordinal.astype(str), "_segment": segment, "_next": ordinal + 1, "image": np.repeat(good[:, 1:], 3, 1)}
    return Chunk(columns if len(good) else {}, [Skipped(i, str(i), "why", s) for s, i in every if (s, i) in bad])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_batches_of_any_chunks(data: Any) -> None:
    """Equal to the batches of all samples at once, each with the samples skipped since the previous batch."""
    share, segments = data.draw(st.integers(1, 5), "share"), data.draw(st.integers(1, 3), "segments")
    bad = data.draw(st.sets(st.tuples(st.integers(0, segments - 1), st.integers(0, 19))), "bad")
    cuts = sorted({0, 20, *data.draw(st.sets(st.integers(0, 20)), "cuts")})
    chunks = (Chunk.from_block(numbered(low, high, bad, segments).to_block()) for low, high in pairwise(cuts))
    good = [[i for i in range(20) if (segment, i) not in bad] for segment in range(segments)]
    found, before = list(batches(chunks, range(segments), share)), dict.fromkeys(range(segments), 0)
    assert len(found) == min(map(len, good)) // share
    for number, (batch, ends) in enumerate(found):
        wanted = [(s, i) for s in range(segments) for i in good[s][number * share : (number + 1) * share]]
        assert ends == {s: i + 1 for s, i in wanted}
        assert list(zip(batch.columns["_segment"], batch.columns["image"][:, 2], strict=True)) == wanted
        assert batch.columns["_key"].tolist() == [str(i) for _, i in wanted]
        skipped = {(item.segment, item.ordinal) for item in batch.skipped}
        assert skipped == {(s, i) for s, i in bad if before[s] <= i < ends[s]} and len(skipped) == len(batch.skipped)
        before = ends


def test_a_block_is_read_without_a_copy() -> None:
    chunk = numbered(0, 5)
    found = Chunk.from_block(chunk.to_block())
    assert all(np.shares_memory(found.columns[name], column) for name, column in chunk.columns.items())
    assert all(column.flags.writeable for column in found.columns.values())  # or torch would warn


def test_a_batch_within_a_task_is_not_copied(text: TextStream) -> None:
    """With one segment, tasks end at 32 and 48, so the batches from 28 and from 44 span two; with eight, none does."""
    for segments, expected in ((1, [True, True, True, False, True, False]), (8, [True] * 6)):
        found = reader(text.model_copy(update={"segments": segments}), position=dict.fromkeys(range(8), 4 // segments))
        plan = tasks({s: found._windows(s, found._reader.start[s]) for s in found.segments}, 16 // segments, Counter())
        parts = [chunk for task in islice(plan, 3) for chunk in found._reader.chunks(task)]
        batched = [batch for batch, _ in islice(batches(parts, found.segments, 8 // segments), 6)]
        same = [any(np.shares_memory(b.columns["_next"], part.columns["_next"]) for part in parts) for b in batched]
        assert same == expected
        found.close()


def test_the_first_samples_only(text: TextStream) -> None:
    """Every epoch has 33 samples of the first shard and 7 of the second."""
    got = keys(reader(text.model_copy(update={"first": 40})), 10)
    expected = {
        f"text-train-00000{shard}/{shard}-{index:04d}" for shard, count in ((0, 33), (1, 7)) for index in range(count)
    }
    assert set(got[:40]) == set(got[40:]) == expected and len(expected) == 40
    with pytest.raises(DataError, match="first=81"):
        text.model_copy(update={"first": 81}).open()


@pytest.mark.parametrize(
    ("good", "batch_size", "said"),
    [
        (0, 4, r"stream 'x'.*/\d\d"),
        (20, 24, r"'x'.*fewer than 24 samples.*streams\.x\.batch_size"),  # or it would have some of them twice
    ],
)
def test_good_samples_that_fill_no_batch_are_told(good: int, batch_size: int, said: str, tmp_path: Path) -> None:
    """Half of the samples may be damaged; of others, the reason is named."""
    samples = ((f"{i:02d}.json", json.dumps({"txt": f"text {i}" if i % 2 and good else ""}).encode()) for i in range(40))
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.6}
    shards = write_tar(tmp_path / "x.tar", samples)
    with pytest.raises(DataError, match=said):
        next(reader(TextStream(shards=shards, columns=("txt",), batch_size=batch_size, segments=1, **skip)))


def test_a_seed_alone_decides_what_its_generator_draws() -> None:
    seeds = [0, 1, 2**32 - 1, 2**32, 2**64 - 1, 1]
    drawn = []
    for rng in generators(seeds):
        drawn.append((rng.random(), *rng.integers(2**63, size=3)))
        rng.integers(2**30, dtype=np.uint32)  # leaves half a word, which the next seed must not use
    for seed, values in zip(seeds, drawn, strict=True):
        rng = np.random.Generator(np.random.Philox(key=seed))
        assert values == (rng.random(), *rng.integers(2**63, size=3))
    assert len(set(drawn)) == 5 and not list(generators([]))
