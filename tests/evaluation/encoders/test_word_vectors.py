"""Word vectors: known words of a text, and counts of unknown words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.evaluation.task import EvaluationError

WORDS = ["dog", "cat", "Paris", "the", "n't", "don't", "."]
VECTORS = np.random.default_rng(0).standard_normal((len(WORDS), 4)).astype(np.float32)


def write(folder: Path) -> Path:
    rows = [" ".join([word, *(repr(float(x)) for x in row)]) for word, row in zip(WORDS, VECTORS, strict=True)]
    (folder / "tiny.txt").write_text("\n".join(rows) + "\n")
    return folder / "tiny.txt"


@pytest.mark.parametrize(
    ("text", "found", "unknown"),
    [
        ("The Dog", [3, 0], 0),  # lower case if the original word is unknown
        ("Paris paris", [2], 1),  # ... but never upper case
        ("(dog), cat!", [0, 1], 0),  # split at punctuation only if needed; unknown punctuation is not a word
        ("the dog.", [3, 0, 6], 0),
        ("do n't don't don't!", [4, 5, 5], 1),  # "do" has no vector
        ("dog-cat x-ray", [0, 1], 2),
        ("", [], 0),
    ],
)
def test_words_are_found(tmp_path: Path, text: str, found: list[int], unknown: int) -> None:
    encoder = WordVectors(write(tmp_path))
    want = VECTORS[found].mean(0) if found else np.zeros(4)
    np.testing.assert_allclose(encoder.encode([text])[0], want, atol=1e-6)
    assert encoder.protocol["unknown_words"] == unknown
    assert encoder.protocol["words"] == len(found) + unknown


def test_unknown_words_are_counted_in_the_first_distinct_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus of any size takes no more memory."""
    monkeypatch.setattr("multicse.evaluation.encoders.word_vectors.COUNTED", 3)
    encoder = WordVectors(write(tmp_path))
    for number in range(9):
        encoder.encode([f"dog w{number}", f"dog w{number // 2}"])
    assert (encoder.protocol["words"], encoder.protocol["unknown_words"], len(encoder._seen)) == (6, 3, 3)


def test_cleaning(tmp_path: Path) -> None:
    path = write(tmp_path)
    got = WordVectors(path, "letters").encode(["The don't Dog-cat. Paris 7"])
    np.testing.assert_allclose(got[0], VECTORS[[3, 0, 1]].mean(0), atol=1e-6)


def test_other_modalities_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="audio"):
        WordVectors(write(tmp_path)).encode([], "audio")
