"""The audio stream: the released mix-up of NonLing-CSE, measured on waveforms that do not overlap."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.data.streams.audio import AudioStream
from tests.data.packing import reader
from tests.worlds import add, sound, write_tar

COUNT, CLASSES = 300, 7


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write three shards in which clip i is nonzero at samples 2i and 2i + 1 only, with mean 0."""
    folder = tmp_path_factory.mktemp("audio")
    for shard in range(3):
        with tarfile.open(folder / f"audio-{shard:06d}.tar", "w") as tar:
            for i in range(shard, COUNT, 3):
                wave = np.zeros(2 * COUNT)
                wave[2 * i : 2 * i + 2] = 0.5, -0.5
                add(tar, f"{i:04d}.wav", sound(wave))
                add(tar, f"{i:04d}.cls", str(i % CLASSES).encode())
    return str(folder)


def test_mixup_draws_its_partner_from_the_whole_set(shards: str) -> None:
    """The released data set draws from all its clips, including the clip itself; here a batch contains 4 of 300."""
    config = AudioStream(shards=shards, batch_size=4, window=4, rate=8000, frames=8, bins=8, mixup_probability=0.5)
    found = reader(config, None, COUNT)
    shares, near, alone = [], 0, 0
    for _ in range(COUNT):  # four epochs
        batch = next(found)
        own = [int(key.rpartition("/")[2]) for key in batch.keys]
        for i, wave, label in zip(own, batch["waveform"][:, 0], batch["label"].tolist(), strict=True):
            present = wave[::2].nonzero().flatten().tolist()
            assert i in present and len(present) in (1, 2) and torch.equal(wave[::2], -wave[1::2])
            if len(present) == 1:
                alone += 1
                assert int(wave[2 * i]) == 16384 and label == i % CLASSES
                continue
            (partner,) = set(present) - {i}
            share = int(wave[2 * i]) / 16384
            assert int(wave[2 * partner]) / 16384 == pytest.approx(1 - share, abs=2 / 16384)
            assert label == (i if share >= 0.5 else partner) % CLASSES
            shares.append(share)
            near += partner in own
    found.close()
    assert len(shares) / (len(shares) + alone) == pytest.approx(0.5, abs=0.05)
    assert near / len(shares) < 0.05  # of the same batch: 1 % by chance
    # Beta(10, 10): mean 1/2, variance 1 / (4 * 21)
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02) and np.std(shares) == pytest.approx((1 / 84) ** 0.5, rel=0.15)


def test_a_sample_whose_partner_is_damaged_is_skipped(tmp_path: Path) -> None:
    wave = sound(np.full(900, 0.5))
    write_tar(tmp_path / "x.tar", [("0.wav", wave), ("1.wav", wave), ("1.wav", wave)])
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.99}
    config = AudioStream(shards=str(tmp_path / "x.tar"), label=None, batch_size=1, frames=8, mixup_probability=1, **skip)
    found = reader(config, None, 9)
    for _ in range(9):
        next(found)
    found.close()
    assert "its partner x/1: the field 'wav' occurs twice" in {reason.partition(" in")[0] for _, reason in found.skipped}
