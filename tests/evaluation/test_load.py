"""Model specs: what each part of a name does, and names that mean nothing."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicse.data.pack import text_lines
from multicse.data.shard_writer import Target, pack
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.encoders.whitening import Whitened
from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.evaluation.load import Spec, fit_sentences, load_model, parse
from multicse.evaluation.task import EvaluationError
from multicse.reproduction.encoders.centred import Centred
from multicse.reproduction.encoders.flow import Flowed
from tests.evaluation.evaluation_helpers import sentence, tiny_bert
from tests.worlds import png, write_tar

rng = random.Random(0)
ITEMS = [sentence(rng) for _ in range(60)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


def test_every_part_of_a_spec(bert: Path) -> None:
    plain = load_encoder(bert, "first-last", "cpu")
    cases: list[tuple[str, Any]] = [
        ("tiny@first-last", plain),
        ("tiny@first-last+whitening", Whitened(plain, ITEMS)),
        ("tiny@first-last+whitening5", Whitened(plain, ITEMS, 5)),
        ("tiny@first-last+all-but-the-top", Centred(plain, ITEMS, "all-but-the-top")),
        ("tiny@first-last+flow", Flowed(plain, ITEMS, seed=3)),
        ("tiny+whitening5", Whitened(load_encoder(bert, "mean", "cpu"), ITEMS, 5)),
        ("tiny", load_encoder(bert, "mean", "cpu")),
    ]
    for name, want in cases:
        model = load_model(str(bert.parent / name), device="cpu", fit=ITEMS, seed=3)
        np.testing.assert_allclose(model.encode(ITEMS[:9]), want.encode(ITEMS[:9]), atol=1e-5, err_msg=name)
        assert (model.name, model.hash) == (name, plain.hash)
        assert json.loads(json.dumps(model.protocol))["pooling"] == (name.split("+")[0].partition("@")[2] or "mean")


def test_each_model_names_what_it_is_fitted_on(bert: Path, tmp_path: Path) -> None:
    """SG-BERT's Figure 4: one flow of STS-B's sentences, one of NLI's, whatever is evaluated. Lines or shards."""
    file = tmp_path / "nli:en.txt"
    file.write_text("\n".join(ITEMS[:40]))
    pack(text_lines([file]), Target(tmp_path / "shards", name="text"))
    plain = load_encoder(bert, "last2", "cpu")
    for place in (str(file), str(tmp_path / "shards")):
        sentences = fit_sentences(place)
        assert sorted(sentences) == sorted(ITEMS[:40])  # packing shuffles
        model = load_model(f"{bert}@last2+flow:{place}", device="cpu", fit=ITEMS[30:], seed=3)
        np.testing.assert_allclose(model.encode(ITEMS[:9]), Flowed(plain, sentences, seed=3).encode(ITEMS[:9]), atol=1e-5)
        assert model.protocol["fitted_on"]["source"] == place


def test_texts_to_fit_on_come_from_tables_and_captions(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"txt": text}) + "\n" for text in ITEMS[:5])
    (tmp_path / "nli.jsonl").write_text(rows)
    assert fit_sentences(tmp_path / "nli.jsonl") == ITEMS[:5]
    write_tar(tmp_path / "photos" / "a-000.tar", [("0.png", png(np.zeros((8, 8, 3), np.uint8))), ("0.txt", b"a red car")])
    assert fit_sentences(tmp_path / "photos") == ["a red car"]


def test_protocol_says_what_was_done(bert: Path) -> None:
    model = load_model(f"{bert}+whitening5", pooling="max", device="cpu", fit=ITEMS)
    assert model.name == "tiny@max+whitening5"
    model.encode([" ".join(["dog"] * 40)])
    got = model.protocol
    fitted = got.pop("fitted_on")
    assert got == {
        "pooling": "max", "post_processing": "whitening5", "max_tokens": 24, "device": "cpu"
    }  # fmt: skip
    assert "transductive" in fitted["source"]
    assert (fitted["sentences"], fitted["dimensions"]) == (len(set(ITEMS)), 5)


def test_names_on_the_hub(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are found in the cache of the Hub; the error for missing ones contains the command to download them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    kept = tmp_path / "cache" / "models--google-bert--bert-tiny"
    shutil.copytree(bert, kept / "snapshots" / "0123abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123abc")
    model = load_model("google-bert/bert-tiny@first-last+whitening5", device="cpu", fit=ITEMS)
    want = Whitened(load_encoder(bert, "first-last", "cpu"), ITEMS, 5)
    np.testing.assert_allclose(model.encode(ITEMS[:9]), want.encode(ITEMS[:9]), atol=1e-5)
    assert model.name == "google-bert/bert-tiny@first-last+whitening5"
    for absent in ("google-bert/bert-huge@first-last", "bert+whitening"):
        with pytest.raises(EvaluationError, match=rf"model {re.split('[@+]', absent)[0]} not found\..*hf download"):
            load_model(absent, fit=ITEMS)


def test_word_vectors_by_spec(tmp_path: Path) -> None:
    words = tmp_path / "words.vec"
    words.write_text("dog 1 2\ncat 3 4\n")
    model = load_model(str(words))
    assert isinstance(model, WordVectors)
    np.testing.assert_allclose(model.encode(["dog cat"]), [[2, 3]])
    assert load_model(f"{words}@letters").name == "words@letters"
    assert load_model(f"{words}+whitening1", fit=["dog", "cat", "dog cat"]).encode(["cat"]).shape == (1, 1)


def test_folders_that_look_like_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a+flow", "b@c"):
        (tmp_path / name).mkdir()
    assert parse("a@cls") == Spec(Path("a"), "cls")
    assert parse("a+flow+whitening9") == Spec(Path("a+flow"), None, "whitening9")
    assert parse("b@c@wk+flow:some.txt") == Spec(Path("b@c"), "wk", "flow", "some.txt")
