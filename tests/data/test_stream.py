"""Streams through Ray Data and inline give equal batches in the order of `data/order.py`, wherever they start."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

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


class PretendedCuda:
    """Stands in for a GPU: tensors are not moved, and `calls` contains every call in order."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name, self.calls = name, calls

    def record_event(self) -> str:
        self.calls.append(("record", self.name))
        return f"event {sum(call[0] == 'record' for call in self.calls)}"

    def wait_event(self, event: str) -> None:
        self.calls.append(("wait", self.name, event))


@contextlib.contextmanager
def pretended_gpu() -> Iterator[list[tuple[Any, ...]]]:
    calls: list[tuple[Any, ...]] = []
    inside = ["nowhere"]
    step = PretendedCuda("step", calls)

    @contextlib.contextmanager
    def stream(side: PretendedCuda) -> Iterator[None]:
        inside.append(side.name)
        yield
        inside.pop()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(("pin", threading.current_thread().name))
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        calls.append(("copy", inside[-1], str(device), non_blocking))
        return tensor

    def use(tensor: torch.Tensor, stream: PretendedCuda) -> None:
        calls.append(("use", stream.name))

    cuda: dict[str, Any] = {
        "Stream": lambda device: PretendedCuda("side", calls),
        "stream": stream,
        "device": lambda device: contextlib.nullcontext(),
        "current_stream": lambda device: step,
    }
    with patch.multiple(torch.cuda, **cuda), patch.multiple(torch.Tensor, pin_memory=pin, to=to, record_stream=use):
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


def numbered(low: int, high: int, skipped: tuple[int, ...] = ()) -> Chunk:
    """Return the samples `low` to `high` of a stream."""
    good = np.array([i for i in range(low, high) if i not in skipped])
    columns = {"_key": good.astype(str), "_next": good + 1, "_segment": 0 * good, "image": np.repeat(good[:, None], 3, 1)}
    return Chunk(columns if len(good) else {}, [Skipped(i, str(i), "why") for i in skipped if low <= i < high])


def test_batches_of_any_chunks() -> None:
    skipped = (2, 5, 6, 7, 8, 15)
    chunks = [numbered(low, high, skipped) for low, high in ((0, 3), (3, 5), (5, 8), (8, 13), (13, 17), (17, 30))]
    got, ends = zip(*batches((Chunk.from_block(chunk.to_block()) for chunk in chunks), [0], 4), strict=True)
    assert ends == ({0: 5}, {0: 13}, {0: 18}, {0: 22}, {0: 26}, {0: 30})
    assert [batch.columns["image"][:, 2].tolist() for batch in got] == [
        [0, 1, 3, 4],
        [9, 10, 11, 12],
        [13, 14, 16, 17],
        *([i, i + 1, i + 2, i + 3] for i in (18, 22, 26)),
    ]
    assert [[item.ordinal for item in batch.skipped] for batch in got] == [[2], [5, 6, 7, 8], [15], [], [], []]
    assert all(batch.columns["_key"].tolist() == (batch.columns["_next"] - 1).astype(str).tolist() for batch in got)


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


def test_if_all_samples_are_bad_the_reason_is_reported(tmp_path: Path) -> None:
    shards = write_tar(tmp_path / "x.tar", ((f"bad{i}.png", b"no image") for i in range(12)))
    config = ImageStream(shards=shards, label=None, batch_size=4, size=8, window=8, on_bad_sample="skip")
    with pytest.raises(DataError, match=r"stream 'x'.*bad\d+"):
        next(reader(config))


def test_samples_that_are_left_for_no_batch_are_named(tmp_path: Path) -> None:
    """Half of 40 samples are damaged, which is allowed, but a batch of 24 would have some of the others twice."""
    samples = ((f"{i:02d}.json", json.dumps({"txt": f"text {i}" if i % 2 else ""}).encode()) for i in range(40))
    shards = write_tar(tmp_path / "x.tar", samples)
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.6}
    with pytest.raises(DataError, match=r"'x'.*fewer than 24 samples.*streams\.x\.batch_size"):
        next(reader(TextStream(shards=shards, columns=("txt",), batch_size=24, segments=1, **skip)))


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


def test_skipped_samples_are_reported_with_their_batch() -> None:
    """Also if a chunk holds several batches."""
    columns = {"_key": np.array(list("abcd")), "_segment": np.zeros(4, int), "_next": np.array([1, 2, 4, 5])}
    found = batches([Chunk(columns, [Skipped(2, "x", "bad")])], [0], 2)
    assert [[item.key for item in made.skipped] for made, _ in found] == [[], ["x"]]
