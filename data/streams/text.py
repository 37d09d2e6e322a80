"""Streams of sentences: the plain one, which the others are made of, and the lexicon that some of them need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from multicse.data.errors import DataError
from multicse.data.order import seed_of
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode
from multicse.data.streams.base import Row, StreamConfig, Tokenize

if TYPE_CHECKING:
    from torch import Tensor

    from multicse.data.wordnet import Lexicon


class TextStream(StreamConfig):
    """Sentences, pairs or triples. Every column is one view: ``input_ids`` and ``attention_mask`` (B, V, L)."""

    kind: Literal["text"] = "text"
    """Kind of the stream; fixed, since its other settings belong to it."""
    columns: tuple[str, ...] = ("txt",)
    """`txt`, or fields of the sample's JSON: `sent0 sent1 hard_neg`."""
    max_length: int = Field(32, gt=2)
    """Tokens that are kept of a sentence in training."""
    keep_empty: bool = False
    """On: an empty text counts as one blank (released SimCSE); off: its sample is a bad one."""

    @property
    def texts(self) -> bool:
        return True

    @property
    def n_texts(self) -> int:
        """Texts of a sample, each a view."""
        return len(self.columns)

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("columns", (column, "json")) for column in self.columns]

    def sentences(self, sample: RawSample) -> list[str]:
        return decode.text(sample.fields, self.columns, key=sample.key, empty=" " if self.keep_empty else None)

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        return dict(zip(self._names, self.sentences(sample), strict=True))

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        assert tokenize is not None  # a stream with texts is given one
        tokens = tokenize(self._flat(rows))
        return {n: t.view(-1, self.n_texts, t.shape[-1]) for n, t in tokens.items() if n in ("input_ids", "attention_mask")}

    def _flat(self, rows: dict[str, Any]) -> list[str]:
        """All texts of a batch, those of a sample beside each other."""
        return [str(rows[name][i]) for i in range(len(rows[self._names[0]])) for name in self._names]

    @property
    def _names(self) -> list[str]:
        return [f"text{i}" for i in range(self.n_texts)]


class LexiconTextStream(TextStream):
    """Views of one sentence that are made with a lexicon, where the shards are read."""

    columns: tuple[str] = ("txt",)
    """The one field that holds the sentence."""
    lexicon: str | None = None
    """Folder of WordNet's database files, or `small` for a table of some 200 words; none: where packages put WordNet."""

    def check(self, shards: ShardSet) -> None:
        super().check(shards)
        self.open_lexicon()

    def open_lexicon(self) -> Lexicon:
        """Opened once in a process. ValueError where there is none: no fault of a sample, so no sample is skipped for it."""
        from multicse.data.wordnet import open_lexicon

        try:
            return open_lexicon(self.lexicon)
        except DataError as error:
            raise ValueError(f"lexicon={self.lexicon!r}: {error}") from None


class EDATextStream(LexiconTextStream):
    """Two independent EDA views of every sentence (GCLSR's baseline): ``input_ids``, ``attention_mask`` (B, 2, L).

    The same seed, pass and sample give the same views.
    """

    kind: Literal["eda_text"] = "eda_text"  # type: ignore[assignment]  # the union tells streams apart by it
    """Kind of the stream; fixed, since its other settings belong to it."""
    alpha: float = Field(0.1, ge=0, le=1)
    """Share of the words that each of the four edits is to change; 0: the sentence twice."""

    @property
    def n_texts(self) -> int:
        return 2

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        from multicse.data.streams.eda import cached_synonyms, eda

        words = self.sentences(sample)[0].split()
        synonyms = cached_synonyms(self.open_lexicon())
        return {name: " ".join(eda(words, rng, synonyms, self.alpha)) for name in self._names}


class NoisyTextStream(LexiconTextStream):
    """Every text of a sample spoiled once, the same in every pass (NonLing-CSE, Figure 3: [0.3, 2, 2]): ``input_ids`` and
    ``attention_mask`` (B, V, L) of V columns."""

    kind: Literal["noisy_text"] = "noisy_text"  # type: ignore[assignment]  # the union tells streams apart by it
    """Kind of the stream; fixed, since its other settings belong to it."""
    columns: tuple[str, ...] = ("txt",)  # type: ignore[assignment]  # any number
    """`txt`, or fields of the sample's JSON: `sent0 sent1 hard_neg`."""
    deletion: float = Field(0.0, ge=0, le=1)
    """Probability of every word to be left out; at least one stays."""
    insertions: int = Field(0, ge=0)
    """Synonyms of random words that are put at random places of a text."""
    swaps: int = Field(0, ge=0)
    """Times that two words of a text change places."""

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        from multicse.data.streams import eda

        synonyms = eda.cached_synonyms(self.open_lexicon())
        own = np.random.default_rng(seed_of("noise", sample.shard, sample.key))
        texts = {}
        for name, text in zip(self._names, self.sentences(sample), strict=True):
            words = eda.delete(text.split(), own, self.deletion)
            words = eda.insert_synonyms(words, own, synonyms, self.insertions)
            texts[name] = " ".join(eda.swap(words, own, self.swaps)) or text
        return texts
