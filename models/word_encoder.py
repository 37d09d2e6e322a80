"""The sentence encoder of word vectors: where its vectors come from, and how it is saved."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from data.errors import DecodeError
from data.shards import BadSample, ShardSet, read
from data.streams.decode import text
from data.streams.kinds import TextStream
from data.word_vectors import is_word_vectors, open_vectors, train_vectors
from models import word_module
from models.config import WordEncoderConfig
from models.word_module import WordModel, WordModule, split, word_hash

if TYPE_CHECKING:
    from trainers.recipe import Recipe

MODULE = "multicse_words"
"""File, without its ending, that the code of a folder is in."""
CLASS = f"{MODULE}.{WordModule.__name__}"
"""What modules.json says of such a folder."""
CODE = {f"{MODULE}.py": str(word_module.__file__)}
"""What is copied into such a folder, and from where."""
CHUNK = 512  # samples of a shard read at once
LOOKED_AT = 1000  # sentences whose words are counted before a run

log = logging.getLogger(__name__)


class WordEncoder(WordModel):
    """Sentences to vectors (B, d): the `SentenceEncoder` of a recipe whose encoder is word vectors."""

    vectors_hash: Tensor
    """A number of the word vectors, which are not in checkpoints themselves."""

    def __init__(self, words: Sequence[str], table: Tensor, **settings: Any) -> None:
        super().__init__(words, table, **settings)
        some = table[:: max(1, len(table) // 1000)].double().sum(1)
        known = "\n".join([str(len(words)), *words[:1000], *words[-1000:], *(f"{value:.9e}" for value in some.tolist())])
        self.register_buffer("vectors_hash", torch.tensor(word_hash(known)))

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


def vectors_of(recipe: Recipe, checkpoint: Path | None = None) -> Path | str:
    """The word vectors of a recipe: those it names, else the folder that its own are written to, beside the checkpoint or in
    the run's output. Raises ValueError when there is none."""
    assert isinstance(recipe.encoder, WordEncoderConfig)
    if recipe.encoder.vectors is not None:
        return recipe.encoder.vectors
    places = [*([checkpoint.resolve().parent / "vectors"] if checkpoint else []), Path(recipe.run.output) / "vectors"]
    for place in places:
        if is_word_vectors(place):
            return place
    raise ValueError(
        f"the word vectors that this run trained are not in {' or '.join(map(str, places))}; copy the folder OUTPUT/vectors "
        "of the run beside its checkpoint"
    )


def train_recipe_vectors(recipe: Recipe) -> Path | None:
    """Train the word vectors of a recipe that names none, on the sentences of its text streams. Returns their folder.

    Raises DataError when they hold no word often enough.
    """
    config = recipe.encoder
    if not isinstance(config, WordEncoderConfig) or config.vectors is not None:
        return None
    log.warning("encoder.vectors is none: word vectors are trained on the run's own sentences first")
    return train_vectors(
        partial(_sentences, recipe),
        Path(recipe.run.output) / "vectors",
        dim=config.dim,
        split=partial(split, letters=config.letters),
        letters=config.letters,
        epochs=config.epochs,
        seed=recipe.run.seed,
    )


def check_vocabulary(recipe: Recipe) -> None:
    """Look at the first sentences of a run on word vectors: a warning when most of their words have no vector.

    Raises ValueError when they have no word at all, as texts of another script than `encoder.letters` takes.
    """
    config = recipe.encoder
    if not isinstance(config, WordEncoderConfig):
        return
    words = [word for text in islice(_sentences(recipe), LOOKED_AT) for word in split(text, config.letters)]
    if not words:
        raise ValueError(
            f"the first {LOOKED_AT:,} sentences have no word of the letters {config.letters}; for another script than the "
            "Latin one set encoder.letters to 'any'"
        )
    if config.vectors is not None:
        known = open_vectors(config.vectors).row
        unknown = sum(word not in known for word in words) / len(words)
        if unknown > 0.5:
            log.warning(
                "%.0f %% of the words of the first sentences have no vector in %s; is encoder.letters (%s) right, and are "
                "these vectors of that language, in lower case?",
                100 * unknown,
                config.vectors,
                config.letters,
            )


def _sentences(recipe: Recipe) -> Iterator[str]:
    """Every text of every text stream, in the order of the shards. What cannot be read is the stream's to report."""
    for stream in recipe.streams.values():
        if not isinstance(stream, TextStream):
            continue
        for shard in ShardSet.open(stream.shards).shards:
            for start in range(0, shard.samples, CHUNK):
                for sample in read(shard, list(range(start, min(start + CHUNK, shard.samples)))):
                    if isinstance(sample, BadSample):
                        continue
                    try:
                        yield from text(sample.fields, stream.columns, key=sample.key)
                    except DecodeError:
                        if stream.on_bad_sample == "raise":
                            raise
