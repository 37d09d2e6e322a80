"""Test the distillation of static vectors, which evaluation loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.load import load_model
from tests.worlds import WORDS, example


def test_a_distilled_folder_is_evaluated(place: Path, tmp_path: Path) -> None:
    """A text is the mean of its tokens, whose vectors do not depend on their neighbours."""
    pytest.importorskip("model2vec")
    pytest.importorskip("skeletoken")
    folder = tmp_path / "static"
    assert example("static_vectors").main([str(place / "encoder"), str(folder), "--dimensions", "8"]) == 0
    model = load_model(str(folder), device="cpu")
    text = model.encode([" ".join(WORDS[:4])])
    assert text.shape == (1, 8) and np.linalg.norm(text) > 0
    np.testing.assert_allclose(text[0], model.encode(WORDS[:4]).mean(0), atol=1e-6)
