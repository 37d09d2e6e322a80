"""Settings of the sentence encoder that a run starts from: a transformer or word vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Discriminator, Field, PositiveInt, Tag

from multicse.data.errors import DataError
from multicse.data.settings import Place, Settings
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors
from multicse.models.adapters import LoRASettings, add_adapters
from multicse.models.packing import DECODERS
from multicse.models.pooling import Pooling
from multicse.models.pretrained import ENCODER
from multicse.models.probes import check_folder, check_vectors
from multicse.models.sentence_encoder import AnyEncoderConfig
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import new_model, open_text_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from multicse.models.word_encoder import WordEncoder

log = logging.getLogger(__name__)

LOOKED_AT = 1000  # sentences in which words without vectors are counted before a run
VECTORS = "vectors"
"""Folder in a run's output for word vectors that the run has trained."""


class EncoderConfig(AnyEncoderConfig):
    """Sentence encoder that a run starts from."""

    kind: ClassVar[str] = "transformer"
    layered: ClassVar[bool] = True

    path: Place
    """Hugging Face or sentence-transformers folder, or a model ID on the Hugging Face Hub."""
    pooling: Pooling | None = None
    """Pooling of token vectors to a sentence vector. If None, the pooling of the folder; without one, lasttoken
    for CLIP and models for text generation, otherwise mean."""
    prompt: str | None = None
    """Prompt before every text in training and evaluation; exports contain it as the default prompt. If None, the default
    prompt of the folder; an empty one removes it."""
    include_prompt: bool | None = None
    """Pool the tokens of the prompt, too. If None, the setting of the folder, otherwise True."""
    scratch: bool = False
    """Use configuration and tokenizer of the path, and initialise the weights randomly with the run's seed."""
    hidden_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout in the layers, which creates the two views of a sentence. If None, the model's own (BERT: 0.1)."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of the attention weights. If None, the model's own."""
    lora: LoRASettings = LoRASettings()
    """Low-rank adapters, trained instead of the transformer's weights; they are merged into exports."""

    def find(self) -> None:
        """Look for the folder; without one, download the configuration of the model from the Hugging Face Hub."""
        ENCODER.folder(self.path, weights=False)

    def read(self) -> PretrainedConfig:
        """Read the configuration of the transformer and check the folder."""
        try:
            _, saved, config, _ = open_text_model(self.path, self.scratch, False, self.prompt, self.include_prompt)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            if str(error).startswith("encoder."):
                raise
            raise ENCODER.cannot_load(self.path, error) from None
        self.lora.check()
        if self.lora.targets:
            with torch.device("meta"):  # names only
                self.lora.check_targets(new_model(config))
        if config.model_type in DECODERS and self.pooling in ("cls", "pooler"):
            raise ValueError(
                f"encoder.pooling={self.pooling!r}: the first token of a {config.model_type!r} model attends to no other "
                "token; use lasttoken or mean"
            )
        if self.include_prompt is not None and not saved.conventions.prompt:
            raise ValueError(
                f"encoder.include_prompt={self.include_prompt} has no effect without a prompt; set encoder.prompt, or "
                "remove it"
            )
        return config

    def check_vectors(self) -> None:
        """Compare the vectors of the folder, training, evaluation and export on a few texts; see `probes`."""
        if not self.scratch:
            check_folder(self.path)
        check_vectors(self.load([]), self.path)

    def load(self, places: Sequence[Path]) -> TextEncoder:
        """Load the transformer and add adapters."""
        encoder = TextEncoder.from_pretrained(
            self.path,
            pooling=self.pooling,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            scratch=self.scratch,
            prompt=self.prompt,
            include_prompt=self.include_prompt,
        )
        if self.lora.rank:
            add_adapters(encoder.model, self.lora)
        return encoder


class WordEncoderConfig(AnyEncoderConfig):
    """Frozen word vectors and a TextCNN over them (GCLSR). The filters are initialised with the run's seed."""

    kind: ClassVar[str] = "word vectors"

    vectors: Place | None = None
    """Word2vec or GloVe file (.bin, .txt, .vec, optionally .gz), or a folder of word vectors. If None, vectors are trained
    on the sentences of the run before it starts."""
    dim: int = Field(300, gt=0)
    """Dimension of trained vectors; not used for vectors from a file."""
    epochs: int = Field(20, gt=0)
    """Epochs over the sentences if vectors are trained."""
    max_words: int = Field(64, gt=0)
    """Number of words to which sentences are truncated or padded."""
    regions: tuple[PositiveInt, ...] = Field((1, 1, 1, 6, 15, 20), min_length=1)
    """Window sizes in words, one per bank of filters."""
    filters: int = Field(300, gt=0)
    """Filters per bank; the dimension of a sentence vector is the number of filters of all banks."""
    letters: Literal["a-z", "any"] = "a-z"
    """Letters that form words: a to z, or the letters of any script."""
    unknown: Literal["fixed", "redrawn"] = "fixed"
    """Random vector of an unknown word. `fixed`: always the same vector. `redrawn`, as in the released code: a new vector
    every time a sentence is read; in evaluation it depends on the sentence, so scores are reproducible."""

    @property
    def hidden_size(self) -> int:
        """Return the dimension of a sentence vector."""
        return self.filters * len(self.regions)

    def read(self) -> Self:
        """Check vectors and window sizes, and return the settings."""
        if self.vectors is not None:
            place = Path(self.vectors).expanduser()
            if not is_word_vectors(place) or not place.exists():
                raise ValueError(
                    f"encoder.vectors={self.vectors!r} is neither a word-vector file (.txt, .vec, .bin, each also with .gz) "
                    "nor a folder of word vectors; do not set it to train vectors on the sentences of the run"
                )
            try:  # reports a broken file early, and fills the cache for the workers
                open_vectors(self.vectors)
            except DataError as error:
                raise ValueError(f"encoder.vectors: {error}") from None
        if max(self.regions) > self.max_words:
            raise ValueError(f"encoder.regions={self.regions}: window sizes must be 1 to encoder.max_words={self.max_words}")
        return self

    def load(self, places: Sequence[Path]) -> WordEncoder:
        """Load or find the vectors and build the encoder."""
        from multicse.models.word_encoder import WordEncoder  # here: takes seconds, too long for --help

        found = open_vectors(self._vectors(places))
        settings = self.model_dump(include={"max_words", "regions", "filters", "letters", "unknown"})
        encoder = WordEncoder(found.words, torch.from_numpy(found.vectors), **settings)
        encoder.source = self.vectors
        return encoder

    def _vectors(self, places: Sequence[Path]) -> Path | str:
        """Return the configured vectors, otherwise the folder of vectors that the run has trained, or raise ValueError."""
        if self.vectors is not None:
            return self.vectors
        folders = [place / VECTORS for place in places]
        found = next((folder for folder in folders if is_word_vectors(folder)), None)
        if found is None:
            raise ValueError(
                f"the word vectors that this run trained were not found in {' or '.join(map(str, folders))}; copy the "
                "folder OUTPUT/vectors of the run next to its checkpoint"
            )
        return found

    def prepare_cache_key(self) -> dict[str, Any] | None:
        """Return the settings that determine trained vectors; None if vectors are given."""
        return None if self.vectors is not None else self.model_dump(include={"dim", "epochs", "letters"})

    def prepare(self, sentences: Callable[[], Iterator[str]], folder: Path, seed: int) -> None:
        """Train vectors if none are given, otherwise warn if most words of the first sentences have no vector."""
        from multicse.models.word_module import split

        words = [word for text in islice(sentences(), LOOKED_AT) for word in split(text, self.letters)]
        if not words:
            raise ValueError(
                f"the first {LOOKED_AT:,} sentences contain no words of the letters {self.letters}; for a script other than "
                "Latin set encoder.letters to 'any'"
            )
        if self.vectors is None:
            log.warning("encoder.vectors is not set: training word vectors on the sentences of the run first")
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
                "%.0f %% of the words of the first sentences have no vector in %s; check encoder.letters (%s), and that the "
                "vectors are for this language and lower case",
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
"""Any sentence encoder; the kind follows from the fields."""
