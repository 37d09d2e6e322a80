"""Poolings against one text at a time by hand, WK against its formulas, whitening against scikit-learn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
)

from multicse.evaluation.encoders.baselines import Centred, Centring, Whitened
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.task import EvaluationError, Task, evaluate
from multicse.evaluation.tasks.geometry import GeometryTask
from multicse.evaluation.tasks.sts import PairTask, read_pairs
from multicse.reproduction.encoders import layers
from tests.evaluation.evaluation_helpers import Bag, rated, texts, tiny_bert, tiny_roberta, write_raw

SMALL = {"vocab_size": 24, "max_position_embeddings": 24, "pad_token_id": 1, "initializer_range": 0.5}


def distilbert() -> DistilBertModel:
    return DistilBertModel(DistilBertConfig(**SMALL, dim=16, n_layers=2, n_heads=2, hidden_dim=32))


def deberta() -> DebertaV2Model:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return DebertaV2Model(DebertaV2Config(**SMALL, **sizes, relative_attention=True, pos_att_type=["c2p", "p2c"]))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {name: tmp_path_factory.mktemp(name) for name in ("bert", "roberta", "distilbert", "deberta", "deep")}
    tiny_bert(places["bert"])
    tiny_roberta(places["roberta"])
    torch.manual_seed(1)
    deep = BertModel(BertConfig.from_pretrained(places["bert"], num_hidden_layers=6))
    for name, model in (("distilbert", distilbert()), ("deberta", deberta()), ("deep", deep)):
        AutoTokenizer.from_pretrained(places["bert"]).save_pretrained(places[name])
        model.save_pretrained(places[name])
    return places


def states_of(folder: Path, items: list[str]) -> Iterator[Tensor]:
    """Hidden states (l + 1, T, d), one text at a time through transformers: no batches, no padding."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text in items:
        with torch.no_grad():
            tokens = tokenizer(text, return_tensors="pt", truncation=True)
            yield torch.stack(model(**tokens, output_hidden_states=True).hidden_states)[:, 0]


BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda h: h[-1][0],
    "mean": lambda h: h[-1].mean(0),
    "max": lambda h: h[-1].max(0).values,
    "last2": lambda h: h[-2:].mean((0, 1)),
    "first-last": lambda h: torch.stack([h[0], h[-1]]).mean((0, 1)),
    "first1-last": lambda h: torch.stack([h[1], h[-1]]).mean((0, 1)),
    "layer0-mean": lambda h: h[0].mean(0),
    "layer0-max": lambda h: h[0].max(0).values,
    "layer1-cls": lambda h: h[1][0],
    "layer1-mean": lambda h: h[1].mean(0),
    "layer1-max": lambda h: h[1].max(0).values,
}


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta"])
def test_poolings_by_hand(folders: dict[str, Path], family: str) -> None:
    items = texts(40, 30 if family == "bert" else 12)  # some are longer than the 24 positions
    for name, pool in BY_HAND.items():
        got = load_encoder(folders[family], name, "cpu", batch_size=4).encode(items)
        assert got.dtype == np.float32
        want = torch.stack([pool(states) for states in states_of(folders[family], items)]).numpy()
        np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)


def test_modules_after_the_transformer_are_left_out(folders: dict[str, Path], tmp_path: Path) -> None:
    transformer = Transformer(str(folders["bert"]))
    SentenceTransformer(modules=[transformer, Pooling(16, "cls"), Dense(16, 5), Normalize()]).save(str(tmp_path))
    encoder = load_encoder(tmp_path, "layer1-mean", "cpu")
    np.testing.assert_allclose(
        encoder.encode(texts(9)), load_encoder(folders["bert"], "layer1-mean", "cpu").encode(texts(9)), atol=1e-6
    )
    assert (encoder.pooling, encoder.protocol["pooling"]) == ("layer1-mean", "layer1-mean")
    assert load_encoder(tmp_path, device="cpu").encode(texts(9)).shape == (9, 5)


# ------------------------------------------------------------------------------------------------------------------- WK


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def naive_token(v: np.ndarray, window: int, released: bool) -> np.ndarray:
    """One token's vector of its layers v (L, d): cosines and least squares instead of a QR decomposition."""
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
    """A sentence's vector of its states (l + 1, T, d), the last token left out."""
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


@pytest.mark.parametrize("pooling", ["wk", "wk1", "layer3-mean", "layer1-median", "frist-last"])
def test_poolings_that_do_not_fit(folders: dict[str, Path], pooling: str) -> None:
    with pytest.raises(EvaluationError):
        load_encoder(folders["bert"], pooling, "cpu")


# ------------------------------------------------------------------------------------------------------------ whitening


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("dimensions", [None, 5])
def test_whitening_against_scikit_learn(dimensions: int | None) -> None:
    items = list(dict.fromkeys(texts(300)))
    bag = Bag()
    encoder = Whitened(bag, items + items[:50], dimensions)  # repeated sentences count once
    got = encoder.encode(items)
    assert got.dtype == np.float32
    assert bag.calls == 1  # the fitted sentences are not encoded again
    np.testing.assert_allclose(np.cov(got, rowvar=False), np.eye(dimensions or 16), atol=1e-5)
    want = PCA(dimensions, whiten=True).fit_transform(bag.encode(items))
    np.testing.assert_allclose(cosines(got), cosines(want), atol=1e-5)
    new = ["a dog in the red car", "food"]
    pca = PCA(dimensions, whiten=True).fit(bag.encode(items))
    np.testing.assert_allclose(cosines(encoder.encode(new)), cosines(pca.transform(bag.encode(new))), atol=1e-5)


def test_whitening_leaves_out_axes_without_variance(caplog: pytest.LogCaptureFixture) -> None:
    few = texts(10)
    with caplog.at_level(logging.INFO, logger="multicse.evaluation"):
        encoder = Whitened(Bag(), few)
    assert "keeps 9 of 16 dimensions" in caplog.text
    np.testing.assert_allclose(np.cov(encoder.encode(few), rowvar=False), np.eye(9), atol=1e-5)
    with pytest.raises(EvaluationError, match="9 of 16"):
        Whitened(Bag(), few, 10)


@pytest.mark.parametrize("how", ["centring", "standardise", "all-but-the-top"])
def test_cheaper_than_whitening(how: Centring) -> None:
    """By scikit-learn's scaler and principal components, of sentences that were not fitted on."""
    items, new = list(dict.fromkeys(texts(300))), ["a dog in the red car", "food"]
    x, y = Bag().encode(items), Bag().encode(new)
    want = StandardScaler(with_std=how == "standardise").fit(x).transform(y)
    if how == "all-but-the-top":  # one of 16 dimensions
        pca = PCA(1).fit(x)
        want = y - pca.mean_ - pca.transform(y) @ pca.components_
    encoder = Centred(Bag(), items, how)
    np.testing.assert_allclose(encoder.encode(new), want, atol=1e-5)
    assert encoder.protocol["post_processing"] == how


# --------------------------------------------------------------------------------------------------------- layer curves


def test_layer_curves_are_those_of_each_layer_alone(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [PairTask(f"set{seed}", read_pairs(write_raw(tmp_path / f"{seed}.tsv", rated(60, seed)))) for seed in (0, 1)]
    tasks: list[Task] = [*pairs, GeometryTask(pairs[0], 4)]
    curves = layers.layer_scores(folders["bert"], tasks, "cpu")
    assert "task set0" not in caplog.text  # that [CLS] before any layer is alike everywhere is no collapse
    assert {pool: len(curve) for pool, curve in curves.items()} == {"cls": 3, "mean": 3, "max": 3}
    for pool, curve in curves.items():
        for layer, got in enumerate(curve):
            want = evaluate(tasks, load_encoder(folders["bert"], f"layer{layer}-{pool}", "cpu"))
            for name, metrics in want.items():
                assert got[name] == pytest.approx(metrics, abs=1e-3), (pool, layer, name)
    assert curves["cls"][0]["set0"]["spearman"] == 0  # [CLS] before any layer knows nothing of the sentence
    monkeypatch.setattr(layers, "MEMORY", 1)  # task by task
    assert layers.layer_scores(folders["bert"], tasks, "cpu")["max"][2].keys() == {task.name for task in tasks}
