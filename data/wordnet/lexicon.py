"""Synonyms and antonyms of English words, from WordNet's own database files or from a small table of our own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from multicse.data.errors import DataError
from multicse.data.wordnet.morphology import FUNCTION_WORDS, POS, Morphology, Pos
from multicse.data.wordnet.small_words import ROWS
from multicse.data.wordnet.sources import INSTALL, SmallTable, Source, WordNetFiles, part_of_speech

SMALL = "small"
"""Path of the table of our own."""

FOLDERS = (
    "/usr/share/wordnet",
    "/usr/share/wordnet/dict",
    "/usr/share/wordnet-3.1/dict",
    "/usr/share/wordnet-3.0/dict",
    "/usr/local/WordNet-3.1/dict",
    "/usr/local/WordNet-3.0/dict",
    "/opt/homebrew/opt/wordnet/dict",
    "~/nltk_data/corpora/wordnet31",
    "~/nltk_data/corpora/wordnet",
    "/usr/share/nltk_data/corpora/wordnet",
)
"""Where WordNet is looked for when neither a path nor the environment names a folder."""

RARE = 0.1
"""Share of the uses of a word's commonest reading below which `Lexicon.replacements` leaves a reading out."""


class Lexicon:
    """Synonyms and antonyms of words in any form; from `open_lexicon`.

    Answers depend on nothing but the arguments and the files. A pickled lexicon is its path: it is opened again where it
    arrives. Parts of speech are n, v, a (also written s) and r; None stands for all of them, commonest first, as far as
    the source counts uses.
    """

    def __init__(self, source: Source, path: str) -> None:
        self.path = path
        self.morphology = Morphology(source.exceptions, source.has)
        self._source = source
        self._replacements = lru_cache(maxsize=16384)(self._find_replacements)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open_lexicon, (self.path,)

    def lemmas(self, word: str, pos: str) -> list[str]:
        """The words of the lexicon that `word` may be a form of, itself first: ("better", "a") -> better, good, well."""
        return self.morphology.lemmas(word.lower(), part_of_speech(pos))

    def synonyms(self, word: str, pos: str | None = None, *, phrases: bool = False) -> list[str]:
        """Other words of the meanings of the word's lemmas, as lemmas, in sense order; `phrases`: also those of several
        parts, as "ice_cream"."""
        lemmas = self._readings(word.lower(), pos)
        senses = (sense for reading in lemmas for sense in self._source.senses(*reading))
        found = (other for sense in senses for other in sense.synonyms if phrases or "_" not in other)
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def antonyms(self, word: str, pos: str | None = None) -> list[str]:
        """Antonyms of the word's lemmas, as lemmas, in sense order; after them those of similar adjectives."""
        lemmas = self._readings(word.lower(), pos)
        senses = [sense for reading in lemmas for sense in self._source.senses(*reading)]
        found = [other for sense in senses for other in sense.direct] + [
            other for sense in senses for other in sense.indirect
        ]
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def replacements(self, word: str, pos: str | None) -> tuple[list[str], list[str]]:
        """Synonyms and antonyms in the form and with the capitals of `word`, ready to stand in its place.

        Left out is what could not be put into that form for certain. Both lists are empty for function words ("in"),
        and for words whose capitals follow no rule ("iPhone"). Rare readings are left out (`RARE`), as are meanings of a
        name where the word is written small ("china"), and antonyms that are synonyms in another meaning.
        """
        if match_case("x", word) is None:
            return [], []
        synonyms, antonyms = self._replacements(word.lower(), pos, word.islower())
        return _cased(synonyms, word), _cased(antonyms, word)

    def _find_replacements(self, word: str, pos: str | None, small: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        readings = self._readings(word, pos, common=True) if word not in FUNCTION_WORDS else []
        synonyms: dict[str, None] = {}
        direct: dict[str, None] = {}
        indirect: dict[str, None] = {}
        for lemma, part in readings:
            for sense in self._source.senses(lemma, part):
                if small and sense.spelling != sense.spelling.lower():
                    continue
                for found, words in ((synonyms, sense.synonyms), (direct, sense.direct), (indirect, sense.indirect)):
                    single = (other for other in words if "_" not in other)
                    forms = (self.morphology.inflect(other, word, part, base=lemma) for other in single)
                    found.update(dict.fromkeys(form for form in forms if form is not None))
        own = [word, *(lemma for lemma, _ in readings)]
        return tuple(_without(synonyms, own)), tuple(_without({**direct, **indirect}, [*own, *synonyms]))

    def _readings(self, word: str, pos: str | None, common: bool = False) -> list[tuple[str, Pos]]:
        """Lemmas of a lower-case word and their parts of speech, commonest first; `common`: without the rare ones."""
        parts = POS if pos is None else (part_of_speech(pos),)
        readings: list[tuple[str, Pos]] = [(lemma, part) for part in parts for lemma in self.morphology.lemmas(word, part)]
        if len(readings) < 2:
            return readings
        uses = {(lemma, part): self._source.uses(lemma).get(part, 0) for lemma, part in readings}
        readings.sort(key=lambda reading: -uses[reading])  # stable: else in the order n v a r, the word itself first
        least = RARE * uses[readings[0]] if common else 0
        return [reading for reading in readings if uses[reading] >= least]


def match_case(word: str, like: str) -> str | None:
    """`word` with the capitals of `like`: none, the first letter or all; None where `like` has others.

    A word that has capitals of its own keeps them.
    """
    if like.islower():
        return word
    if len(like) > 1 and like.isupper():
        return word.upper()
    titled = like[:1].isupper() and (len(like) == 1 or like[1:].islower())
    return word[:1].upper() + word[1:] if titled else None


def open_lexicon(path: str | None = None) -> Lexicon:
    """The lexicon of a folder of WordNet's database files; opened once in a process.

    Args:
        path: the folder, or the one above its ``dict``; "small": a table of some 200 words of our own; None: the folder
            that the environment variable WNSEARCHDIR names, else ``dict`` in WNHOME, else where packages put it (`FOLDERS`).

    Raises:
        DataError: no WordNet there, or files of another format; the text says how to install it.
    """
    return _opened(SMALL if path == SMALL else str(_folder(path).resolve()))


@lru_cache(maxsize=4)
def _opened(path: str) -> Lexicon:
    return Lexicon(SmallTable(ROWS) if path == SMALL else WordNetFiles(Path(path)), path)


def _folder(path: str | None) -> Path:
    """The folder of the database files."""
    if path is not None:
        where, folders = f"the path {path}", [Path(path), Path(path) / "dict"]
    elif folder := os.environ.get("WNSEARCHDIR"):
        where, folders = f"WNSEARCHDIR={folder}", [Path(folder)]
    elif folder := os.environ.get("WNHOME"):
        where, folders = f"WNHOME={folder}", [Path(folder) / "dict"]
    else:
        where, folders = "the usual folders", [Path(folder) for folder in FOLDERS]
    for candidate in folders:
        if (candidate.expanduser() / "index.noun").is_file():
            return candidate.expanduser()
    raise DataError(f"no WordNet in {where} (no file index.noun): {INSTALL}; or use the small table: {SMALL!r}")


def _without(words: Iterable[str], own: Iterable[str]) -> list[str]:
    """The words once each, whatever their capitals, without those of `own`."""
    seen, found = {word.lower() for word in own}, []
    for word in words:
        if word.lower() not in seen:
            seen.add(word.lower())
            found.append(word)
    return found


def _cased(words: Iterable[str], like: str) -> list[str]:
    cased = (match_case(word, like) for word in words)
    return [word for word in cased if word is not None]
