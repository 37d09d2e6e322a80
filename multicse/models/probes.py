"""Check, on a few texts, that training, evaluation and export give the same vectors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from multicse.models.hub_folders import HALVES, load_saved

if TYPE_CHECKING:
    from multicse.models.text_encoder import TextEncoder

PROBES = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
"""Texts of several lengths, whose embeddings must be the same after saving and loading."""
MORE = ["Naïve café, ½ 犬が走る 🐕 Ünïcode", " ".join(["one small dog runs,"] * 200)]
"""Texts that a tokenizer may normalise, and that are longer than many models."""
CLOSE = 1e-3
"""Largest difference between vectors, relative to their largest absolute value, that rounding may explain."""


def gap(got: Tensor, want: Tensor) -> float:
    """Return the largest difference relative to the largest absolute value of `want`; infinity if shapes differ.

    Args:
        got: Vectors, (B, d).
        want: Vectors to compare with, (B, d).
    """
    if got.shape != want.shape:
        return float("inf")
    return float((got - want).abs().max() / want.abs().max().clamp_min(1e-9))


def check_vectors(encoder: TextEncoder, path: str) -> None:
    """Check a loaded encoder before it is trained, so that its export will give the vectors of training and evaluation.

    Vectors must not depend on the other texts of a batch. SentenceTransformer must reproduce them from the export, and the
    token states from the folder of the initial weights. The state of torch's random numbers is restored.

    Args:
        encoder: Text encoder.
        path: Its folder or model ID, for the error.

    Raises:
        ValueError: If vectors differ.
    """
    encoder.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for what, got, want in _pairs(encoder, [*PROBES, *MORE]):
            if not (difference := gap(got, want)) <= CLOSE:
                raise ValueError(
                    f"encoder.path: {path!r}: {what} (relative difference {difference:.3g}), so training, evaluation and "
                    f"export would not be the same model. Its tokenizer (tokenizer_config.json, tokenizer.json) or a "
                    f"{encoder.config.model_type!r} model is not supported; choose a different model"
                )


def _pairs(encoder: TextEncoder, texts: list[str]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what is wrong if two tensors differ, and the two tensors."""
    want = encoder(encoder.tokenize(texts))
    alone = [encoder.tokenize([text]) for text in texts]
    yield "vectors depend on the other texts of a batch", torch.cat([encoder(tokens) for tokens in alone]), want
    with tempfile.TemporaryDirectory() as place:
        encoder.save(place)
        theirs = torch.as_tensor(load_saved(Path(place)).encode(texts, batch_size=1))
        yield "SentenceTransformer does not reproduce the vectors of an export", theirs, want
    if encoder.path is None or encoder.config.model_type in HALVES:  # random weights, or a part of the model in the folder
        return
    module = load_saved(Path(encoder.path))[0]
    module = module.sub_modules["text"][0] if hasattr(module, "sub_modules") else module
    module.max_seq_length = encoder.limit
    for text, tokens in zip(texts, alone, strict=True):
        states = module(module.preprocess([{"text": encoder.conventions.prompt + text}]))["token_embeddings"]
        ours = encoder.outputs(tokens["input_ids"], tokens["attention_mask"]).tokens
        yield "SentenceTransformer gives other token states from this folder", states, ours
