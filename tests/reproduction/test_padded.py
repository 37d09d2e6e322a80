"""Word vectors over 64 places, as GCLSR's released code averages them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from multicse.evaluation.load import load_model
from tests.evaluation.encoders.test_word_vectors import VECTORS, write


def test_padded_is_the_mean_over_64_places_as_released(tmp_path: Path) -> None:
    """Every place of a sentence is filled: words, random vectors for unknown ones, one padding vector; cut at 64."""
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
    for vector in empty:  # the word "sickeningly", which is not among these
        assert 0.1 < np.abs(vector * 64 - 63 * padding).max() <= np.sqrt(3 / 4) + 1e-4
    assert encoder.protocol["unknown_words"] == 3 and encoder.protocol["texts_without_known_word"] == 2
