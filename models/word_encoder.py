"""The sentence encoder of word vectors: where its vectors come from, and how it is saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from data.word_vectors import open_vectors
from models import word_module
from models.word_module import WordModel, WordModule, word_hash

if TYPE_CHECKING:
    from models.config import WordEncoderConfig

MODULE = "multicse_words"
"""File, without its ending, that the code of a folder is in."""
CLASS = f"{MODULE}.{WordModule.__name__}"
"""What modules.json says of such a folder."""
CODE = {f"{MODULE}.py": str(word_module.__file__)}
"""What is copied into such a folder, and from where."""


class WordEncoder(WordModel):
    """Sentences to vectors (B, d): the `SentenceEncoder` of a recipe whose encoder is word vectors."""

    modalities: tuple[str, ...] = ("text",)
    groups_by_length = True
    logit_factor: Callable[[], float] | None = None
    vectors_hash: Tensor
    """A number of the word vectors, which are not in checkpoints themselves."""

    def __init__(self, words: Sequence[str], table: Tensor, **settings: Any) -> None:
        super().__init__(words, table, **settings)
        some = table[:: max(1, len(table) // 1000)].double().sum(1)
        known = "\n".join([str(len(words)), *words[:1000], *words[-1000:], *(f"{value:.9e}" for value in some.tolist())])
        self.register_buffer("vectors_hash", torch.tensor(word_hash(known)))
        self.register_load_state_dict_pre_hook(_same_vectors)

    @classmethod
    def from_config(cls, config: WordEncoderConfig, vectors: Path | str) -> WordEncoder:
        """Fresh filters, from torch's random numbers, over the vectors of a file or folder (`data.word_vectors`).

        Raises DataError for a file that holds no word vectors.
        """
        found = open_vectors(vectors)
        settings = config.model_dump(include={"max_words", "regions", "filters", "letters", "unknown"})
        return cls(found.words, torch.from_numpy(found.vectors), **settings)

    def save(self, folder: str) -> None:
        """Write a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads, with its vectors and code."""
        place = Path(folder)
        copied = WordModel(self.words, self.table.cpu(), **self.settings)
        copied.cnn.load_state_dict(self.cnn.state_dict())
        model = SentenceTransformer(modules=[WordModule(copied)], device="cpu", similarity_fn_name="cosine")
        model.save(folder, create_model_card=False)
        for name, ours in CODE.items():
            shutil.copyfile(ours, place / name)
        modules = [{"idx": 0, "name": "0", "path": "", "type": CLASS}]
        (place / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def _same_vectors(encoder: WordEncoder, state: dict[str, Any], prefix: str, *_: Any) -> None:
    saved = state.get(f"{prefix}vectors_hash")
    if saved is None or not torch.equal(saved, encoder.vectors_hash.cpu()):
        raise ValueError(
            "trained on other word vectors than those it is loaded with; put back the vectors of its run: the file of "
            "encoder.vectors, or the folder OUTPUT/vectors"
        )
