"""Triplets of MoCoUTRL: a sentence, and two copies in which a word is replaced by a synonym and by an antonym.

The paper replaces a random token. The released preparation replaces the first occurrence of a random adjective of a long
sentence, by any lemma of any of its meanings and any antonym. This module replaces the occurrence that was drawn, and
changes nothing else: neither spacing nor punctuation, nor an article before the word ("an old man" -> "an young man").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample
from multicse.data.streams.base import Row, Tokenize
from multicse.data.streams.text import LexiconTextStream

if TYPE_CHECKING:
    from torch import Tensor

    from multicse.data.lexicon import Pos

Span = tuple[int, int]
"""First character and the character after the last."""
Replacements = Callable[[str], "tuple[Sequence[str], Sequence[str]] | None"]
"""Function from a word to its synonyms and antonyms, at least one of each, or to None if one of them does not exist."""

NO_CANDIDATE = "no word with a synonym and an antonym"
OTHER_LENGTH = "fewer or more words than `words` allows"

# Letters, with hyphens and apostrophes inside; no part of "3rd", "x_1" or of a letter with a combining accent.
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:[-'’][^\W\d_]+)*(?![\w\u0300-\u036f])")
_PIECE = re.compile(r"['’]?\w+(?:-\w+)*|[^\w\s]")  # similar to NLTK's tokens: didn 't re-use it .
_POSSESSIVE = re.compile(r"['’]s$", re.IGNORECASE)


class Triplet(NamedTuple):
    """A sentence, its copies with a synonym and with an antonym, and the span of the replaced word in each; (0, 0): none."""

    texts: tuple[str, str, str]
    spans: tuple[Span, Span, Span]


def words(text: str) -> list[Span]:
    """Return the spans of the words of a text, for example of the, dog and re-use in "the dog's re-use"."""
    return [(found.start(), found.start() + len(_POSSESSIVE.sub("", found.group()))) for found in _WORD.finditer(text)]


def triplet(
    text: str,
    rng: np.random.Generator,
    replacements: Replacements,
    most: int | None = None,
    drawn: Callable[[str], bool] | None = None,
) -> Triplet | None:
    """Replace one random word of a text by a random synonym and by a random antonym.

    Args:
        text: Sentence.
        rng: Source of all randomness.
        replacements: Function from a word, with the text's spelling, to its synonyms and antonyms.
        most: Draw from the first `most` pieces between white space only. If None, draw from all.
        drawn: Draw one of the words for which this function returns True, even if it cannot be replaced (released code). If
            None, draw one of the words that can be replaced.

    Returns:
        The triplet, or None if no word, or not the drawn one, has both a synonym and an antonym.
    """
    end = _end(text, most)
    spans = [span for span in words(text) if span[1] <= end]
    if drawn is not None:
        spans = [span for span in spans if drawn(text[slice(*span)])]
        spans = [spans[int(rng.integers(len(spans)))]] if spans else []
    candidates = [(span, found) for span in spans if (found := replacements(text[slice(*span)]))]
    if not candidates:
        return None
    (start, stop), found = candidates[int(rng.integers(len(candidates)))]
    replaced = (text[start:stop], *(several[int(rng.integers(len(several)))] for several in found))
    first, second, third = (text[:start] + word + text[stop:] for word in replaced)
    one, two, three = ((start, start + len(word)) for word in replaced)
    return Triplet((first, second, third), (one, two, three))


def _end(text: str, most: int | None) -> int:
    """Return the number of characters of the first `most` pieces of a text with single white space."""
    pieces = text.split(" ", most) if most is not None else []
    return len(text) if most is None or len(pieces) <= most else len(text) - len(pieces[most])


class TripletTextStream(LexiconTextStream):
    """MoCoUTRL's triplets: a sentence, and its copies with a synonym and with an antonym in place of one word.

    ``input_ids``, ``attention_mask`` and ``word_mask`` are (B, 3, L); ``word_mask`` is 1 at the sub-tokens of the replaced
    word. ``candidate``, bool (B,), is True if a word was replaced and has tokens in all three views. Otherwise the sentence
    had no candidate, or its word was cut off at `max_length`, and the three views are equal.
    """

    kind: Literal["triplet"] = "triplet"  # type: ignore[assignment]  # narrower than in the base class
    """Kind of the stream; it cannot be changed."""
    choose: Literal["token", "adjective"] = "token"
    """Words that may be replaced. `token`: any word with a synonym and an antonym (paper). `adjective`: a random adjective;
    if it lacks a synonym or an antonym, the sentence has no candidate (released code)."""
    antonym: Literal["first", "any"] = "first"
    """Choice of the antonym. `first`: the antonym of the commonest meaning of the word. `any`: a random antonym of all
    meanings (released code)."""
    words: tuple[int, int] | None = None
    """Smallest and largest number of words of a sentence, punctuation marks included (25 and 500 in the released code). A
    sentence with fewer or more words has no candidate. If None, any number is allowed."""
    without_candidate: Literal["skip", "keep"] = "skip"
    """Treatment of sentences without a word that has a synonym and an antonym. `skip`: they are skipped and counted. `keep`:
    all three views are the sentence itself."""
    on_bad_sample: Literal["raise", "skip"] = "skip"
    """Treatment of samples that cannot be read. `raise`: the run stops. `skip`: they are skipped, counted and reported."""
    max_skipped_share: float = Field(0.95, ge=0, lt=1)
    """Largest share of skipped samples per epoch, sentences without a candidate included, with `on_bad_sample` `skip`: above
    it, the run stops."""

    def check_settings(self) -> None:
        """Check also that the smallest number of words is not above the largest."""
        super().check_settings()
        if self.words is not None and not 0 < self.words[0] <= self.words[1]:
            raise ValueError(f"words={self.words}: set the smallest and the largest number of words, above 0, in this order")

    @model_validator(mode="after")
    def _skips_may_happen(self) -> TripletTextStream:
        if self.without_candidate == "skip" and self.on_bad_sample == "raise":
            raise ValueError(
                "without_candidate='skip' with on_bad_sample='raise' would stop the run at the first sentence without a "
                "candidate; set on_bad_sample='skip', or without_candidate='keep'"
            )
        return self

    @property
    def n_texts(self) -> int:
        """Return 3."""
        return 3

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the three texts and ``spans``, int32 (3, 2), of the replaced word."""
        text = self.sentences(sample)[0]
        lexicon = self.open_lexicon()
        pos: Pos | None = "a" if self.choose == "adjective" else None

        def find(word: str) -> tuple[Sequence[str], Sequence[str]] | None:
            alike, opposite = lexicon.replacements(word, pos)
            # The first antonym belongs to the commonest meaning; others may belong to a similar adjective only (noisy).
            opposite = opposite[:1] if self.antonym == "first" else opposite
            return (alike, opposite) if alike and opposite else None

        allowed = self.words is None or self.words[0] <= len(_PIECE.findall(text)) <= self.words[1]
        # A piece is at least one token, and most encoders add two tokens, so later pieces are always cut off.
        drawn = None if pos is None else lambda word: lexicon.has(word, pos)
        found = triplet(text, rng, find, self.max_length - 2, drawn) if allowed else None
        if found is None and self.without_candidate == "skip":
            raise DecodeError(NO_CANDIDATE if allowed else OTHER_LENGTH)
        texts, spans = found or Triplet((text, text, text), ((0, 0), (0, 0), (0, 0)))
        return {**dict(zip(self._names, texts, strict=True)), "spans": np.array(spans, dtype=np.int32)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        """Return ``input_ids``, ``attention_mask`` and ``word_mask`` (B, 3, L), and ``candidate`` (B,)."""
        assert tokenize is not None  # streams with texts get a tokenizer
        spans = [(start, stop) for sample in rows["spans"] for start, stop in sample.tolist()]
        tokens = tokenize(self._flat(rows), spans=spans)
        names = ("input_ids", "attention_mask", "word_mask")
        views = {name: tokens[name].view(-1, 3, tokens[name].shape[-1]) for name in names}
        return {**views, "candidate": views["word_mask"].any(2).all(1)}
