"""Models of word vectors and trained filters (GCLSR), as this project exports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.encoders.encoder import CPU_WORDS, FolderEncoder, usable_device
from evaluation.task import EvaluationError
from models.carried_code import load_saved


class WordFolderEncoder(FolderEncoder):
    """An export of word vectors; made by `load_word_model`."""

    def __init__(self, model: Any, path: Path, batch_size: int) -> None:
        super().__init__(model, path, "own", batch_size)
        if self.device.type == "cpu":
            self.budget = CPU_WORDS
        self.full_length = model[0].model.lengths


def load_word_model(folder: Path, device: str | None = None, batch_size: int = 128) -> WordFolderEncoder:
    """The encoder of an export. No code of the folder is run: this project's copy of it is taken.

    Raises EvaluationError when the folder does not load.
    """
    try:
        model = load_saved(folder, usable_device(device))
    except Exception as error:  # the libraries raise a dozen kinds for a broken folder
        raise EvaluationError(f"the model folder {folder} does not load: {error}") from error
    return WordFolderEncoder(model, folder, batch_size)
