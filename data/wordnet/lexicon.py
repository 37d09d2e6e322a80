"""Synonyms and antonyms of English words, from WordNet's own database files or from a small table of our own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from multicse.data.errors import DataError
from multicse.data.wordnet.sources import INSTALL, POS, Pos, SmallTable, Source, WordNetFiles, part_of_speech

SMALL = "small"
"""Path of a small table of everyday words: our own work (small_words.txt), for the demo and for tests.

Each of its rows is one meaning and its opposite, where it has one: part of speech | words | opposite words. Every word of a
row's half is a synonym of the others there and an antonym of those in the other half."""

TABLE = Path(__file__).with_name("small_words.txt")

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

RULES: Mapping[Pos, tuple[tuple[str, str], ...]] = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}
"""WordNet's rules of detachment (manual page morphy(7)): ending of a form -> ending of its word."""

_FUNCTION = """
a an the this that these those some any no not none each every either neither both all half such other another i me my
mine we us our ours you your yours he him his she her hers it its they them their theirs one ones who whom whose which
what where when why how there here am is are was were be been being have has had having do does did doing done can
could will would shall should may might must ought in on at by to of for from with without within into onto out off
over under up down as than about above after before behind below beneath beside between beyond during except inside
like outside per round since through till toward towards until upon via and or but nor so yet if then else because
although though while unless whether very too also just only even still again ever now s t d m re ve ll
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())
"""Words that hold a sentence together; WordNet knows many of them only as nouns ("in": indium, "he": helium)."""


class Lexicon:
    """Synonyms of words in any form, and synonyms and antonyms of words in their base form; from `open_lexicon`.

    Answers depend on nothing but the arguments and the files. A pickled lexicon is its path: it is opened again where it
    arrives. Parts of speech are n, v, a (also written s) and r; None stands for all of them, commonest first, as far as
    the source counts uses.
    """

    def __init__(self, source: Source, path: str) -> None:
        self.path = path
        self._source = source
        self._replacements = lru_cache(maxsize=16384)(self._find_replacements)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open_lexicon, (self.path,)

    def synonyms(self, word: str, pos: str | None = None, *, phrases: bool = False) -> list[str]:
        """Other words of the meanings of the word's lemmas, as lemmas, in sense order; `phrases`: also those of several
        parts, as "ice_cream"."""
        lemmas = self._readings(word.lower(), pos)
        senses = (sense for reading in lemmas for sense in self._source.senses(*reading))
        found = (other for sense in senses for other in sense.synonyms if phrases or "_" not in other)
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def replacements(self, word: str, pos: str | None) -> tuple[list[str], list[str]]:
        """Return synonyms and antonyms of a word in its base form, with its capitals, ready to stand in its place.

        Both lists are empty for other forms ("walked"), for function words ("in"), and for words whose capitals follow no
        rule ("iPhone"). Rare readings are left out (`RARE`), as are meanings of a name where the word is written small
        ("china"), and antonyms that are synonyms in another meaning.
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
            for sense in self._source.senses(lemma, part) if lemma == word else ():
                if small and sense.spelling != sense.spelling.lower():
                    continue
                for found, words in ((synonyms, sense.synonyms), (direct, sense.direct), (indirect, sense.indirect)):
                    found.update(dict.fromkeys(other for other in words if "_" not in other))
        return tuple(_without(synonyms, [word])), tuple(_without({**direct, **indirect}, [word, *synonyms]))

    def _lemmas(self, word: str, pos: Pos) -> list[str]:
        """Return the words that a form may come from: itself, then by exceptions, else by `RULES`."""
        found, exceptions = [word], self._source.exceptions.get(pos, {})
        if word in exceptions:
            bases = exceptions[word]
            found += bases[:1] if bases[0] == word else bases  # as `wn` does: "feed" is listed as feed and as a form of fee
        elif len(word) > 2 and not (pos == "n" and word.endswith("ss")):  # "be" is not a form of "b", "boss" none of "bos"
            detached = (word.removesuffix(end) + new for end, new in RULES[pos] if word.endswith(end))
            found += [base for base in detached if len(base) > 1]
        return [base for base in dict.fromkeys(found) if self._source.has(base, pos)]

    def _readings(self, word: str, pos: str | None, common: bool = False) -> list[tuple[str, Pos]]:
        """Lemmas of a lower-case word and their parts of speech, commonest first; `common`: without the rare ones."""
        parts = POS if pos is None else (part_of_speech(pos),)
        readings: list[tuple[str, Pos]] = [(lemma, part) for part in parts for lemma in self._lemmas(word, part)]
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
    return Lexicon(SmallTable(TABLE.read_text(encoding="utf-8")) if path == SMALL else WordNetFiles(Path(path)), path)


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
