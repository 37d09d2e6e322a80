"""Check, on a few texts, that training, evaluation, export and sentence-transformers give the same vectors."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from multicse.models.hub_folders import ABOUT, HALVES, load_saved
from multicse.models.pretrained import ENCODER
from multicse.models.st_modules import open_text_route
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
OPENED = 1e-5
"""Largest such difference between two ways to compute the same vectors in float32, one text at a time."""


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

    Vectors must not depend on the other texts of a batch, and SentenceTransformer must reproduce them from the export. The
    state of torch's random numbers is restored.

    Args:
        encoder: Text encoder.
        path: Its folder or model ID, for the error.

    Raises:
        ValueError: If vectors differ.
    """
    encoder.eval()
    texts = [*PROBES, *MORE]
    with torch.random.fork_rng(devices=[]), torch.no_grad(), tempfile.TemporaryDirectory() as place:
        want = encoder(encoder.tokenize(texts))
        alone = torch.cat([encoder(encoder.tokenize([text])) for text in texts])
        encoder.save(place)
        theirs = torch.as_tensor(load_saved(Path(place)).encode(texts, batch_size=1))
    for what, got in (
        ("vectors depend on the other texts of a batch", alone),
        ("SentenceTransformer does not reproduce the vectors of an export", theirs),
    ):
        if not (difference := gap(got, want)) <= CLOSE:
            raise ValueError(
                f"encoder.path: {path!r}: {what} (relative difference {difference:.3g}), so training, evaluation and "
                f"export would not be the same model. Its tokenizer (tokenizer_config.json, tokenizer.json) or a "
                f"{encoder.config.model_type!r} model is not supported; choose a different model"
            )


@torch.no_grad()
def check_folder(path: str) -> None:
    """Check that training starts with the vectors that sentence-transformers gives for a folder or model ID.

    The halves of CLIP and CLAP are not checked: their vectors in sentence-transformers are those after the projection.

    Raises:
        ValueError: If a setting of the folder, its modules or its tokenizer is not supported, so that vectors differ.
    """
    encoder = TextEncoder.from_pretrained(path).eval()
    if encoder.config.model_type in HALVES:
        return
    whole = open_text_route(Path(str(encoder.path)))
    whole.max_seq_length = encoder.limit  # the library exceeds the positions of some models
    whole.tokenizer.pad_token = encoder.tokenizer.pad_token
    texts = [*PROBES, *MORE]
    try:
        theirs = torch.as_tensor(whole.encode(texts, batch_size=1))
    except Exception as error:  # a dozen kinds
        raise ENCODER.cannot_load(path, error) from error
    difference = gap(torch.cat([encoder(encoder.tokenize([text])) for text in texts]), theirs)
    if not difference <= OPENED:
        raise ValueError(
            f"encoder.path: {path!r}: training would not start with the vectors of sentence-transformers (relative "
            f"difference {difference:.3g}). A setting of these modules, of {ABOUT} or of the tokenizer is not supported; "
            f"remove it, or choose a different model. {whole}"
        )
