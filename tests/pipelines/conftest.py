"""A tiny random encoder, tiny shards and a tiny recipe: what the loop can be tested with in seconds."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.config import AudioStream, ImageStream, TextStream
from trainers.nonling import AudioConfig, ImageConfig, NonLingCSEConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.simcse import SimCSEConfig

WORDS = "the a cat dog house tree river runs sees likes old new red green small large near under over with".split()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_text(folder: Path, counts: tuple[int, ...] = (50, 30)) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, count in enumerate(counts):
        with tarfile.open(folder / f"text-train-{number:06d}.tar", "w") as tar:
            for i in range(count):
                add(tar, f"{number}-{i:04d}.txt", " ".join(rng.choice(WORDS, 8)).encode())
    return str(folder)


def write_images(folder: Path, count: int = 48) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    with tarfile.open(folder / "image-train-000000.tar", "w") as tar:
        for i in range(count):
            data = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(data, "PNG")
            add(tar, f"{i:04d}.png", data.getvalue())
            add(tar, f"{i:04d}.cls", str(i % 4).encode())
    return str(folder)


def write_sounds(folder: Path, count: int = 32) -> str:
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    with tarfile.open(folder / "audio-train-000000.tar", "w") as tar:
        for i in range(count):
            data = io.BytesIO()
            soundfile.write(data, rng.normal(0, 0.1, 2000).astype("float32"), 8000, format="WAV")
            add(tar, f"{i:04d}.wav", data.getvalue())
            add(tar, f"{i:04d}.cls", str(i % 4).encode())
    return str(folder)


def write_encoder(folder: Path) -> str:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from trainers.pretrain import train_wordpiece

    tokenizer: PreTrainedTokenizerFast = train_wordpiece([" ".join(WORDS)] * 5, vocab_size=120)
    import torch

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and shards of text, images and sounds."""
    folder = tmp_path_factory.mktemp("inputs")
    write_encoder(folder / "encoder")
    write_text(folder / "text")
    write_images(folder / "image")
    write_sounds(folder / "audio")
    return folder


@pytest.fixture
def recipe(place: Path, tmp_path: Path) -> Recipe:
    """Text, images and sounds in three turns, in this process; 6 steps."""
    return Recipe(
        name="nonling/test",
        method=NonLingCSEConfig(
            text=SimCSEConfig(head="none"),
            image=ImageConfig(image_size=16, patch_size=8, weight=1.0),
            audio=AudioConfig(frames=32, bins=16, weight=1.0),
        ),
        encoder=EncoderConfig(path=str(place / "encoder"), pooling="mean"),
        streams={
            "text": TextStream(shards=str(place / "text"), batch_size=16, window=32),
            "image": ImageStream(shards=str(place / "image"), batch_size=8, size=16, window=32),
            "audio": AudioStream(shards=str(place / "audio"), batch_size=8, rate=8000, bins=16, frames=32, window=16),
        },
        optim={name: OptimConfig(lr=1e-3) for name in ("text", "image", "audio")},
        evaluation=EvaluationConfig(select="lee-dev", final=("lee",), every=3),
        run=RunConfig(
            output=str(tmp_path / "run"),
            max_steps=6,
            epochs=100,
            workers=0,
            log_every=1,
            threads=1,
            tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}",
        ),
    )


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """The one Ray of the test session."""
    import ray

    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def journal(run: Path) -> list[dict[str, object]]:
    """Lines of a run's journal."""
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
