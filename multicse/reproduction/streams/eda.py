"""Easy data augmentation (EDA, Wei & Zou 2019), the baseline of GCLSR: four small edits of the words of a sentence.

The streams `eda_text` and `noisy_text` (NonLing-CSE, Figure 3) apply it.

The edits are chained as in the released code of GCLSR. Reading tasks make them, so this module does not import torch.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from multicse.data.order import seed_of
from multicse.data.settings import Name
from multicse.data.shards import RawSample
from multicse.data.streams.base import Row
from multicse.data.streams.text import LexiconTextStream

if TYPE_CHECKING:
    from multicse.data.lexicon import Lexicon

Synonyms = Callable[[str], Sequence[str]]

_FUNCTION_WORDS = """
a about above after again against all also am an and any are aren't as at be because been before being below between
both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during each either few for from
further had hadn't has hasn't have haven't having he her here hers herself him himself his how i if in into is isn't it
it's its itself just may me might mine more most must my myself neither no nor not of off on once only or other our ours
ourselves out over own same shall she should shouldn't so some such than that the their theirs them themselves then there
these they this those through to too under until up upon us very was wasn't we were weren't what when where whether which
while who whom whose why will with within without won't would wouldn't yet you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that are not replaced and give no insertion: articles, pronouns, prepositions, conjunctions, auxiliaries."""

_EDGES = string.punctuation + "‘’“”«»…–—"


def eda(words: list[str], rng: np.random.Generator, synonyms: Synonyms, alpha: float = 0.1) -> list[str]:
    """Make an augmented copy of a sentence by synonym replacement, random insertion, random swap and random deletion.

    The first three edits are made max(1, int(alpha * n)) times for n words; then every word is deleted with probability
    alpha, but at least one word remains.

    Args:
        words: Words of the sentence; capitals, and punctuation at their edges, are ignored in the search for synonyms.
        rng: Source of all randomness.
        synonyms: Function from a lower-case word to its synonyms; blanks or underscores in a synonym separate words.
        alpha: Share of the words that each edit changes; 0 returns the sentence unchanged.
    """
    if not words or alpha == 0:
        return list(words)
    count = max(1, int(alpha * len(words)))
    changed = _replace_synonyms(words, rng, synonyms, count)
    changed = insert_synonyms(changed, rng, synonyms, count)
    return delete(swap(changed, rng, count), rng, alpha)


@lru_cache(maxsize=4)
def cached_synonyms(lexicon: Lexicon) -> Synonyms:
    """Return the synonyms of a lexicon, phrases included, as a cached function, which is 8 times as fast."""
    return lru_cache(maxsize=2**14)(lambda word: tuple(lexicon.synonyms(word, phrases=True)))


def no_synonyms(word: str) -> tuple[str, ...]:
    """Return no synonyms, for edits without a lexicon."""
    return ()


def _replace_synonyms(words: Sequence[str], rng: np.random.Generator, synonyms: Synonyms, count: int) -> list[str]:
    """Replace up to `count` different words, each at all its places by one synonym; punctuation around it stays."""
    candidates = list(dict.fromkeys(_candidates(words)))
    chosen: dict[str, list[str]] = {}
    for place in rng.permutation(len(candidates)):
        if len(chosen) == count:
            break
        if choices := _choices(candidates[place], synonyms):
            chosen[candidates[place]] = choices[int(rng.integers(len(choices)))]
    result: list[str] = []
    for word in words:
        core = _core(word)
        new = chosen.get(core.lower())
        result += [word] if new is None else word.replace(core, " ".join(new), 1).split()
    return result


def insert_synonyms(words: Sequence[str], rng: np.random.Generator, synonyms: Synonyms, count: int) -> list[str]:
    """Insert a synonym of a random word at a random place, `count` times; no change if no word has a synonym."""
    result = list(words)
    for _ in range(count):
        candidates = _candidates(result)
        for place in rng.permutation(len(candidates)):
            if choices := _choices(candidates[place], synonyms):
                at = int(rng.integers(len(result) + 1))
                result[at:at] = choices[int(rng.integers(len(choices)))]
                break
    return result


def swap(words: Sequence[str], rng: np.random.Generator, count: int) -> list[str]:
    """Exchange the words at two random places, `count` times."""
    result = list(words)
    for _ in range(count if len(result) > 1 else 0):
        first, second = rng.choice(len(result), 2, replace=False)
        result[first], result[second] = result[second], result[first]
    return result


def delete(words: Sequence[str], rng: np.random.Generator, probability: float) -> list[str]:
    """Delete every word with `probability`; if none remains, keep one random word."""
    kept = [word for word, draw in zip(words, rng.random(len(words)), strict=True) if draw >= probability]
    return kept or ([words[int(rng.integers(len(words)))]] if words else [])


def _core(word: str) -> str:
    """Return the word without punctuation at its edges, which may be empty."""
    return word.strip(_EDGES)


def _candidates(words: Sequence[str]) -> list[str]:
    """Return the words that may have synonyms, in lower case: neither stop words nor mere punctuation."""
    return [core for word in words if (core := _core(word).lower()) and core not in STOP_WORDS]


def _choices(word: str, synonyms: Synonyms) -> list[list[str]]:
    """Return the synonyms as lists of words, in the order of the lexicon, without the word itself."""
    parts = [found.replace("_", " ").split() for found in synonyms(word)]
    return [part for part in parts if part and " ".join(part).lower() != word]


class EDATextStream(LexiconTextStream):
    """Sentences, each as two independent EDA views (GCLSR's baseline): ``input_ids``, ``attention_mask`` (B, 2, L)."""

    kind: Literal["eda_text"] = "eda_text"  # type: ignore[assignment]  # discriminator of the union
    """Kind of the stream; it cannot be changed."""
    alpha: float = Field(0.1, ge=0, le=1)
    """Share of the words that each of the four edits changes. 0: both views are the sentence itself."""

    @property
    def uses_lexicon(self) -> bool:
        """Return True if the edits change words."""
        return self.alpha > 0

    @property
    def n_texts(self) -> int:
        """Return 2."""
        return 2

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return two augmented copies of the sentence."""
        words = self.sentences(sample)[0].split()
        synonyms = cached_synonyms(self.open_lexicon()) if self.uses_lexicon else no_synonyms
        return {name: " ".join(eda(words, rng, synonyms, self.alpha)) for name in self._names}


class NoisyTextStream(LexiconTextStream):
    """Sentences, pairs or triples whose texts are corrupted: ``input_ids`` and ``attention_mask`` (B, V, L) of V columns.

    A text is corrupted in the same way in every epoch (NonLing-CSE, Figure 3, with deletion 0.3, 2 insertions and 2 swaps).
    """

    kind: Literal["noisy_text"] = "noisy_text"  # type: ignore[assignment]  # discriminator of the union
    """Kind of the stream; it cannot be changed."""
    columns: tuple[Name, ...] = Field(("txt",), min_length=1)  # type: ignore[assignment]  # any number
    """Fields with the texts of a sample: `txt`, or entries of its JSON, for example `sent0 sent1 hard_neg`."""
    deletion: float = Field(0.0, ge=0, le=1)
    """Probability that a word is deleted; at least one word stays."""
    insertions: int = Field(0, ge=0)
    """Number of synonyms of random words that are inserted at random places of a text."""
    swaps: int = Field(0, ge=0)
    """Number of times that two random words of a text are exchanged."""

    @property
    def uses_lexicon(self) -> bool:
        """Return True if synonyms are inserted."""
        return self.insertions > 0

    def row(self, sample: RawSample, rng: np.random.Generator) -> Row:
        """Return the corrupted texts; the corruption depends on the sample only."""
        synonyms = cached_synonyms(self.open_lexicon()) if self.uses_lexicon else no_synonyms
        own = np.random.default_rng(seed_of("noise", sample.shard, sample.key))
        texts = {}
        for name, text in zip(self._names, self.sentences(sample), strict=True):
            words = delete(text.split(), own, self.deletion)
            words = insert_synonyms(words, own, synonyms, self.insertions)
            texts[name] = " ".join(swap(words, own, self.swaps)) or text
        return texts
