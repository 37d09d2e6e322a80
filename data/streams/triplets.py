"""Triplets of MoCoUTRL: a sentence, the same with one word replaced by a synonym, and by an antonym.

The paper replaces a random token; the released preparation a random adjective of a long sentence, by any lemma of any of its
meanings and any antonym, and only the word's first occurrence. Here it is the occurrence that was drawn, and nothing else of
the text changes: neither spacing nor punctuation, nor an article before the word ("an old man" -> "an young man").
Triplets are made in the reading task, so this module imports no torch.
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

Span = tuple[int, int]
"""First character and the one after the last."""
Replacements = Callable[[str], "tuple[Sequence[str], Sequence[str]] | None"]
"""Synonyms and antonyms of a word, at least one of each; None where it lacks one of them."""

NO_CANDIDATE = "no word with a synonym and an antonym"
OTHER_LENGTH = "fewer or more words than `words` allows"

# Letters, with hyphens and apostrophes inside; no part of "3rd", "x_1" or of a letter with a combining accent.
_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?:[-'’][^\W\d_]+)*(?![\w\u0300-\u036f])")
_PIECE = re.compile(r"['’]?\w+(?:-\w+)*|[^\w\s]")  # much as NLTK tells words apart: didn 't re-use it .
_POSSESSIVE = re.compile(r"['’]s$", re.IGNORECASE)


class Triplet(NamedTuple):
    """A sentence, with a synonym and with an antonym, and where the replaced word is in each; (0, 0): nowhere."""

    texts: tuple[str, str, str]
    spans: tuple[Span, Span, Span]


def words(text: str) -> list[Span]:
    """Where the words of a text are: "the dog's re-use" -> the, dog, re-use."""
    return [(found.start(), found.start() + len(_POSSESSIVE.sub("", found.group()))) for found in _WORD.finditer(text)]


def triplet(
    text: str,
    rng: np.random.Generator,
    replacements: Replacements,
    most: int | None = None,
    drawn: Callable[[str], bool] | None = None,
) -> Triplet | None:
    """Replace one random word of a text by a random one of its synonyms and by a random one of its antonyms.

    Args:
        text: Sentence.
        rng: Source of all randomness.
        replacements: Synonyms and antonyms of a word as it is spelled in the text.
        most: Draw only from the first `most` pieces between white space. If None, from all.
        drawn: Draw one of the words for which this is true, whether it can be replaced or not (released code). If None, draw
            one of the words that can be replaced.

    Returns:
        None if no word, or not the drawn one, has both a synonym and an antonym.
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
    """Characters of the first `most` pieces of a text whose white space is single."""
    pieces = text.split(" ", most) if most is not None else []
    return len(text) if most is None or len(pieces) <= most else len(text) - len(pieces[most])


class TripletTextStream(LexiconTextStream):
    """MoCoUTRL's triplets: sentence, sentence with a synonym, sentence with an antonym in place of one word.

    ``input_ids``, ``attention_mask`` and ``word_mask`` (B, 3, L), where ``word_mask`` is 1 at the sub-tokens of the
    replaced word; ``candidate`` (B,) bool: a word was replaced and tokens of it are in all three views. Elsewhere
    ``word_mask`` is 0: the sentence had no candidate, or its word was cut off at `max_length`. In both cases the three
    views are the same.

    They are made where the shards are read; the same seed, pass and sample give the same triplet.
    """

    kind: Literal["triplet"] = "triplet"  # type: ignore[assignment]  # the union tells streams apart by it
    """Kind of the stream; fixed, since its other settings belong to it."""
    choose: Literal["token", "adjective"] = "token"
    """Which words are replaced. `token`: any that has a synonym and an antonym (paper). `adjective`: an adjective is drawn;
    if it lacks one of the two, the sentence has no candidate (released code)."""
    antonym: Literal["first", "any"] = "first"
    """`first`: that of the word's commonest meaning; `any`: a random one of those of all meanings (released code)."""
    words: tuple[int, int] | None = None
    """Fewest and most words of a sentence, punctuation marks counted (released code: 25 and 500); a sentence with fewer or
    more is treated as one without a candidate. None: any number."""
    without_candidate: Literal["skip", "keep"] = "skip"
    """What becomes of a sentence without a word that has a synonym and an antonym: it is skipped and counted, or three
    times the same, without a replaced word."""
    on_bad_sample: Literal["raise", "skip"] = "skip"
    """What an unreadable sample does: stop the run, or be skipped, counted and reported."""
    max_skipped_share: float = Field(0.95, ge=0, lt=1)
    """With `skip`: the run stops when more than this share of a pass is lost, sentences without a candidate included."""

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
        return 3

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        text = self.sentences(sample)[0]
        lexicon, pos = self.open_lexicon(), "a" if self.choose == "adjective" else None

        def find(word: str) -> tuple[Sequence[str], Sequence[str]] | None:
            alike, opposite = lexicon.replacements(word, pos)
            # Antonyms after the first, that of the commonest meaning, may be of a similar adjective only: they are noisy.
            opposite = opposite[:1] if self.antonym == "first" else opposite
            return (alike, opposite) if alike and opposite else None

        allowed = self.words is None or self.words[0] <= len(_PIECE.findall(text)) <= self.words[1]
        # A piece is a token at least, and most encoders add two: what is later than that is always cut off.
        drawn = None if pos is None else lambda word: lexicon.has(word, pos)
        found = triplet(text, rng, find, self.max_length - 2, drawn) if allowed else None
        if found is None and self.without_candidate == "skip":
            raise DecodeError(NO_CANDIDATE if allowed else OTHER_LENGTH)
        texts, spans = found or Triplet((text, text, text), ((0, 0), (0, 0), (0, 0)))
        return {**dict(zip(self._names, texts, strict=True)), "spans": np.array(spans, dtype=np.int32)}

    def collate(self, rows: dict[str, Any], tokenize: Tokenize | None) -> dict[str, Tensor]:
        assert tokenize is not None  # a stream with texts is given one
        spans = [(start, stop) for sample in rows["spans"] for start, stop in sample.tolist()]
        tokens = tokenize(self._flat(rows), spans=spans)
        names = ("input_ids", "attention_mask", "word_mask")
        views = {name: tokens[name].view(-1, 3, tokens[name].shape[-1]) for name in names}
        return {**views, "candidate": views["word_mask"].any(2).all(1)}
