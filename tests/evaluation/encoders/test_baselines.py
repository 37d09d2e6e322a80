"""Poolings by hand, one text at a time, and whitening against scikit-learn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, DebertaV2Config

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.encoders.whitening import Whitened
from multicse.evaluation.task import EvaluationError
from multicse.reproduction.encoders.centred import Centred
from tests.evaluation.evaluation_helpers import Bag, texts, tiny_bert, unit


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {name: tmp_path_factory.mktemp(name) for name in ("bert", "deberta")}
    tiny_bert(places["bert"])
    torch.manual_seed(1)
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    options = {"max_position_embeddings": 24, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    config = DebertaV2Config(**sizes, **options, pad_token_id=1, initializer_range=0.5)
    AutoTokenizer.from_pretrained(places["bert"]).save_pretrained(places["deberta"])
    AutoModel.from_config(config).save_pretrained(places["deberta"])
    return places


def states_of(folder: Path, items: list[str]) -> Iterator[Tensor]:
    """Hidden states (l + 1, T, d) of transformers, one text at a time without padding."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text in items:
        with torch.no_grad():
            tokens = tokenizer(text, return_tensors="pt", truncation=True)
            yield torch.stack(model(**tokens, output_hidden_states=True).hidden_states)[:, 0]


BY_HAND: dict[str, Callable[[Tensor], Tensor]] = {
    "first1-last": lambda h: torch.stack([h[1], h[-1]]).mean((0, 1)),
    "layer0-mean": lambda h: h[0].mean(0),
    "layer1-cls": lambda h: h[1][0],
    "layer1-max": lambda h: h[1].max(0).values,
}


@pytest.mark.parametrize("family", ["bert", "deberta"])
def test_poolings_of_the_kit_by_hand(folders: dict[str, Path], family: str) -> None:
    """Poolings of recipes are tested in tests/models/test_model_folders.py."""
    items = texts(20, 30 if family == "bert" else 12)  # some are longer than the 24 positions
    states = list(states_of(folders[family], items))
    for name, pool in BY_HAND.items():
        got = load_encoder(folders[family], name, "cpu", batch_size=4).encode(items)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, torch.stack([pool(one) for one in states]).numpy(), atol=1e-5, err_msg=name)


def test_a_prompt_is_not_pooled_if_the_folder_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    model: Any = SentenceTransformer(str(folders["bert"]), device="cpu")
    model.prompts, model.default_prompt_name, model[1].include_prompt = {"query": "the red dog "}, "query", False
    model.save(str(tmp_path))
    states = states_of(folders["bert"], ["the red dog " + text for text in texts(9)])
    want = torch.stack([one[1][4:].mean(0) for one in states])  # without [CLS] and the prompt
    np.testing.assert_allclose(load_encoder(tmp_path, "layer1-mean", "cpu").encode(texts(9)), want.numpy(), atol=1e-5)


def test_modules_after_the_transformer_are_skipped(folders: dict[str, Path], tmp_path: Path) -> None:
    transformer = Transformer(str(folders["bert"]))
    SentenceTransformer(modules=[transformer, Pooling(16, "cls"), Dense(16, 5), Normalize()]).save(str(tmp_path))
    encoder = load_encoder(tmp_path, "layer1-mean", "cpu")
    np.testing.assert_allclose(
        encoder.encode(texts(9)), load_encoder(folders["bert"], "layer1-mean", "cpu").encode(texts(9)), atol=1e-6
    )
    assert (encoder.pooling, encoder.protocol["pooling"]) == ("layer1-mean", "layer1-mean")
    assert load_encoder(tmp_path, device="cpu").encode(texts(9)).shape == (9, 5)


def test_ditto_by_hand(folders: dict[str, Path]) -> None:
    """Weights of tokens are their attention to themselves, in head 2 of layer 1; states as in first-last."""
    items, folder = texts(12), folders["bert"]
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    wanted = []
    for text in items:
        tokens = tokenizer(text, return_tensors="pt", truncation=True)
        out = model(**tokens, output_hidden_states=True, output_attentions=True)
        both = (out.hidden_states[0][0] + out.hidden_states[-1][0]) / 2
        wanted.append(sum(out.attentions[0][0, 1, t, t] * both[t] for t in range(len(both))))
    found = load_encoder(folder, "ditto1-2", "cpu", batch_size=4).encode(items)
    np.testing.assert_allclose(found, torch.stack(wanted).detach().numpy(), atol=1e-5)
    with pytest.raises(EvaluationError, match="head 10 of layer 1 does not exist; choose ditto1-1 to ditto2-2"):
        load_encoder(folder, "ditto", "cpu")


# ------------------------------------------------------------------------------------------- whitening


def cosines(vectors: np.ndarray) -> np.ndarray:
    return unit(vectors) @ unit(vectors).T


@pytest.mark.parametrize("dimensions", [None, 5])
def test_whitening_against_scikit_learn(dimensions: int | None) -> None:
    items = list(dict.fromkeys(texts(300)))
    bag = Bag()
    encoder = Whitened(bag, items + items[:50], dimensions)  # repeated sentences count once
    got = encoder.encode(items)
    assert got.dtype == np.float32
    assert bag.calls == 1  # the fitted sentences are not encoded again
    np.testing.assert_allclose(np.cov(got, rowvar=False), np.eye(dimensions or 16), atol=1e-5)
    pca = PCA(dimensions, whiten=True).fit(bag.encode(items))
    np.testing.assert_allclose(cosines(got), cosines(pca.transform(bag.encode(items))), atol=1e-5)
    new = ["a dog in the red car", "food"]
    np.testing.assert_allclose(cosines(encoder.encode(new)), cosines(pca.transform(bag.encode(new))), atol=1e-5)


def test_whitening_removes_axes_without_variance(caplog: pytest.LogCaptureFixture) -> None:
    class Flat(Bag):
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            vectors = super().encode(items, modality)
            vectors[:, 9:] = vectors[:, :7]
            return vectors

    some = texts(60)
    with caplog.at_level(logging.INFO, logger="multicse.evaluation"):
        encoder = Whitened(Flat(), some)
    assert "keeps 9 of 16 dimensions" in caplog.text
    np.testing.assert_allclose(np.cov(encoder.encode(list(dict.fromkeys(some))), rowvar=False), np.eye(9), atol=1e-5)
    with pytest.raises(EvaluationError, match="9 of 16"):
        Whitened(Flat(), some, 10)


def test_whitening_that_makes_all_sentences_equally_similar_is_refused() -> None:
    """N sentences in N - 1 dimensions: every cosine is -1 / (N - 1), and scores would be rounding errors."""
    few = texts(10)
    for dimensions in (None, 9):
        with pytest.raises(EvaluationError, match=r"10 sentences have equal distances .*--fit FILE.*\+whitening2"):
            Whitened(Bag(), few, dimensions)
    cosine = cosines(Whitened(Bag(), few, 8).encode(few))
    assert np.ptp(cosine[~np.eye(10, dtype=bool)]) > 0.01


@pytest.mark.parametrize("how", ["centring", "standardise", "all-but-the-top"])
def test_alternatives_to_whitening_against_scikit_learn(how: str) -> None:
    """Against scikit-learn's scaler and principal components, for sentences that were not fitted on."""
    items, new = list(dict.fromkeys(texts(300))), ["a dog in the red car", "food"]
    x, y = Bag().encode(items), Bag().encode(new)
    want = StandardScaler(with_std=how == "standardise").fit(x).transform(y)
    if how == "all-but-the-top":  # one of 16 dimensions
        pca = PCA(1).fit(x)
        want = y - pca.mean_ - pca.transform(y) @ pca.components_
    encoder = Centred(Bag(), items, how)
    np.testing.assert_allclose(encoder.encode(new), want, atol=1e-5)
    assert encoder.protocol["post_processing"] == how
