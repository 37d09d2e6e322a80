"""Train a dual encoder from shards to registry, with two streams in an update and captions from class names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.evaluation.load import load_model
from multicse.reproduction.towers import ResNetTower
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.engine.checkpoint import load_method
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from tests import worlds
from tests.evaluation.paired_helpers import image_shards
from tests.worlds import journal

INPUT = ImageInput(size=32)


@pytest.fixture
def recipe(tracking_uri: str, tmp_path: Path) -> Recipe:
    pairs = image_shards(tmp_path / "pairs", [[f"a {worlds.WORDS[i % 15]} house {i}", "the cat"] for i in range(16)])
    templates = {"templates": ("a {} house", "the {} dog"), "classes": ("red", "green", "old", "new")}
    tower = ResNetTower(input=INPUT, width=8, blocks=(1, 1, 1, 1))
    images = worlds.write_images(tmp_path / "images")
    return Recipe(
        name="cyclip/tiny",
        method=CLIPConfig(tower=tower, embed_dim=8, i_cyclic=0.25, c_cyclic=0.25, captions=0.1, nli_sentences=0.1),
        encoder=EncoderConfig(path=worlds.write_encoder(tmp_path / "encoder"), scratch=True),
        streams={
            "pairs": ImageTextStream(shards=images, batch_size=8, max_length=64, input=INPUT, cpus=0.25, **templates),
            "nli_sentences": TextStream(shards=worlds.write_text(tmp_path / "text"), batch_size=8, cpus=0.25),
        },
        optim={"pairs+nli_sentences": OptimConfig(lr=1e-3)},
        lead="pairs",
        evaluation=EvaluationConfig(
            select=f"contrastive:{pairs}?batch=8",
            watch=(f"geometry:{pairs}",),
            final=(f"retrieval:{pairs}", "lee"),
            eval_steps=2,
        ),
        run=RunConfig(
            output_dir=str(tmp_path / "run"),
            num_workers=0,
            cpus_per_worker=0.5,
            max_steps=4,
            logging_steps=1,
            tracking_uri=tracking_uri,
        ),
    )


def test_in_process(recipe: Recipe, tmp_path: Path) -> None:
    """The checkpoint has the lowest validation loss, figures exist, and the export has the scores of the run."""
    from mlflow import MlflowClient

    summary = run_recipe(recipe)
    losses = [
        (line["metrics"][name], line["step"])  # type: ignore[index]
        for line in journal(tmp_path / "run")
        for name in line.get("metrics", {})  # type: ignore[attr-defined]
        if name.startswith("eval/contrastive:") and name.endswith("/loss")
    ]
    assert len(losses) == 3
    assert (summary["best_score"], summary["best_step"]) == min(losses)
    figures = MlflowClient(summary["tracking_uri"]).list_artifacts(summary["mlflow_run_id"], "figures")
    assert any("over_training" in file.path for file in figures)
    encoder = load_method(summary["checkpoint"]).sentence_encoder
    picture = np.full((40, 50, 3), 200, np.uint8)
    saved = load_model(summary["export"])
    ours = encoder.encode_items([picture])
    torch.testing.assert_close(torch.from_numpy(saved.encode([picture], "image")), ours, atol=1e-4, rtol=0)
