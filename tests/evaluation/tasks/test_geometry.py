"""Geometry against golden values, pairs spelled out, and shapes whose numbers are known."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks import geometry
from multicse.evaluation.tasks.geometry import (
    GeometryTask,
    PairedGeometryTask,
    alignment,
    anisotropy,
    cross_uniformity_cyclip,
    uniformity,
)
from multicse.evaluation.tasks.sts import Pairs, PairTask
from tests.evaluation.evaluation_helpers import Bag, unit
from tests.evaluation.paired_helpers import Coded, image_shards, sound_shards

A = np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0, 0, 1]])
B = np.array([[0.8, 0.6, 0], [0, 1, 0], [0.6, 0, 0.8], [0, 0.8, 0.6]])


def cone(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Directions around one, of different lengths, as an untrained BERT has them; the first dimensions vary most."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, d)) * np.linspace(2, 0.5, d) + 1) * rng.uniform(0.1, 30, (n, 1))


def squares(x: np.ndarray) -> list[float]:
    return [float(((a - b) ** 2).sum()) for a, b in combinations(unit(x), 2)]


def test_golden_values() -> None:
    assert alignment(A, B) == pytest.approx(0.58, abs=1e-6)
    assert uniformity(A) == pytest.approx(-1.976761, abs=1e-6)


def test_degenerate_input_is_refused() -> None:
    with pytest.raises(EvaluationError, match="zero vector"):
        uniformity(np.array([[1.0, 0], [0, 0]]))
    with pytest.raises(EvaluationError, match="pairs"):
        alignment(A, B[:3])


# ----------------------------------------------------------------------------------------------------- against definitions


@pytest.mark.parametrize(("n", "chunk"), [(2, 1), (64, 7), (150, 2048)])
def test_uniformity_in_blocks_is_that_of_all_pairs(n: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "CHUNK", chunk)
    x = cone(n, 24)
    whole = -2 * torch.pdist(torch.from_numpy(unit(x))).square()
    assert uniformity(x) == pytest.approx((whole.logsumexp(0) - math.log(len(whole))).item(), abs=1e-6)


@pytest.mark.parametrize("chunk", [5, 2048])
def test_cross_uniformity_is_that_of_the_released_script(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "CHUNK", chunk)
    x, y = unit(cone(23, 6)), unit(cone(23, 6, seed=1))
    potentials = [math.exp(-2 * ((x[i] - y[j]) ** 2).sum()) for i in range(23) for j in range(i)]
    assert cross_uniformity_cyclip(x, y) == pytest.approx(math.log(np.mean(potentials)), abs=1e-6)


def test_anisotropy_is_that_of_all_pairs() -> None:
    x = cone(40, 6)
    products = np.array([a * b for a, b in combinations(unit(x), 2)])
    variance = np.sort(unit(x).var(0))
    want = {"mean_cosine": products.sum(1).mean(), "top3_variance": variance[-3:].sum() / variance.sum()}
    assert anisotropy(x) == pytest.approx({**want, "dimension_std": (unit(x).std(0) * math.sqrt(6)).mean()}, abs=1e-6)


# ------------------------------------------------------------------------------------------------------------------- tasks


def test_positives_are_above_four_and_sentences_are_distinct() -> None:
    """A sentence that occurs twice counts once for uniformity; a rating of exactly 4 is no positive."""
    rows = [("a man", "a dog", 5.0), ("a man", "the cat", 4.0), ("red car", "big car", 4.2), ("food", "a dog", 0.0)]
    first, second, gold = zip(*rows, strict=True)
    task = GeometryTask(PairTask("toy", Pairs(first, second, gold, ("s",) * 4)), 4.0)

    vectors = {text: Bag().encode([text])[0] for text in {*first, *second}}
    want_alignment = np.mean([squares(np.stack([vectors[a], vectors[b]]))[0] for a, b, g in rows if g > 4])
    everything = np.stack(list(vectors.values()))
    want_uniformity = math.log(np.mean([math.exp(-2 * s) for s in squares(everything)]))

    got, details, _ = task.score(Bag())
    assert task.name == "toy-geometry"
    want = {"alignment": want_alignment, "uniformity": want_uniformity, "uniformity_without_log": math.exp(want_uniformity)}
    assert got == pytest.approx({**want, **anisotropy(everything)}, abs=1e-5)
    assert details == {"positives": 2, "threshold": 4.0, "sentences": 6}
    with pytest.raises(EvaluationError, match="no pair is rated above 4"):
        GeometryTask(PairTask("x", Pairs(("a", "b"), ("c", "d"), (4.0, 1.0), ("s", "s"))), 4.0)


@pytest.mark.parametrize("modality", ["image", "audio"])
def test_paired_geometry(tmp_path: Path, modality: str) -> None:
    captions = [[f"c{i}", f"c{i} other"][: 1 + i % 2] for i in range(9)]
    make = image_shards if modality == "image" else sound_shards
    encoder = Coded(shift=3)
    items = np.stack([encoder.vector(i) for i in range(9)])
    texts = np.stack([encoder.vector(i + 3) for i, own in enumerate(captions) for _ in own])
    owners = [i for i, own in enumerate(captions) for _ in own]

    metrics, details, _ = PairedGeometryTask("pairs", make(tmp_path, captions)).score(encoder)
    assert details == {"items": 9, "captions": 13, "distinct_captions": 13}
    first = [owners.index(i) for i in range(9)]
    assert metrics == pytest.approx(
        {
            "alignment": ((unit(items)[owners] - unit(texts)) ** 2).sum(1).mean(),
            "text_uniformity": math.log(np.mean(np.exp(-2 * np.array(squares(texts))))),
            f"{modality}_uniformity": math.log(np.mean(np.exp(-2 * np.array(squares(items))))),
            "cross_uniformity_cyclip": cross_uniformity_cyclip(items, texts[first]),
            "modality_gap": np.linalg.norm(unit(items).mean(0) - unit(texts).mean(0)),
        },
        abs=1e-5,
    )
