"""SBERT-WK compared with its formulas, curves over layers with single layers, and GCLSR's word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.load import load_model
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError, Task
from multicse.evaluation.tasks.geometry import GeometryTask
from multicse.reproduction.encoders.layers import layer_scores
from tests.evaluation.encoders.test_baselines import states_of
from tests.evaluation.encoders.test_word_vectors import VECTORS, write
from tests.evaluation.evaluation_helpers import pair_task, rated, texts, tiny_bert, write_raw


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of a BERT with 2 layers and a BERT with 6."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("bert", "deep")}
    tiny_bert(places["bert"])
    torch.manual_seed(1)
    BertModel(BertConfig.from_pretrained(places["bert"], num_hidden_layers=6)).save_pretrained(places["deep"])
    AutoTokenizer.from_pretrained(places["bert"]).save_pretrained(places["deep"])
    return places


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def naive_token(v: np.ndarray, window: int, released: bool) -> np.ndarray:
    """Return the vector of a token with layers v (L, d), by cosines and least squares instead of a QR decomposition."""
    alignment, novelty = [], []
    for i in range(len(v)):
        below = [] if released and i < window else list(range(max(0, i - window), i))
        near = [v[j] for j in below + list(range(i + 1, min(len(v), i + window + 1)))]
        basis = np.array(near).T
        inside = basis @ np.linalg.lstsq(basis, v[i], rcond=None)[0]  # the projection on the neighbours' span
        novelty.append(np.linalg.norm(v[i] - inside) / np.linalg.norm(v[i]))
        if released:
            alignment.append(1 / (2 * (len(near) + 1) * np.mean([cosine(inside, u) for u in near])))
        else:
            alignment.append(1 / np.mean([cosine(v[i], u) for u in near]))
    weights = np.array(alignment) / sum(alignment) + np.array(novelty) / sum(novelty)
    return (weights / weights.sum()) @ v


def naive_wk(states: np.ndarray, start: int, window: int, released: bool) -> np.ndarray:
    """Return the embedding of a sentence with states (l + 1, T, d), without the last token."""
    tokens = states[start:, :-1].transpose(1, 0, 2)
    spread = [np.var([cosine(v[i], v[i + 1]) for i in range(len(v) - 1)]) for v in tokens]
    unified = [naive_token(v, window, released) for v in tokens]
    return np.average(unified, axis=0, weights=spread)


@pytest.mark.parametrize(
    ("name", "start", "released"), [("wk0", 0, False), ("wk2", 2, False), ("wk", 4, False), ("wk0-released", 0, True)]
)
def test_wk_by_its_formulas(folders: dict[str, Path], name: str, start: int, released: bool) -> None:
    items = texts(25)
    got = load_encoder(folders["deep"], name, "cpu", batch_size=3).encode(items)
    states = [s.double().numpy() for s in states_of(folders["deep"], items)]
    np.testing.assert_allclose(got, [naive_wk(s, start, 2, released) for s in states], atol=2e-4, rtol=1e-3)
    assert np.abs(got - [naive_wk(s, start, 2, not released) for s in states]).max() > 0.01


@pytest.mark.parametrize("pooling", ["wk", "wk1"])
def test_wk_needs_three_layers(folders: dict[str, Path], pooling: str) -> None:
    with pytest.raises(EvaluationError):
        load_encoder(folders["bert"], pooling, "cpu")


def test_layer_curves_are_those_of_each_layer_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    pairs = [pair_task(write_raw(tmp_path / f"set{seed}.tsv", rated(60, seed))) for seed in (0, 1)]
    tasks: list[Task] = [*pairs, GeometryTask(pairs[0], 4)]
    curves = layer_scores(folders["bert"], tasks, "cpu")
    assert {pool: len(curve) for pool, curve in curves.items()} == {"cls": 3, "mean": 3, "max": 3}
    for pool, curve in curves.items():
        for layer, got in enumerate(curve):
            want = evaluate(tasks, load_encoder(folders["bert"], f"layer{layer}-{pool}", "cpu"))
            for name, metrics in want.items():
                assert got[name] == pytest.approx(metrics, abs=1e-3), (pool, layer, name)
    assert curves["cls"][0]["set0"]["spearman"] == 0  # [CLS] does not depend on the sentence in layer 0


def test_padded_is_the_mean_over_64_positions_as_released(tmp_path: Path) -> None:
    """Positions are words, random vectors of unknown words, or one padding vector; sentences are truncated at 64."""
    encoder = load_model(f"{write(tmp_path)}@padded")
    assert "64 padded places" in encoder.protocol["pooling"] and encoder.name == "tiny@padded"
    texts = ["The dog-cat.", "the zebra", "a zebra the", "cat " * 70 + "dog", "", "?!"]
    short, unknown, elsewhere, cut, *empty = encoder.encode(texts)
    padding = (short * 64 - VECTORS[[3, 0, 1]].sum(0)) / 61
    assert 0.1 < np.abs(padding).max() <= np.sqrt(3 / 4)
    np.testing.assert_allclose(cut, VECTORS[1], atol=1e-6)
    zebra = unknown * 64 - VECTORS[3] - 62 * padding
    assert 0.1 < np.abs(zebra).max() <= np.sqrt(3 / 4) + 1e-4
    assert not np.allclose(zebra, elsewhere * 64 - VECTORS[3] - 61 * padding, atol=0.1)  # "a" has no vector either
    np.testing.assert_array_equal(encoder.encode(["the zebra"])[0], unknown)
    for vector in empty:  # the word "sickeningly", which has no vector
        assert 0.1 < np.abs(vector * 64 - 63 * padding).max() <= np.sqrt(3 / 4) + 1e-4
    assert encoder.protocol["unknown_words"] == 3 and encoder.protocol["texts_without_known_word"] == 2
