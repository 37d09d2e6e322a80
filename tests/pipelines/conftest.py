"""A tiny recipe on tiny inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.streams.kinds import AudioStream, ImageStream, TextStream
from tests.small import write_encoder, write_images, write_sounds, write_text
from trainers.nonling import AudioConfig, ImageConfig, NonLingCSEConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.simcse import SimCSEConfig


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
