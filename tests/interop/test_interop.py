"""What is exported, in the other systems themselves; see docs/how-to/export.md. Needs `make test-interop`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.models.pooling import Pooling
from multicse.models.st_modules import add_whitening
from multicse.models.text_encoder import TextEncoder

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MULTICSE_INTEROP", ROOT / ".venv-interop")) / "bin" / "python"
TEXTS = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
POOLINGS: tuple[Pooling, ...] = ("mean", "pooler", "first-last")
FOLDERS = ("whitened", *POOLINGS)
"""Exports; the first one is also tried as ONNX models."""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """By folder: vectors of every library, and ours (``mean`` of unit length, ``whitened`` that with a last layer of random
    numbers); and what the libraries said."""
    if not PYTHON.exists():
        pytest.skip(
            f"{PYTHON} is not there: `make test-interop` makes an environment with sentence-transformers 5 and optimum"
        )
    place = tmp_path_factory.mktemp("exports")
    want: dict[str, np.ndarray] = {}
    for pooling in POOLINGS:
        encoder = TextEncoder.from_pretrained(str(ROOT / "models" / "small-bert-en"), pooling).eval()
        encoder.normalise = pooling == "mean"
        if pooling == "pooler":
            encoder.add_head(only_trains=False)
        encoder.save(str(place / pooling))
        with torch.no_grad():
            want[pooling] = encoder(encoder.tokenize(TEXTS)).numpy()
    shutil.copytree(place / "mean", place / "whitened")
    rng, width = np.random.default_rng(0), want["mean"].shape[1]
    mean, matrix = rng.normal(0, 0.01, (width,)), rng.standard_normal((width, 24))
    add_whitening(place / "whitened", mean, matrix)
    whitened = (want["mean"] - mean) @ matrix
    want["whitened"] = whitened / np.linalg.norm(whitened, axis=1, keepdims=True)
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("elsewhere.py")), *(str(place / folder) for folder in FOLDERS)],
        input=json.dumps(TEXTS),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {Path(folder).name: found for folder, found in json.loads(done.stdout).items()}, want, done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("library", ["sentence-transformers", "langchain", "faiss"])
def test_older_libraries_give_our_vectors(elsewhere: Any, folder: str, library: str) -> None:
    np.testing.assert_allclose(elsewhere[0][folder][library], elsewhere[1][folder], atol=1e-4)


@pytest.mark.parametrize("folder", FOLDERS)
def test_faiss_finds_one_bit_a_dimension_by_hamming_distance(elsewhere: Any, folder: str) -> None:
    """The cosines of vectors of one bit a dimension."""
    signs = np.where(elsewhere[1][folder] > 0, 1, -1)
    np.testing.assert_allclose(elsewhere[0][folder]["faiss-binary"], signs @ signs.T / signs.shape[1], atol=0.05)


def test_onnx_gives_our_vectors(elsewhere: Any) -> None:
    np.testing.assert_allclose(elsewhere[0]["whitened"]["model"], elsewhere[1]["whitened"], atol=1e-4)


def test_eight_bits_give_nearly_our_vectors(elsewhere: Any) -> None:
    cosines = (np.array(elsewhere[0]["whitened"]["model_quint8_avx2"]) * elsewhere[1]["whitened"]).sum(1)
    assert cosines.min() > 0.98 and cosines.max() < 1 - 1e-6, "the same to the last digit: was it the other file?"


def test_nothing_is_initialised_anew(elsewhere: Any) -> None:
    assert "newly initialized" not in elsewhere[2] and "MISSING" not in elsewhere[2]
