"""Fixtures of the tests that compare CUDA with the CPU. They need neither Ray nor MLflow, nor a network or data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch

from tests.cuda_like import attention
from tests.cuda_like.device import kernels_of
from tests.worlds import WORDS, png, sound, write_images, write_sounds, write_tar

TRY = "MULTICSE_GPU_TESTS"
"""With the value ``cpu`` the tests run without a GPU and compare the CPU with itself, to try the tests."""


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Return the GPU, or the CPU if `TRY` is set; otherwise the test is skipped."""
    if os.environ.get(TRY) == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip(f"needs a GPU; {TRY}=cpu compares the CPU with itself")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by deterministic algorithms
    return torch.device("cuda")


@pytest.fixture
def precise(device: torch.device) -> Iterator[None]:
    """Disable TF32."""
    matrices, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(matrices)
    torch.backends.cudnn.allow_tf32 = convolutions


@pytest.fixture
def kernels(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the kernels of CUDA for packed attention if the tests run on a CPU."""
    if device.type == "cuda":
        yield
        return
    for name in ("flash", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", partial(kernels_of, kernel=name))
    with torch.library._scoped_library("aten", "IMPL") as library:
        attention.register(library)
        yield


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Return 160 sentences of 1 to 24 words, each with a word that has an antonym."""
    rng = np.random.default_rng(0)
    return [" ".join(["old", *rng.choice(WORDS, rng.integers(24))]) for _ in range(160)]


@pytest.fixture(scope="session")
def shards(device: torch.device, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return small shards for each kind of stream."""
    folder, rng = tmp_path_factory.mktemp("shards"), np.random.default_rng(3)
    sentences = write_tar(folder / "text" / "a.tar", ((f"{i:04d}.txt", text.encode()) for i, text in enumerate(texts)))
    items = {
        "image": ("png", lambda: png(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8))),
        "audio": ("wav", lambda: sound(rng.normal(0, 0.1, 12_000).astype("float32"))),
    }
    found = {"text": sentences, "triplet": sentences, "image": write_images(folder / "image")}
    found["audio"] = write_sounds(folder / "audio")
    for kind, (ending, make) in items.items():
        captions = [json.dumps({"captions": texts[2 * i : 2 * i + 2]}).encode() for i in range(64)]
        members = [(f"{i:04d}.{end}", data) for i in range(64) for end, data in ((ending, make()), ("json", captions[i]))]
        found[f"{kind}_text"] = write_tar(folder / f"{kind}_text" / "a.tar", members)
    return found
