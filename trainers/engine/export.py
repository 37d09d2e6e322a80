"""The folder of a trained model, and whether it is the one that was trained."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from multicse.evaluation.encoders.baselines import Whitened
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError, Task, evaluate
from multicse.models.hub_folders import ExportError as ExportError
from multicse.models.hub_folders import load_saved
from multicse.models.onnx_files import FLOAT, INT8, onnx_states, write_onnx
from multicse.models.sentence_encoder import CardText, SentenceEncoder
from multicse.models.st_modules import add_whitening
from multicse.trainers.engine.text_fit import some_sentences
from multicse.trainers.recipe import ExportConfig, Recipe

PROBES = [
    "A dog runs through the park.",
    "The market fell.",
    "one",
    "Two of them, and a longer one, came home late at night.",
]
"""Texts of several lengths, whose vectors must not change by being saved."""
TOLERANCE = 1e-4
"""Largest difference between the vectors, relative to the largest number in them."""
ROUNDED = 0.25
"""The same of token states that 8-bit weights and activations give."""
WHITENED = 0.01
"""The same of whitened vectors: axes of little variance are blown up, and with them what 32 bits leave out."""
FITTED = 20_000
"""Sentences of the training text that whitening and ranges are fitted on; 26 for each of BERT-base's dimensions."""
RANGES = "int8_ranges.npy"
"""The smallest and the largest value of every dimension (2, d), for ``quantize_embeddings(vectors, "int8", ranges)``."""


class Fit(NamedTuple):
    """What an export gets beside the trained weights."""

    settings: ExportConfig
    texts: Iterable[str]
    """Of the training text, see `some_sentences`."""
    tasks: Sequence[Task]
    """What a whitened export is measured on, for its card."""


def fit_of(recipe: Recipe, settings: ExportConfig) -> Fit | None:
    """What `settings` ask for, on the text of a recipe; None: nothing. Without a final task whose data is there, none is
    measured."""
    if settings == ExportConfig():
        return None
    tasks: list[Task] = []
    for name in recipe.evaluation.final:
        with contextlib.suppress(EvaluationError, OSError):
            tasks += make_tasks([name], recipe.evaluation.data)
    return Fit(settings, some_sentences(recipe, FITTED), tasks)


def write_export(
    encoder: SentenceEncoder,
    out: Path,
    card: Callable[[CardText], str],
    onnx: bool = False,
    int8: bool = False,
    fit: Fit | None = None,
) -> list[str]:
    """Make `out` the encoder's folder with its card; what was there stays until all is well. Raises ExportError.

    Files of the same names are replaced, others are left. card: the model card, given what the encoder says of itself.
    onnx, int8: with ONNX files, see `write_onnx`. Returns the names of the files, relative to `out`.
    """
    for setting, wanted in {"--onnx": onnx or int8, "export.whiten, export.int8_ranges": fit is not None}.items():
        if wanted and not encoder.layered:
            raise ExportError(
                f"{setting}: for text models of transformers; this one is of another kind, or has a second half"
            )
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".export-") as place:
        fresh = Path(place) / "model"
        encoder.save(str(fresh))
        if onnx or int8:
            write_onnx(fresh, PROBES, int8)
        saved = verify(encoder, fresh)
        text = encoder.card(fresh)
        if fit is not None:
            text = _fitted(fresh, fit, text)
            saved = load_saved(fresh)
        size, longest = sum(weight.numel() for weight in saved.parameters()), getattr(saved, "max_seq_length", None)
        cut = f", texts of at most {longest:,} tokens" if longest else ""
        form = f"Vectors of {saved.get_embedding_dimension():,} dimensions{cut}, {size:,} parameters.\n\n```\n{saved}\n```"
        text = text._replace(form=form)
        (fresh / "README.md").write_text(card(text), encoding="utf-8")
        names = sorted(str(file.relative_to(fresh)) for file in fresh.rglob("*") if file.is_file())
        if not out.exists():
            fresh.rename(out)
            return names
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / name, out / name)
        for stale in {FLOAT, INT8, RANGES} - set(names):  # of the weights before
            (out / stale).unlink(missing_ok=True)
    return names


def _fitted(folder: Path, fit: Fit, text: CardText) -> CardText:
    """Fit what `fit` asks for and add it to the folder of a text model; what its card then says. Raises EvaluationError
    where the text is too little, and ExportError where the folder does not give the whitened vectors."""
    # Those with the smallest hashes: a fair sample, the same in any order of the shards.
    chosen = nsmallest(FITTED, fit.texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    some = list(dict.fromkeys(chosen))
    encoder = load_encoder(folder)
    notes = [text.notes]
    if fit.settings.whiten:
        whitened = Whitened(encoder, some, fit.settings.dimensions, source="the training text")
        unit = type(encoder.model[-1]).__name__ == "Normalize"
        want = torch.from_numpy(whitened.encode(PROBES))
        want = torch.nn.functional.normalize(want) if unit else want
        add_whitening(folder, whitened.mean, whitened.matrix)
        encoder = load_encoder(folder)
        got = torch.from_numpy(encoder.encode(PROBES))
        _compare("SentenceTransformer", "whitened vectors", got, want, WHITENED)
        notes.append(
            f"Its last layer whitens the vectors (Su et al. 2021): mean taken off, the first {want.shape[1]} principal axes "
            f"brought to variance 1, fitted on {len(some):,} sentences of the training text. `modules.json` calls it "
            "`whitening`; a further run leaves it out."
        )
        text = text._replace(whitened=evaluate(fit.tasks, encoder))
    if fit.settings.int8_ranges:
        vectors = encoder.encode(some)
        np.save(folder / RANGES, np.stack([vectors.min(0), vectors.max(0)]).astype(np.float32))
        notes.append(
            f"`{RANGES}` holds the smallest and the largest value of every dimension over {len(some):,} sentences of the "
            'training text: `quantize_embeddings(vectors, "int8", np.load(...))` of `sentence_transformers.util` makes '
            "vectors of 8 bits by it."
        )
    return text._replace(notes="\n\n".join(notes))


def verify(encoder: SentenceEncoder, folder: Path) -> SentenceTransformer:
    """Check that `folder` loads and gives the vectors of `encoder`; returns what was loaded.

    SentenceTransformer must give the same vectors (B, d) of sentences, and of pictures or sounds where the encoder takes
    them; of a Hugging Face text model AutoModel must give the token states (B, L, d) that sentence-transformers pools, and
    so must its ONNX file, where there is one; those of 8 bits may be apart by `ROUNDED`. Raises ExportError.
    """
    with torch.no_grad():
        want = encoder(encoder.tokenize(PROBES)).float()
        saved = load_saved(folder)
        _compare("SentenceTransformer", "sentence vectors", torch.as_tensor(saved.encode(PROBES)), want)
        ours, theirs = encoder.probe_items()
        if ours:
            got = torch.as_tensor(saved.encode(theirs))
            _compare("SentenceTransformer", f"{encoder.modalities[1]} vectors", got, encoder.encode_items(ours).float())
        if not encoder.layered:
            return saved
        from transformers import AutoModel, AutoTokenizer

        inputs = AutoTokenizer.from_pretrained(folder)(PROBES, padding=True, truncation=True, return_tensors="pt")
        states = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(**inputs).last_hidden_state
        pooled = saved[0]({name: tensor.clone() for name, tensor in inputs.items()})["token_embeddings"]
        mask = inputs["attention_mask"].bool()
        _compare("AutoModel", "token states", states[mask], pooled[mask])
        for file, tolerance in {FLOAT: TOLERANCE, INT8: ROUNDED}.items():
            if (folder / file).is_file():
                _compare(file, "token states", onnx_states(folder / file, inputs)[mask], pooled[mask], tolerance)
        return saved


def _compare(loader: str, what: str, got: Any, want: Any, tolerance: float = TOLERANCE) -> None:
    if got.shape != want.shape:
        raise ExportError(f"{loader} gives {what} of shape {tuple(got.shape)}, the checkpoint {tuple(want.shape)}")
    gap, scale = float((got - want).abs().max()), float(want.abs().max())
    if not gap <= tolerance * scale:
        raise ExportError(
            f"{loader} gives other {what} than the checkpoint: up to {gap:.3g} apart, the largest is {scale:.3g}"
        )


class HubError(ValueError):
    """A name that the hub does not take, or an upload that it refused."""


def check_hub(name: str, setting: str) -> None:
    """Raise HubError, which names `setting`, where an upload to the repository `name` cannot begin."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise HubError(f"{setting}={name!r} is no name of a repository, which is USER/NAME: {error}") from None
    if huggingface_hub.constants.is_offline_mode():
        raise HubError(
            f"{setting}={name!r}: HF_HUB_OFFLINE is set, so that nothing can be uploaded; unset it, or leave it out"
        )
    if huggingface_hub.get_token() is None:
        raise HubError(f"{setting}={name!r}: the hub wants a token; `hf auth login` once, or set HF_TOKEN")


def push(folder: Path, name: str, files: Sequence[str]) -> str:
    """Upload these files of an export, in one commit; returns the address of the repository.

    One that is not there is made, and private: who wants it public says so on its page. Raises HubError with the hub's
    reason.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi()
    try:
        made = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=made.repo_id, folder_path=folder, allow_patterns=[*files], commit_message="MultiCSE export"
        )
    except (HfHubHTTPError, OSError) as error:
        raise HubError(f"the hub did not take {folder} as {name}: {error}") from error
    return str(made)
