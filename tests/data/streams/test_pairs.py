"""Pairs of an image or audio clip and a caption: the caption of each epoch, and the tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.data.streams.pairs import AudioTextStream, CaptionedStream, ImageTextStream
from multicse.data.streams.preprocess import prepare_images, prepare_sounds
from tests import worlds
from tests.data.packing import reader, spelt

AUDIO = AudioInput(rate=8000, seconds=0.5, bins=16, n_fft=256, hop=80, low_hz=50, high_hz=4000)
IMAGE = ImageInput(size=12)
CAPTIONS = 4


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (15, 20, 3), dtype=np.uint8)


def clip(number: int) -> np.ndarray:
    """Return noise of 0.25 s, 0.5 s or 1 s."""
    return np.random.default_rng(number).normal(0, 0.1, (2000, 4000, 8000)[number % 3]).astype(np.float32)


def encoded(number: int, kind: str) -> bytes:
    return worlds.png(pixels(number)) if kind == "png" else worlds.sound(clip(number), subtype="FLOAT")


def write(folder: Path, kind: str, count: int = 24) -> str:
    members = []
    for i in range(count):
        record = {"captions": [f"item {i} caption {j}" for j in range(CAPTIONS)]}
        fields = {kind: encoded(i, kind), "json": json.dumps(record).encode(), "cls": str(i % 3).encode()}
        members += [(f"{i:04d}.{name}", content) for name, content in fields.items()]
    return worlds.write_tar(folder / "pairs-train-000000.tar", members)


def seen(config: CaptionedStream, batches: int) -> list[tuple[str, str]]:
    """Return key and text of every sample."""
    found = reader(config, batches=batches)
    out = [pair for b in (next(found) for _ in range(batches)) for pair in zip(b.keys, spelt(b["input_ids"]), strict=True)]
    found.close()
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageTextStream:
    return ImageTextStream(shards=write(tmp_path_factory.mktemp("i"), "png"), batch_size=8, window=12, input=IMAGE)


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> AudioTextStream:
    return AudioTextStream(shards=write(tmp_path_factory.mktemp("s"), "wav"), batch_size=8, window=12, input=AUDIO)


# -------------------------------------------------------------------------------------------------------------- captions


def test_an_epoch_draws_one_of_the_captions_of_a_sample(images: ImageTextStream) -> None:
    found = seen(images, 36)  # 12 epochs of 24
    per_sample = defaultdict(list)
    for key, text in found:
        number = int(key.split("/")[1])
        assert text in [f"item {number} caption {j}" for j in range(CAPTIONS)]
        per_sample[number].append(int(text[-1]))
    assert {len(draws) for draws in per_sample.values()} == {12}
    assert sum(len(set(draws)) > 1 for draws in per_sample.values()) == 24  # the caption changes between epochs
    counts = np.bincount([draw for draws in per_sample.values() for draw in draws], minlength=CAPTIONS)
    assert counts.min() > 45 and counts.sum() == 288  # 72 each, if fair


def test_class_templates_make_captions(images: ImageTextStream) -> None:
    more: dict[str, Any] = {"templates": ("a {}.", "{label} {label}", "{}"), "classes": ("cat", "big dog", "{}")}
    config = ImageTextStream(shards=images.shards, batch_size=8, window=12, input=IMAGE, **more)
    found = seen(config, 36)
    expected = {0: {"a cat.", "cat cat", "cat"}, 1: {"a big dog.", "big dog big dog", "big dog"}}
    for number, texts in expected.items():
        assert {text for key, text in found if int(key.split("/")[1]) % 3 == number} == texts
    assert {text for _, text in seen(config.model_copy(update={"captions": "first"}), 3)} >= {"a cat.", "a big dog."}


# --------------------------------------------------------------------------------------------------------------- tensors


def test_images_are_the_normalised_centre(images: ImageTextStream) -> None:
    found = reader(images)
    batch = found.on_device(next(found))
    assert batch["image"].shape == (8, 1, 3, 12, 12) and batch["image"].dtype == torch.float32
    assert set(batch.tensors) == {"image", "input_ids", "attention_mask"}
    assert batch["attention_mask"].shape == batch["input_ids"].shape == (8, 1, batch["input_ids"].shape[-1])
    numbers = [int(key.split("/")[1]) for key in batch.keys]
    assert torch.equal(prepare_images([pixels(number) for number in numbers], **IMAGE.model_dump()), batch["image"][:, 0])
    assert [int(text.split()[1]) for text in spelt(batch["input_ids"])] == numbers  # the caption belongs to the image
    found.close()


def test_audio_becomes_spectrograms(audio: AudioTextStream) -> None:
    found = reader(audio)
    raw = next(found)
    batch = found.on_device(raw)
    assert set(batch.tensors) == {"spectrogram", "input_ids", "attention_mask"} and batch.keys == raw.keys
    assert raw["waveform"].shape == (8, 1, 4000) and raw["waveform"].dtype == torch.int16
    assert batch["spectrogram"].shape == (8, 1, AUDIO.frames, AUDIO.bins) == (8, 1, 51, 16)
    for i, key in enumerate(raw.keys):
        number, wave = int(key.split("/")[1]), raw["waveform"][i, 0].numpy()
        whole = np.rint(clip(number) * 32768).astype(np.int16)
        if len(whole) == 2000:
            np.testing.assert_array_equal(wave, np.tile(whole, 2))
        elif len(whole) == 8000:
            assert wave.tobytes() in whole.tobytes()
        if len(whole) <= 4000:  # nothing is cut, so training and evaluation are equal
            assert torch.equal(prepare_sounds([(clip(number), 8000)], **AUDIO.model_dump())[0], batch["spectrogram"][i, 0])
    found.close()


def test_reading_tasks_import_no_torch() -> None:
    modules = "multicse.data.streams, multicse.data.offline.demo, multicse.data.window"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[3]).returncode == 0
