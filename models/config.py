"""The sentence encoder that a run starts from: a transformer, or word vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Discriminator, Field, Tag

from multicse.data.errors import DataError
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors
from multicse.models.sentence_encoder import AnyEncoderConfig, Settings
from multicse.models.text_encoder import EncoderConfig

if TYPE_CHECKING:
    from multicse.models.word_encoder import WordEncoder

log = logging.getLogger(__name__)

LOOKED_AT = 1000  # sentences whose words are counted before a run
VECTORS = "vectors"
"""The folder, in a run's output, of word vectors that the run has trained itself."""


class WordEncoderConfig(AnyEncoderConfig):
    """Frozen word vectors and convolutions over them (GCLSR). The filters start from the run's seed."""

    kind: ClassVar[str] = "word vectors"

    vectors: str | None = None
    """A word2vec or GloVe file (.bin, .txt, .vec, with or without .gz), or a folder of word vectors. None: trained on the
    run's own sentences before it begins."""
    dim: int = Field(300, gt=0)
    """Length of a vector, where they are trained; a file says its own."""
    epochs: int = Field(20, gt=0)
    """Passes over the sentences, where vectors are trained."""
    max_words: int = Field(64, gt=0)
    """Words of a sentence, which is cut or padded to them."""
    regions: tuple[int, ...] = (1, 1, 1, 6, 15, 20)
    """Words that the filters of each bank see at once."""
    filters: int = Field(300, gt=0)
    """Filters of a bank; the sentence vector has as many dimensions as all banks have filters."""
    letters: Literal["a-z", "any"] = "a-z"
    """What belongs to a word; any: the letters of every script."""
    unknown: Literal["fixed", "redrawn"] = "fixed"
    """The random vector of a word that has none. Fixed: always the same one. Redrawn, as the released code: another one
    every time a sentence is read; in evaluation the sentence decides, so that scores repeat."""

    @property
    def hidden_size(self) -> int:
        """Dimensions of a sentence vector."""
        return self.filters * len(self.regions)

    def read(self) -> Self:
        if self.vectors is not None:
            place = Path(self.vectors).expanduser()
            if not is_word_vectors(place) or not place.exists():
                raise ValueError(
                    f"encoder.vectors={self.vectors!r} is neither a word-vector file (.txt, .vec, .bin, each also with .gz) "
                    "nor a folder of word vectors; leave it out to train vectors on the run's own sentences"
                )
            try:  # what is wrong with a file shows here, and the workers find it in the cache
                open_vectors(self.vectors)
            except DataError as error:
                raise ValueError(f"encoder.vectors: {error}") from None
        if max(self.regions, default=0) > self.max_words or min(self.regions, default=0) < 1:
            raise ValueError(f"encoder.regions={self.regions}: windows have 1 to encoder.max_words={self.max_words} words")
        return self

    def load(self, places: Sequence[Path]) -> WordEncoder:
        from multicse.models.word_encoder import (
            WordEncoder,
        )  # here: its imports take seconds, which --help has not

        found = open_vectors(self._vectors(places))
        settings = self.model_dump(include={"max_words", "regions", "filters", "letters", "unknown"})
        encoder = WordEncoder(found.words, torch.from_numpy(found.vectors), **settings)
        encoder.source = self.vectors
        return encoder

    def _vectors(self, places: Sequence[Path]) -> Path | str:
        """Those that are named, else those that the run has trained. Raises ValueError when there are none."""
        if self.vectors is not None:
            return self.vectors
        folders = [place / VECTORS for place in places]
        found = next((folder for folder in folders if is_word_vectors(folder)), None)
        if found is None:
            raise ValueError(
                f"the word vectors that this run trained are not in {' or '.join(map(str, folders))}; copy the folder "
                "OUTPUT/vectors of the run beside its checkpoint"
            )
        return found

    def prepare_cache_key(self) -> dict[str, Any] | None:
        return None if self.vectors is not None else self.model_dump(include={"dim", "epochs", "letters"})

    def prepare(self, sentences: Callable[[], Iterator[str]], folder: Path, seed: int) -> None:
        """Train vectors where none are named; warn when most words of the first sentences have none in those that are.

        Raises ValueError when the sentences have no word at all, as those of another script than `letters` takes.
        """
        from multicse.models.word_module import split

        words = [word for text in islice(sentences(), LOOKED_AT) for word in split(text, self.letters)]
        if not words:
            raise ValueError(
                f"the first {LOOKED_AT:,} sentences have no word of the letters {self.letters}; for another script than the "
                "Latin one set encoder.letters to 'any'"
            )
        if self.vectors is None:
            log.warning("encoder.vectors is none: word vectors are trained on the run's own sentences first")
            train_vectors(
                sentences(),
                folder / VECTORS,
                dim=self.dim,
                split=partial(split, letters=self.letters),
                letters=self.letters,
                epochs=self.epochs,
                seed=seed,
            )
            return
        known = open_vectors(self.vectors).row
        unknown = sum(word not in known for word in words) / len(words)
        if unknown > 0.5:
            log.warning(
                "%.0f %% of the words of the first sentences have no vector in %s; is encoder.letters (%s) right, and are "
                "these vectors of that language, in lower case?",
                100 * unknown,
                self.vectors,
                self.letters,
            )


def _kind(given: Any) -> str:
    names = given if isinstance(given, dict) else type(given).model_fields if isinstance(given, Settings) else {}
    return "words" if "path" not in names and ("vectors" in names or "regions" in names) else "transformer"


AnyEncoder = Annotated[
    Annotated[EncoderConfig, Tag("transformer")] | Annotated[WordEncoderConfig, Tag("words")], Discriminator(_kind)
]
"""Told apart by their fields."""
