"""The sentence encoder of word vectors: where its vectors come from, and how it is saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from sentence_transformers import SentenceTransformer

from data.config import TextStream
from data.decode import text
from data.shards import BadSample, ShardSet, read
from data.word_vectors import open_vectors, train_vectors
from trainers import word_module
from trainers.encoder_config import WordEncoderConfig
from trainers.word_module import WordModel, WordModule, split

if TYPE_CHECKING:
    from trainers.recipe import Recipe

MODULE = "multicse_words"
"""File, without its ending, that the code of a folder is in."""
CLASS = f"{MODULE}.{WordModule.__name__}"
"""What modules.json says of such a folder."""
CODE = {f"{MODULE}.py": str(word_module.__file__)}
"""What is copied into such a folder, and from where."""
CHUNK = 512  # samples of a shard read at once


class WordEncoder(WordModel):
    """Sentences to vectors (B, d): the `SentenceEncoder` of a recipe whose encoder is word vectors."""

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


def vectors_of(recipe: Recipe) -> Path | str:
    """The word vectors of a recipe: those it names, else the folder in its output that its own are written to."""
    assert isinstance(recipe.encoder, WordEncoderConfig)
    return recipe.encoder.vectors or Path(recipe.run.output) / "vectors"


def train_recipe_vectors(recipe: Recipe) -> Path | None:
    """Train the word vectors of a recipe that names none, on the sentences of its text streams. Returns their folder.

    Raises DataError when they hold no word often enough.
    """
    config = recipe.encoder
    if not isinstance(config, WordEncoderConfig) or config.vectors is not None:
        return None
    return train_vectors(
        partial(_sentences, recipe),
        Path(recipe.run.output) / "vectors",
        dim=config.dim,
        split=partial(split, letters=config.letters),
        letters=config.letters,
        seed=recipe.run.seed,
    )


def _sentences(recipe: Recipe) -> Iterator[str]:
    """Every text of every text stream, in the order of the shards. What cannot be read is the stream's to report."""
    for stream in recipe.streams.values():
        if not isinstance(stream, TextStream):
            continue
        for shard in ShardSet.open(stream.shards).shards:
            for start in range(0, shard.samples, CHUNK):
                for sample in read(shard, list(range(start, min(start + CHUNK, shard.samples)))):
                    if not isinstance(sample, BadSample):
                        yield from text(sample.fields, stream.columns, key=sample.key)
