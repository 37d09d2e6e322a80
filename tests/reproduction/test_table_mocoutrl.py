"""What MoCoUTRL's Figure 2 is measured from and drawn with."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.tasks.labelled_texts import read_labelled
from multicse.reproduction.tables.mocoutrl import BINS, DISTANCES, TABLES, circle, token_states
from multicse.reproduction.tasks.class_geometry import class_distances
from tests.evaluation.evaluation_helpers import sentence, tiny_bert


def labelled(folder: Path) -> str:
    """Three parts of two classes."""
    rng = random.Random(0)
    for part, count in (("train", 8), ("dev", 4), ("test", 30)):
        lines = [f"{'ab'[i % 2]}\t{sentence(rng, 6)}" for i in range(count)]
        (folder / f"x.{part}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    return str(folder / "x.train.tsv")


def test_random_tokens_are_tokens_of_their_texts(tmp_path: Path) -> None:
    model = load_encoder(tiny_bert(tmp_path), device="cpu")
    texts = ["the dog runs", "one", "a small cat sleeps on the old house"]
    found = token_states(model, texts)
    assert found.shape[:2] == (3, 5)
    for text, drawn in zip(texts, found, strict=True):
        states = model.model(dict(model.model.preprocess([text])))
        own = states["token_embeddings"][0].detach().numpy()
        assert all(np.abs(own - one).max(axis=1).min() < 1e-5 for one in drawn)
    assert np.array_equal(found, token_states(model, texts))
    assert len(np.unique(found[2], axis=0)) > 1


def test_figure_2(tmp_path: Path) -> None:
    model, file = str(tiny_bert(tmp_path)), labelled(tmp_path)
    table = replace(TABLES["F2"], columns=tuple(f"geometry:{file}#{metric}" for metric in DISTANCES))
    found = circle(model, table, tmp_path)
    rows = read_labelled(file).parts["test"]
    vectors = load_encoder(model, device="cpu").encode([row.text for row in rows])
    expected = class_distances(vectors, [row.label for row in rows])
    assert found[table.columns[0]] == pytest.approx(expected.intra, abs=1e-6)
    shares = [found[f"distance {i}"] for i in range(10)]
    assert shares == pytest.approx(100 * np.asarray(expected.intra_counts) / sum(expected.intra_counts))
    for name in ("all", "a", "b"):
        assert sum(found[f"angle {name} {i}"] for i in range(BINS)) * 2 * np.pi / BINS == pytest.approx(1)
    assert table.draw is not None
    figure = table.draw(table, {"one": {key: [value] for key, value in found.items()}})
    _, every, classes = figure.axes
    assert (len(every.patches), len(classes.patches)) == (1, 2)
