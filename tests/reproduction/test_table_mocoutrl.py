"""MoCoUTRL's Figure 2: random tokens, the density of their angles, distances within a class, and a supervised model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import i0
from scipy.stats import circstd

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.tasks.classification import read_labelled
from multicse.reproduction.tables import model_figures, runs
from multicse.reproduction.tables.table import read_tables
from multicse.reproduction.tasks.measures import class_distances
from tests.evaluation.evaluation_helpers import sentence, tiny_bert

TABLE = read_tables("mocoutrl")["F2"]


def labelled(folder: Path) -> str:
    """Write three splits of two classes."""
    rng = random.Random(0)
    for part, count in (("train", 8), ("dev", 4), ("test", 30)):
        lines = [f"{'ab'[i % 2]}\t{sentence(rng, 6)}" for i in range(count)]
        (folder / f"x.{part}.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")
    return str(folder / "x.train.tsv")


def test_random_tokens_are_tokens_of_their_texts(tmp_path: Path) -> None:
    model = load_encoder(tiny_bert(tmp_path), device="cpu")
    texts = ["the dog runs", "one", "a small cat sleeps on the old house"]
    found = model_figures.token_states(model, texts)
    assert found.shape[:2] == (3, 5) and len(np.unique(found[2], axis=0)) > 1
    for text, drawn in zip(texts, found, strict=True):
        own = model.model(dict(model.model.preprocess([text])))["token_embeddings"][0].detach().numpy()
        assert all(np.abs(own - one).max(axis=1).min() < 1e-5 for one in drawn)
    assert np.array_equal(found, model_figures.token_states(model, texts))


def test_von_mises_density_is_closed_and_sums_to_one() -> None:
    angles = np.random.default_rng(0).vonmises(np.pi, 4, 500)  # around the discontinuity of arctan2
    places = np.linspace(-np.pi, np.pi, 721)
    found = model_figures.vmf_density(angles, places)
    kappa = (circstd(angles) * 500**-0.2) ** -2
    expected = [np.mean([np.exp(kappa * np.cos(p - a)) for a in angles]) / (2 * np.pi * i0(kappa)) for p in places[::90]]
    assert found[::90] == pytest.approx(expected)
    assert found[0] == pytest.approx(found[-1]) and np.trapezoid(found, places) == pytest.approx(1)


def test_figure_2(tmp_path: Path) -> None:
    """Metrics and a figure of an untrained model, and of a model fine-tuned on the labels."""
    model, file = str(tiny_bert(tmp_path / "model")), labelled(tmp_path)
    columns = tuple(f"geometry:{file}#{metric}" for metric in TABLE.names)
    rows = [replace(row, model=model) for row in TABLE.rows if row.model]
    found = runs.results(replace(TABLE, columns=columns), "mocoutrl", runs.Scale(tmp_path, tmp_path), rows, (0,), print)
    data = read_labelled(file)
    every = [row for part in data.parts.values() for row in part]
    vectors = load_encoder(model, device="cpu").encode([row.text for row in every])
    intra, inter = class_distances(vectors, [row.label for row in every])
    plain, supervised = ([result["scores"][column] for column in columns] for result in found)
    assert plain[:2] == pytest.approx([intra, inter], abs=1e-6) and supervised[:2] != pytest.approx(plain[:2], abs=1e-4)
    assert all(Path(result["provenance"]["figure"]).is_file() for result in found)

    figure = model_figures.circle(model, replace(TABLE, columns=columns), tmp_path)
    distances, *planes = figure.axes[:6]
    assert sum(bar.get_height() for bar in distances.patches) == pytest.approx(100)  # type: ignore[attr-defined]
    points = [np.asarray(axes.collections[1].get_offsets()) for axes in planes[:3]]
    assert [axes.get_title() for axes in planes[:3]] == ["all", "a", "b"] and [len(of) for of in points] == [150, 75, 75]
    (line,) = figure.axes[7].lines
    angles = np.arctan2(points[0][:, 1], points[0][:, 0])
    assert np.asarray(line.get_ydata()) == pytest.approx(model_figures.vmf_density(angles, np.asarray(line.get_xdata())))
