"""What is exported, in the other systems themselves; see docs/interop.md. `make test-interop` makes their environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.onnx_files import write_onnx
from models.pooling import Pooling
from models.text_encoder import TextEncoder

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("MULTICSE_INTEROP", ROOT / ".venv-interop")) / "bin" / "python"
TEXTS = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "avg_first_last")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """By pooling: vectors of every library, and ours (``mean`` of unit length); and what the libraries said."""
    if not PYTHON.exists():
        pytest.skip(
            f"{PYTHON} is not there: `make test-interop` makes an environment with sentence-transformers 5 and optimum"
        )
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    place = tmp_path_factory.mktemp("exports")
    want: dict[str, np.ndarray] = {}
    for pooling in POOLINGS:
        encoder = TextEncoder.from_pretrained(str(ROOT / "models" / "small-bert-en"), pooling).eval()
        encoder.normalise = pooling == "mean"
        if pooling == "cls":
            encoder.add_head(only_trains=False)
        encoder.save(str(place / pooling))
        with torch.no_grad():
            want[pooling] = encoder(encoder.tokenize(TEXTS)).numpy()
    write_onnx(place / "mean", TEXTS, int8=True)
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("elsewhere.py")), *(str(place / pooling) for pooling in POOLINGS)],
        input=json.dumps(TEXTS),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {Path(folder).name: found for folder, found in json.loads(done.stdout).items()}, want, done.stderr


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("library", ["sentence-transformers", "langchain", "faiss"])
def test_older_libraries_give_our_vectors(elsewhere: Any, pooling: str, library: str) -> None:
    np.testing.assert_allclose(elsewhere[0][pooling][library], elsewhere[1][pooling], atol=1e-4)


@pytest.mark.parametrize("library", ["model", "optimum"])
def test_onnx_gives_our_vectors(elsewhere: Any, library: str) -> None:
    """Our file, and the one that optimum makes of the folder."""
    np.testing.assert_allclose(elsewhere[0]["mean"][library], elsewhere[1]["mean"], atol=1e-4)


def test_eight_bits_give_nearly_our_vectors(elsewhere: Any) -> None:
    cosines = (np.array(elsewhere[0]["mean"]["model_int8"]) * elsewhere[1]["mean"]).sum(1)
    assert cosines.min() > 0.98 and cosines.max() < 1 - 1e-6, "the same to the last digit: was it the other file?"


def test_nothing_is_initialised_anew(elsewhere: Any) -> None:
    assert "newly initialized" not in elsewhere[2] and "MISSING" not in elsewhere[2]
