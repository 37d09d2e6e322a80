"""The sentence encoder that a run starts from: a transformer, or word vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from multicse.data.errors import DataError
from multicse.data.word_vectors import is_word_vectors, open_vectors, train_vectors

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from multicse.models.text_encoder import TextEncoder
    from multicse.models.word_encoder import WordEncoder

log = logging.getLogger(__name__)

LOOKED_AT = 1000  # sentences whose words are counted before a run
VECTORS = "vectors"
"""The folder, in a run's output, of word vectors that the run has trained itself."""


class Settings(BaseModel):
    """A frozen part of a recipe; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AnyEncoderConfig(Settings):
    """What every kind of encoder is asked before a run."""

    kind: ClassVar[str]
    """What methods call it that train such an encoder (`MethodConfig.encoder_kind`)."""
    layered: ClassVar[bool] = False
    """Whether it has a transformer's layers, which a run can treat one by one and whose vectors an export can whiten."""

    def read(self) -> PretrainedConfig | WordEncoderConfig:
        """What decides whether a method can train the encoder, such as its ``hidden_size``, from its files.

        Raises ValueError, which begins with the setting, when there is no such encoder.
        """
        raise NotImplementedError  # the interface: every encoder defines it

    def load(self, places: Sequence[Path]) -> TextEncoder | WordEncoder:
        """The encoder itself; `places` are the folders in which a run leaves what it prepared."""
        raise NotImplementedError  # the interface: every encoder defines it

    def preparation(self) -> dict[str, Any] | None:
        """What decides, beside sentences and seed, what `prepare` makes; None: it makes nothing."""
        return None

    def prepare(self, sentences: Callable[[], Iterator[str]], folder: Path, seed: int) -> None:
        """Look at the sentences of a run, and make in `folder` what the encoder needs of them. Raises ValueError."""


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al., ICLR 2022), in place of which the weights of the transformer stay as they are."""

    rank: int | None = Field(None, gt=0)
    """Width of the adapters, 8 for example; none: no adapters, all weights are trained."""
    alpha: float | None = Field(None, gt=0)
    """An adapter's output is multiplied by alpha / rank; none: twice the rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of what goes into an adapter."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter, such as `query value`; none: all."""

    def check(self) -> None:
        """Raise ValueError where adapters are asked for and peft is not installed."""
        if self.rank and find_spec("peft") is None:
            raise ValueError(f"encoder.lora.rank={self.rank} needs peft: pip install 'multicse[lora]', or leave it out")


class EncoderConfig(AnyEncoderConfig):
    """The sentence encoder a run starts from."""

    kind: ClassVar[str] = "transformer"
    layered: ClassVar[bool] = True

    path: str
    """A Hugging Face or sentence-transformers folder, or a hub name."""
    pooling: Literal["cls", "cls_before_pooler", "mean", "max", "eot", "avg_top2", "avg_first_last"] | None = None
    """How token vectors become a sentence vector; none: as the folder says, else mean (CLIP: eot)."""
    scratch: bool = False
    """Take configuration and tokenizer of the path and make the weights anew, from the run's seed."""
    hidden_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout in the layers, which makes the two views of a sentence; none: the model's own (BERT: 0.1)."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of the attention weights; none: the model's own."""
    lora: LoRASettings = LoRASettings()
    """Small matrices that are trained in place of the transformer's weights; an export has them merged in."""

    def read(self) -> PretrainedConfig:
        from multicse.models.hub_folders import ENCODER
        from multicse.models.text_folders import text_config

        try:
            config = text_config(self.path)
            int(config.hidden_size)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            raise ValueError(
                f"encoder.path={self.path!r} is neither a folder with a config.json nor a model that the hub has: {error}"
            ) from None
        if not self.scratch:
            ENCODER.refuse_pickles(self.path, Path(self.path))
        self.lora.check()
        return config

    def load(self, places: Sequence[Path]) -> TextEncoder:
        from multicse.models.text_encoder import TextEncoder

        encoder = TextEncoder.from_pretrained(
            self.path,
            pooling=self.pooling,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            scratch=self.scratch,
        )
        if self.lora.rank:
            from multicse.models.adapters import add_adapters

            add_adapters(encoder.model, self.lora)
        return encoder


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
        from multicse.models.word_encoder import WordEncoder

        return WordEncoder.from_config(self, self._vectors(places))

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

    def preparation(self) -> dict[str, Any] | None:
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
