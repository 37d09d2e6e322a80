"""Whether a saved model is the one that was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from data.streams.inputs import ImageInput
from evaluation.task import Sound
from models.carried_code import carries_code
from models.dual_encoder import DualEncoder
from models.dual_export import ExportError as ExportError
from trainers.method import SentenceEncoder

PROBES = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
"""Texts of several lengths, whose vectors must not change by being saved."""
TOLERANCE = 1e-4
"""Largest difference between the vectors, relative to the largest number in them."""


def verify(encoder: SentenceEncoder, folder: Path) -> None:
    """Check that `folder` loads and gives the vectors of `encoder`.

    SentenceTransformer must give the same sentence vectors (B, d); of a dual encoder also those of pictures or sounds; of a
    text encoder with a Hugging Face configuration AutoModel must give the token states (B, L, d) that
    sentence-transformers pools. Raises ExportError.
    """
    from sentence_transformers import SentenceTransformer

    with torch.no_grad():
        want = encoder(encoder.tokenize(PROBES)).float()
        # `carries_code` lets no other code through than this project's own.
        saved = SentenceTransformer(str(folder), device="cpu", trust_remote_code=carries_code(folder))
        _compare("SentenceTransformer", "sentence vectors", torch.as_tensor(saved.encode(PROBES)), want)
        if isinstance(encoder, DualEncoder):
            ours, theirs = probe_items(encoder)
            got = torch.as_tensor(saved.encode(theirs))
            _compare("SentenceTransformer", f"{encoder.modalities[1]} vectors", got, encoder.encode_items(ours).float())
            return
        if not (folder / "config.json").is_file():
            return
        from transformers import AutoModel, AutoTokenizer

        inputs = AutoTokenizer.from_pretrained(folder)(PROBES, padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(**inputs).last_hidden_state
        pooled = saved[0]({name: tensor.clone() for name, tensor in inputs.items()})["token_embeddings"]
        mask = inputs["attention_mask"].bool()
        _compare("AutoModel", "token states", states[mask], pooled[mask])


def probe_items(dual: DualEncoder) -> tuple[list[Any], list[Any]]:
    """Two pictures, or two sounds, of noise: as `dual.encode_items` takes them, and as sentence-transformers does.

    Pictures need no resizing, for which libraries have filters of their own; sounds have the model's rate and 16 bits, and
    are not longer than its window, of which CLAP would take a random part.
    """
    rng = np.random.default_rng(0)
    if isinstance(dual.input, ImageInput):
        size = dual.input.size
        pictures = [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((size, size, 3), (size, size + 4, 3))]
        return pictures, [Image.fromarray(picture) for picture in pictures]
    rate, samples = dual.input.rate, dual.input.samples
    waves = [(rng.integers(-9000, 9000, n) / 32768).astype(np.float32) for n in (samples, max(1, samples // 3))]
    return [Sound(wave, rate) for wave in waves], [{"array": wave, "sampling_rate": rate} for wave in waves]


def _compare(loader: str, what: str, got: Any, want: Any) -> None:
    if got.shape != want.shape:
        raise ExportError(f"{loader} gives {what} of shape {tuple(got.shape)}, the checkpoint {tuple(want.shape)}")
    apart, scale = float((got - want).abs().max()), float(want.abs().max())
    if not apart <= TOLERANCE * scale:
        raise ExportError(
            f"{loader} gives other {what} than the checkpoint: up to {apart:.3g} apart, the largest is {scale:.3g}"
        )
