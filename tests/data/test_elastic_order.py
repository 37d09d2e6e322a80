"""Every number of workers trains on the same global batches, also after a change in the middle of an epoch."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from multicse.data.errors import DataError
from multicse.data.order import segment_count
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.data.streams.text import TextStream
from tests.data.packing import lengths, reader
from tests.worlds import add, write_images, write_sounds, write_tar, write_text

STEPS = 12
Batches = list[tuple[list[str], dict[str, Tensor]]]


def train(config: StreamConfig, *phases: tuple[int, int], inline: bool = True) -> tuple[Batches, dict[int, int]]:
    """Return the global batches, and the final position, of phases with (workers, steps)."""
    found, at = Batches(), dict[int, int]()
    for workers, steps in phases:
        where: dict[str, Any] = {"world_size": workers, "inline": inline, "position": at, "number": len(found)}
        readers = [reader(config, lengths, STEPS, rank=rank, **where) for rank in range(workers)]
        for _ in range(steps):
            parts = [one.on_device(next(one)) for one in readers]
            tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0].tensors}
            found.append(([key for part in parts for key in part.keys], tensors))
        at = {segment: after for one in readers for segment, after in one.position.items()}
        for one in readers:
            one.close()
    return found, at


def plain(folder: Path) -> StreamConfig:
    return TextStream(shards=write_text(folder, (33, 20, 30)), batch_size=16, window=48)


def in_file_order(folder: Path) -> StreamConfig:
    return plain(folder).model_copy(update={"shuffle": False})


def mixed(folder: Path) -> StreamConfig:
    sets = write_text(folder / "a", (30, 10)), write_text(folder / "b", (17,))
    return TextStream(shards="::".join(sets), weights=(3, 1), batch_size=16, window=48)


def images(folder: Path) -> StreamConfig:
    return ImageStream(shards=write_images(folder, 60), batch_size=16, size=8, window=24)


def images_with_bad_samples(folder: Path) -> StreamConfig:
    """All bad samples are in the last shard, so some segments lose many samples and others none."""
    write_images(folder, 60)
    with tarfile.open(folder / "image-000009.tar", "w") as tar:
        for i in range(4):
            add(tar, f"bad{i:02d}.png", b"no image")
            add(tar, f"bad{i:02d}.cls", b"0")
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.6}
    return ImageStream(shards=str(folder), batch_size=16, size=8, window=24, **skip)


def mixed_up_audio(folder: Path) -> StreamConfig:
    return AudioStream(shards=write_sounds(folder), batch_size=8, rate=8000, bins=16, frames=32, mixup_probability=0.5)


def small(folder: Path) -> StreamConfig:
    """A batch and a half, so most batches contain the end of an epoch."""
    return TextStream(shards=write_text(folder, (13, 8, 3)), batch_size=16)


def small_with_bad_samples(folder: Path) -> StreamConfig:
    """Each segment has a bad sample, after which its batches begin elsewhere in its epochs."""
    names = ["bad" if i % 5 == 2 else "" for i in range(40)]
    samples = [(f"{i:02d}.json", json.dumps({"txt": "" if name else f"text {i}"}).encode()) for i, name in enumerate(names)]
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.6}
    return TextStream(shards=write_tar(folder / "x.tar", iter(samples)), columns=("txt",), batch_size=24, **skip)


KINDS = [plain, in_file_order, mixed, small, images, images_with_bad_samples, small_with_bad_samples, mixed_up_audio]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_the_same_global_batches(kind: Any, tmp_path: Path) -> None:
    config = kind(tmp_path)
    expected, end = train(config, (1, STEPS))
    assert len({tuple(keys) for keys, _ in expected}) == STEPS
    once = kind is mixed or all(len(set(keys)) == config.batch_size for keys, _ in expected)  # its sets have equal keys
    assert once  # also where an epoch ends
    for phases in ([(2, STEPS)], [(4, STEPS)], [(8, STEPS)], [(2, 5), (1, 4), (8, 3)]):
        are_equal(train(config, *phases), (expected, end))


def are_equal(one: tuple[Batches, dict[int, int]], other: tuple[Batches, dict[int, int]]) -> None:
    """Keys and positions, and the views bit for bit."""
    assert [keys for keys, _ in one[0]] == [keys for keys, _ in other[0]] and one[1] == other[1]
    for (_, found), (_, expected) in zip(one[0], other[0], strict=True):
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.usefixtures("local_ray")
def test_two_workers_read_through_ray(tmp_path: Path) -> None:
    config = images_with_bad_samples(tmp_path)
    are_equal(train(config, (2, STEPS), inline=False), train(config, (1, STEPS)))


@pytest.mark.parametrize(
    ("segments", "batch_size", "samples", "expected"),
    [(8, 64, 100, 8), (8, 12, 100, 4), (8, 64, 6, 4), (12, 9, 100, 3), (8, 5, 9, 1)],
)
def test_the_number_of_segments_divides_the_batch(segments: int, batch_size: int, samples: int, expected: int) -> None:
    naive = max(d for d in range(1, segments + 1) if segments % d == 0 and batch_size % d == 0 and d <= samples)
    assert segment_count(segments, batch_size, samples) == naive == expected


def test_workers_that_cannot_share_the_segments_are_an_error(tmp_path: Path) -> None:
    config = TextStream(shards=write_text(tmp_path, (80,)), batch_size=48)
    with pytest.raises(
        DataError, match=r"^segments=8 with batch_size=48 .* 8 segments.*num_workers=3\. Use 1, 2, 4, 8 workers"
    ):
        config.segments_per_worker(config.open(), 3)
    with pytest.raises(DataError, match="or set segments to a multiple of 16 that divides batch_size"):
        config.segments_per_worker(config.open(), 16)
    assert config.model_copy(update={"segments": 48}).segments_per_worker(config.open(), 16) == 3
