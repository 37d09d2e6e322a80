"""Export a trained model as a folder, and verify that it reproduces the trained model."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.encoders.whitening import Whitened
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError, Task
from multicse.models.hub_folders import ROUTER, SCALE, load_saved
from multicse.models.hub_folders import ExportError as ExportError
from multicse.models.probes import PROBES
from multicse.models.sentence_encoder import CardText, SentenceEncoder
from multicse.models.st_modules import add_whitening
from multicse.trainers.engine.text_fit import some_sentences
from multicse.trainers.recipe import ExportConfig, Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer  # workers and trials do not export, and it takes seconds

TOLERANCE = 1e-4
"""Largest allowed difference between embeddings, relative to their largest absolute value."""
WHITENED = 0.01
"""Tolerance for whitened embeddings: axes of small variance are scaled up together with their rounding errors."""
FITTED = 20_000
"""Sentences of the training text for fitting the whitening; 26 for each of BERT-base's dimensions."""


class Fit(NamedTuple):
    """Data for the parts of an export that are fitted after training."""

    settings: ExportConfig
    texts: Iterable[str]
    """Sentences of the training text, see `some_sentences`."""
    tasks: Sequence[Task]
    """Tasks whose scores of the whitened model are shown in its card."""


def fit_of(recipe: Recipe, settings: ExportConfig) -> Fit | None:
    """Return the recipe's training text and final tasks with data for fitting an export, or None if it is not needed."""
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
    fit: Fit | None = None,
    take: Callable[[list[str]], object] = lambda names: None,
) -> list[str]:
    """Write a verified model folder with its card; files in an existing folder are replaced only after all checks passed.

    Args:
        encoder: Trained encoder.
        out: Folder.
        card: Returns the model card for a description of the encoder and the folder.
        fit: Data for the whitening. If None, there is none.
        take: Called with the names of the files, relative to `out`, before the first of them is replaced.

    Returns:
        Names of the files, relative to `out`.

    Raises:
        ExportError: If the loaded folder gives other embeddings than the encoder, or the encoder does not support a setting.
        EvaluationError: If there is too little text to fit the whitening.
    """
    if fit is not None and not encoder.layered:
        raise ExportError(
            "export.whiten: only transformer text models are supported, not dual encoders or other kinds of models"
        )
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".export-") as place:
        fresh = Path(place) / "model"
        encoder.save(str(fresh))
        saved = verify_export(encoder, fresh)
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
        take(names)
        if not out.exists():
            fresh.rename(out)
            return names
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / name, out / name)
        for stale in {ROUTER, SCALE} - set(names):  # of an earlier model
            (out / stale).unlink(missing_ok=True)
    return names


def _fitted(folder: Path, fit: Fit, text: CardText) -> CardText:
    """Fit the whitening, add it to the folder of a text model, and return its extended card text."""
    # The sentences with the smallest hashes: a random sample that does not depend on the order of the shards.
    chosen = nsmallest(FITTED, fit.texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    some = list(dict.fromkeys(chosen))
    encoder = load_encoder(folder)
    whitened = Whitened(encoder, some, fit.settings.dimensions, source="the training text")
    unit = type(encoder.model[-1]).__name__ == "Normalize"
    want = torch.from_numpy(whitened.encode(PROBES))
    want = torch.nn.functional.normalize(want) if unit else want
    add_whitening(folder, whitened.mean, whitened.matrix)
    encoder = load_encoder(folder)
    got = torch.from_numpy(encoder.encode(PROBES))
    _compare("SentenceTransformer", "whitened vectors", got, want, WHITENED)
    note = (
        f"The last layer whitens the embeddings (Su et al. 2021): centring, then projection on the first "
        f"{want.shape[1]} principal axes at unit variance, fitted on {len(some):,} sentences of the training text. It "
        "is named `whitening` in `modules.json`; further training ignores it."
    )
    return text._replace(notes=f"{text.notes}\n\n{note}", whitened=dict(evaluate(fit.tasks, encoder)))


def verify_export(encoder: SentenceEncoder, folder: Path) -> SentenceTransformer:
    """Load a folder and check that it reproduces the embeddings of an encoder; return the loaded model.

    SentenceTransformer must give the same embeddings of sentences, and of images or audio if the encoder supports them. For
    a Hugging Face text model, AutoModel must give the token states (B, L, d) that sentence-transformers pools.
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
        return saved


def _compare(loader: str, what: str, got: Any, want: Any, tolerance: float = TOLERANCE) -> None:
    if got.shape != want.shape:
        raise ExportError(f"{loader} returns {what} of shape {tuple(got.shape)} instead of {tuple(want.shape)}")
    gap, scale = float((got - want).abs().max()), float(want.abs().max())
    if not gap <= tolerance * scale:
        raise ExportError(
            f"{loader} does not reproduce the {what} of the checkpoint (difference {gap:.3g}, largest value {scale:.3g})"
        )


class HubError(ValueError):
    """A repository name is invalid, or the Hugging Face Hub rejected an upload."""


def check_hub(name: str, setting: str) -> None:
    """Raise HubError, which names `setting`, if uploads to the repository USER/NAME are not possible."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise HubError(f"{setting}={name!r} is not a repository name (USER/NAME): {error}") from None
    if huggingface_hub.constants.is_offline_mode():
        raise HubError(f"{setting}={name!r}: HF_HUB_OFFLINE prevents uploads; unset it, or remove {setting}")
    if huggingface_hub.get_token() is None:
        raise HubError(
            f"{setting}={name!r}: the Hugging Face Hub requires a token; run `hf auth login` once, or set HF_TOKEN"
        )


def push(folder: Path, name: str, files: Sequence[str]) -> str:
    """Upload files of an export to the Hugging Face Hub in one commit, and return the URL of the repository.

    Args:
        folder: Exported model.
        name: Repository, USER/NAME. If it does not exist, it is created as private.
        files: Names of the files, relative to `folder`.

    Raises:
        HubError: If the Hub rejects the upload.
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
        raise HubError(f"the Hugging Face Hub rejected the upload of {folder} to {name}: {error}") from error
    return str(made)
