"""Streams of sentences: the plain stream, and streams whose views are made with a lexicon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from multicse.data.errors import DataError
from multicse.data.settings import Mark, Name, refuse_idle
from multicse.data.shards import RawSample, ShardSet
from multicse.data.streams import decode
from multicse.data.streams.base import Row, StreamConfig, Tokenize

if TYPE_CHECKING:
    from torch import Tensor

    from multicse.data.lexicon import Lexicon


class TextStream(StreamConfig):
    """Sentences, pairs or triples, with one view per column: ``input_ids`` and ``attention_mask`` (B, V, L)."""

    kind: Literal["text"] = "text"
    """Kind of the stream; it cannot be changed."""
    columns: tuple[Name, ...] = Field(("txt",), min_length=1)
    """Fields with the texts of a sample: `txt`, or entries of its JSON, for example `sent0 sent1 hard_neg`."""
    max_length: int = Field(32, gt=2)
    """Largest number of tokens of a sentence in training; the rest is cut off."""
    keep_empty: bool = False
    """Replace an empty text by one blank, as in the released code of SimCSE. If False, its sample is a bad sample."""

    @property
    def texts(self) -> bool:
        """Return True."""
        return True

    @property
    def n_texts(self) -> int:
        """Return the number of texts of a sample; each is a view."""
        return len(self.columns)

    def needs(self) -> list[tuple[str, tuple[str, ...]]]:
        """Require the columns."""
        return [("columns", (column, "json")) for column in self.columns]

    def sentences(self, sample: RawSample) -> list[str]:
        """Return the texts of the columns."""
        return decode.text(sample.fields, self.columns, key=sample.key, empty=" " if self.keep_empty else None)

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return one text per view: ``text0``, ``text1``, ..."""
        return dict(zip(self._names, self.sentences(sample), strict=True))

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` (B, V, L)."""
        assert tokenize is not None  # streams with texts get a tokenizer
        tokens = tokenize(self._flat(rows))
        return {n: t.view(-1, self.n_texts, t.shape[-1]) for n, t in tokens.items() if n in ("input_ids", "attention_mask")}

    def _flat(self, rows: dict[str, Any]) -> list[str]:
        """Return all texts of a batch, sample by sample."""
        return [str(rows[name][i]) for i in range(len(rows[self._names[0]])) for name in self._names]

    @property
    def _names(self) -> list[str]:
        return [f"text{i}" for i in range(self.n_texts)]


class LexiconTextStream(TextStream):
    """Views of one sentence, which reading tasks make with a lexicon."""

    columns: tuple[Name] = ("txt",)
    """Field with the sentence."""
    lexicon: Annotated[str, Mark("place", ("small",))] | None = None
    """A lexicon file: of `pack.py lexicon`, for any language, or of `prepare.py wordnet`; or `small` for a table of some 200
    words. If None, `wordnet.sqlite` in the current folder, where `prepare.py wordnet` writes it."""

    @property
    def uses_lexicon(self) -> bool:
        """Return True if views are made with the lexicon."""
        return True

    def check_settings(self) -> None:
        """Check also that the lexicon is used."""
        super().check_settings()
        if not self.uses_lexicon:
            refuse_idle(self, ["lexicon"], "no word is replaced or inserted; remove it")

    def check(self, shards: ShardSet) -> None:
        """Check also that the lexicon can be opened."""
        super().check(shards)
        if self.uses_lexicon:
            self.open_lexicon()

    def defaults(self) -> dict[str, str]:
        """Return the path of the lexicon."""
        return {} if self.lexicon else {"lexicon": self.open_lexicon().path}

    def open_lexicon(self) -> Lexicon:
        """Open the lexicon, once per process. Its error is a ValueError and no DataError, so that no sample is skipped."""
        from multicse.data.lexicon import open_lexicon

        try:
            return open_lexicon(self.lexicon)
        except DataError as error:
            raise ValueError(f"lexicon={self.lexicon!r}: {error}") from None
