"""The folder of a trained model, and whether it is the one that was trained."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from models.carried_code import ExportError as ExportError
from models.carried_code import load_by_its_code
from models.sentence_encoder import CardText, SentenceEncoder

PROBES = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
"""Texts of several lengths, whose vectors must not change by being saved."""
TOLERANCE = 1e-4
"""Largest difference between the vectors, relative to the largest number in them."""


def write_export(encoder: SentenceEncoder, out: Path, card: Callable[[CardText], str]) -> list[str]:
    """Make `out` the encoder's folder with its card; what was there stays until all is well. Raises ExportError.

    Files of the same names are replaced, others are left. card: the model card, given what the encoder says of itself.
    Returns the names of the files, relative to `out`.
    """
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".export-") as place:
        fresh = Path(place) / "model"
        encoder.save(str(fresh))
        verify(encoder, fresh)
        (fresh / "README.md").write_text(card(encoder.card(fresh)), encoding="utf-8")
        names = sorted(str(file.relative_to(fresh)) for file in fresh.rglob("*") if file.is_file())
        if not out.exists():
            fresh.rename(out)
            return names
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / name, out / name)
    return names


def verify(encoder: SentenceEncoder, folder: Path) -> None:
    """Check that `folder` loads and gives the vectors of `encoder`.

    SentenceTransformer must give the same vectors (B, d) of sentences, and of pictures or sounds where the encoder takes
    them; of a Hugging Face text model AutoModel must give the token states (B, L, d) that sentence-transformers pools.
    Raises ExportError.
    """
    with torch.no_grad():
        want = encoder(encoder.tokenize(PROBES)).float()
        saved = load_by_its_code(folder)
        _compare("SentenceTransformer", "sentence vectors", torch.as_tensor(saved.encode(PROBES)), want)
        ours, theirs = encoder.probe_items()
        if ours:
            got = torch.as_tensor(saved.encode(theirs))
            _compare("SentenceTransformer", f"{encoder.modalities[1]} vectors", got, encoder.encode_items(ours).float())
        if not encoder.layered:
            return
        from transformers import AutoModel, AutoTokenizer

        inputs = AutoTokenizer.from_pretrained(folder)(PROBES, padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(**inputs).last_hidden_state
        pooled = saved[0]({name: tensor.clone() for name, tensor in inputs.items()})["token_embeddings"]
        mask = inputs["attention_mask"].bool()
        _compare("AutoModel", "token states", states[mask], pooled[mask])


def _compare(loader: str, what: str, got: Any, want: Any) -> None:
    if got.shape != want.shape:
        raise ExportError(f"{loader} gives {what} of shape {tuple(got.shape)}, the checkpoint {tuple(want.shape)}")
    apart, scale = float((got - want).abs().max()), float(want.abs().max())
    if not apart <= TOLERANCE * scale:
        raise ExportError(
            f"{loader} gives other {what} than the checkpoint: up to {apart:.3g} apart, the largest is {scale:.3g}"
        )
