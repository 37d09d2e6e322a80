"""The sentence encoder of word vectors, with the source of its vectors, its export and its model card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from multicse.models.sentence_encoder import SENTENCES, CardText, SentenceEncoder, usage
from multicse.models.word_module import WordModel, WordModule, word_hash


class WordEncoder(WordModel, SentenceEncoder):
    """The `SentenceEncoder` of a recipe with word vectors as its encoder."""

    source: str | None = None
    """File or folder of the word vectors. If None, they were trained on the training sentences."""
    vectors_hash: Tensor
    """Hash of the word vectors, which checkpoints do not contain."""

    def __init__(self, words: Sequence[str], table: Tensor, **settings: Any) -> None:
        super().__init__(words, table, **settings)
        some = table[:: max(1, len(table) // 1000)].double().sum(1)
        known = "\n".join([str(len(words)), *words[:1000], *words[-1000:], *(f"{value:.9e}" for value in some.tolist())])
        self.register_buffer("vectors_hash", torch.tensor(word_hash(known)))
        self.register_load_state_dict_pre_hook(_same_vectors)

    def save(self, folder: str) -> None:
        """Write a folder that ``SentenceTransformer(folder, trust_remote_code=True)`` loads, with its vectors and code."""
        copied = WordModel(self.words, self.table.cpu(), **self.settings)
        copied.cnn.load_state_dict(self.cnn.state_dict())
        model = SentenceTransformer(modules=[WordModule(copied)], device="cpu", similarity_fn_name="cosine")
        model.save(folder, create_model_card=False)

    def card(self, folder: Path) -> CardText:
        """Return the texts of the model card."""
        vectors = f"the word vectors `{Path(self.source).name}`" if self.source else "word vectors of its training sentences"
        return CardText(
            what=SENTENCES,
            initialised_from=f"On {vectors}, which are frozen, filters were trained from random weights",
            usage=usage(", trust_remote_code=True"),
            notes="The folder contains its vectors and its Python code: `trust_remote_code=True` runs "
            "`multicse_words.py`, so read this file first if you do not trust the source of the folder.",
        )


def _same_vectors(encoder: WordEncoder, state: dict[str, Any], prefix: str, *_: Any) -> None:
    saved = state.get(f"{prefix}vectors_hash")
    if saved is None or not torch.equal(saved, encoder.vectors_hash.cpu()):
        raise ValueError(
            "the checkpoint was trained with other word vectors than the current ones; restore the vectors of its run: the "
            "file of encoder.vectors, or the folder OUTPUT/vectors"
        )
