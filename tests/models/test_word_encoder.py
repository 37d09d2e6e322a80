"""The word encoder: cleaning, ids, unknown words, the convolution and its padded definition, attention, exports."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multicse.data.word_vectors import write_vectors
from multicse.evaluation.load import load_model
from multicse.models.config import WordEncoderConfig
from multicse.models.hub_folders import carried_files
from multicse.models.word_encoder import WordEncoder
from multicse.models.word_module import TextCNN, WordModel, hashed_vectors, split, word_hash
from multicse.trainers.engine.export import verify_export

WORDS = ["a", "dog", "runs", "cat", "sleeps"]
SENTENCES = ["A dog runs.", "the cat sleeps", "", "a a a a a a a a a a", "Dog!"]


def model(**settings: object) -> WordModel:
    torch.manual_seed(0)
    options = {"max_words": 8, "regions": (1, 1, 2, 5), "filters": 3, **settings}
    return WordModel(WORDS, torch.randn(5, 6), **options).eval()  # type: ignore[arg-type]


def padded_definition(cnn: TextCNN, words: Tensor, lengths: list[int], padding: Tensor) -> Tensor:
    """Pad every sentence to the full length, apply one Conv2d per bank and ReLU, and take the maximum over all windows."""
    x = torch.stack(
        [torch.cat([row[:n], padding.expand(cnn.length - n, -1)]) for row, n in zip(words, lengths, strict=True)]
    )
    banks = []
    for weight, bias in zip(cnn.weights, cnn.biases, strict=True):
        y = F.conv2d(x[:, None], weight.permute(2, 0, 1)[:, None], bias)  # (B, F, windows, 1)
        banks.append(y.relu().amax((2, 3)))
    return torch.cat(banks, 1)


# ------------------------------------------------------------------------------------------------------ cleaning and ids


@pytest.mark.parametrize(
    ("text", "letters", "words"),
    [
        ("Don't stop-gap, O’Neil!", "a-z", ["dont", "stop", "gap", "oneil"]),  # as the paper cleans
        ("naïve 42 B2B", "a-z", ["na", "ve", "b", "b"]),
        (" \n\t", "a-z", []),
        ("Naïve 42 — हिन्दी, Ελλάδα's Ünïcode", "any", ["naïve", "हिन्दी", "ελλάδαs", "ünïcode"]),
    ],
)
def test_cleaning(text: str, letters: str, words: list[str]) -> None:
    assert split(text, letters) == words


def test_ids() -> None:
    made = model()
    tokens = made.tokenize(["A dog", "zebra dog", "", " ".join(["cat"] * 20)])
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape == (4, 8)
    assert tokens["input_ids"][0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    assert tokens["input_ids"][1, :2].tolist() == [6 + word_hash("zebra"), 2]
    assert tokens["attention_mask"].sum(1).tolist() == [2, 2, 0, 8]
    assert made.tokenize(["a dog runs"], max_length=2)["input_ids"].tolist() == [[1, 2]]
    known, unknown = made.look_up(tokens["input_ids"])[1, [1, 0]]
    assert torch.equal(known, made.table[1]) and torch.equal(unknown, hashed_vectors(torch.tensor(word_hash("zebra")), 6))
    assert "table" not in made.state_dict()  # which is neither trained nor saved with the filters


def test_unknown_words_are_uniform_and_the_same_in_every_process() -> None:
    hashes = torch.tensor([word_hash(f"word{i}") for i in range(4000)])
    vectors, bound = hashed_vectors(hashes, 300), math.sqrt(3 / 300)
    assert vectors.min() >= -bound and vectors.max() < bound
    assert abs(vectors.mean()) < 1e-3 and abs(vectors.var().item() / (bound**2 / 3) - 1) < 0.01
    x = word_hash("zebra")  # splitmix64 once more, in Python's integers
    numbers = []
    for j in range(1, 4):
        z = (x * 0xD1342543DE82EF95 + j * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        numbers.append(((z ^ z >> 31) >> 40) / 2**23 - 1)
    assert torch.allclose(hashed_vectors(torch.tensor(x), 3), torch.tensor(numbers))
    assert word_hash("zebra") == 0xA522C1646D6CCC


def test_redrawn_words_differ_between_sentences_and_epochs() -> None:
    """As in the released code, but repeatable: the sentence decides, in training also the random numbers of the step."""
    made = model(unknown="redrawn")
    texts = ["a zebra runs", "a zebra sleeps", "zebra zebra"]
    ids = made.tokenize(texts)["input_ids"]
    assert len({int(ids[0, 1]), int(ids[1, 1]), int(ids[2, 0]), int(ids[2, 1])}) == 4
    assert torch.equal(made.look_up(ids), made.look_up(ids))
    made.train()
    torch.manual_seed(1)
    first, second = made.look_up(ids), made.look_up(ids)
    assert torch.equal(first[0, 0], second[0, 0]) and not torch.equal(first[0, 1], second[0, 1])
    torch.manual_seed(1)
    assert torch.equal(first, made.look_up(ids))


# ------------------------------------------------------------------------------------------------------------ convolution


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_convolution_equals_the_padded_definition(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.manual_seed(0)
    cnn = TextCNN(7, (1, 3, 1, 5, 12), 4, 12).double().to(device)
    lengths = [0, 1, 2, 5, 11, 12, 12, 9, 3, 1]
    words = torch.randn(len(lengths), 12, 7, dtype=torch.float64, device=device, requires_grad=True)
    padding = torch.randn(7, dtype=torch.float64, device=device)
    ours = cnn(words, torch.tensor(lengths, device=device), padding)
    naive = padded_definition(cnn, words, lengths, padding)
    assert ours.shape == (10, 20) and torch.allclose(ours, naive, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(ours)
    inputs = [words, *cnn.parameters()]
    for a, b in zip(torch.autograd.grad(ours, inputs, weights), torch.autograd.grad(naive, inputs, weights), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


# -------------------------------------------------------------------------------------------------------------- attention


def test_attention_equals_algorithm_1() -> None:
    """S = X X^t / sqrt(d) over all places, 1e-9 for pairs with padding; every word is multiplied by the sum of its row."""
    made = model(attention=True, max_words=8).double()
    made.table = made.table.double()
    lengths = [1, 3, 5, 8]
    words = torch.randn(4, 8, 6, dtype=torch.float64)
    mask = (torch.arange(8) < torch.tensor(lengths)[:, None]).long()
    padding = made.padding.double()
    made.padding = padding
    whole = torch.where(mask[..., None] > 0, words, padding)  # type: ignore[arg-type]
    scores = whole @ whole.transpose(1, 2) / math.sqrt(6)
    scores = scores.masked_fill((mask[:, :, None] * mask[:, None, :]) == 0, 1e-9)
    attended = whole * scores.sum(2, keepdim=True)
    wanted = padded_definition(made.cnn, attended, [8] * 4, torch.zeros(6))  # no place is left for padding
    assert torch.allclose(made.embed(words, mask, attention=True), wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(made.embed(words, mask, attention=False), wanted)


def test_softmax_is_bert_s_attention_without_parameters() -> None:
    made, words = model(softmax=True), torch.randn(4, 8, 6)
    mask = torch.arange(8) < torch.tensor([0, 3, 5, 8])[:, None]
    mixed = F.scaled_dot_product_attention(words, words, words, attn_mask=mask[:, None])
    torch.testing.assert_close(made.attended(words, mask.long())[1:], mixed[1:])
    assert isinstance(made.padding, torch.Tensor)
    padding = made.padding * 8e-9
    wanted = padded_definition(made.cnn, mixed, [0, 3, 5, 8], padding)
    torch.testing.assert_close(made.embed(words, mask.long(), attention=True), wanted)


# ---------------------------------------------------------------------------------------------------------------- exports


def encoder(tmp_path: Path, **settings: object) -> WordEncoder:
    torch.manual_seed(0)
    vectors = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    write_vectors(tmp_path / "vectors", WORDS, vectors)
    config = WordEncoderConfig(regions=(1, 1, 3), filters=4, max_words=12, **settings)
    return config.load([tmp_path]).eval()


@pytest.mark.parametrize(("settings", "attention"), [({}, False), ({"unknown": "redrawn", "letters": "any"}, True)])
def test_exports_give_the_same_vectors(tmp_path: Path, settings: dict[str, str], attention: bool) -> None:
    made = encoder(tmp_path, **settings)
    made.attention = made.softmax = attention
    made.save(str(tmp_path / "export"))
    verify_export(made, tmp_path / "export")
    assert carried_files(tmp_path / "export") == ["multicse_words.py"]
    saved = load_model(str(tmp_path / "export"))
    want = made(made.tokenize(SENTENCES)).detach().numpy()
    assert np.allclose(saved.encode(SENTENCES), want, atol=1e-6)
    assert saved.protocol["max_tokens"] == 12
    script = (
        "import sys; from sentence_transformers import SentenceTransformer;"
        "m = SentenceTransformer(sys.argv[1], trust_remote_code=True, device='cpu');"
        "assert 'multicse' not in sys.modules;"
        "import numpy; numpy.save(sys.argv[2], m.encode(sys.argv[3:]))"
    )
    if attention:  # one foreign process will do
        place = [sys.executable, "-c", script, str(tmp_path / "export"), str(tmp_path / "vectors.npy"), *SENTENCES]
        subprocess.run(place, check=True, cwd=tmp_path, env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin"})
        assert np.allclose(np.load(tmp_path / "vectors.npy"), want, atol=1e-6)
