"""Synonyms and antonyms of English words, from WordNet's own database files or from a small table of our own.

WordNet's files (formats: its manual pages wndb(5), senseidx(5), cntlist(5)) are mapped into memory and searched in place,
so nothing is loaded and all processes of a machine share one copy.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from data.errors import DataError
from data.wordnet.morphology import FUNCTION_WORDS, POS, Exceptions, Morphology, Pos, respellings
from data.wordnet.small_words import ROWS

SMALL = "small"
"""Path of the table of our own."""

INSTALL = (
    "apt-get install wordnet-base, or unpack WordNet's database files (https://wordnet.princeton.edu/download) "
    "and name their folder: as the path or in the environment variable WNSEARCHDIR"
)
"""How to get WordNet; part of the error when there is none."""

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

_FILES: Mapping[Pos, str] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SYNSET_TYPES = {b"1": "n", b"2": "v", b"3": "a", b"4": "r", b"5": "a"}  # in sense keys


class Sense(NamedTuple):
    """One meaning of a word. Words of several parts ("ice_cream") are left out."""

    spelling: str
    """The word as it is spelled in this meaning: "China", "china"."""
    synonyms: tuple[str, ...]
    direct: tuple[str, ...]
    """Antonyms of the word itself."""
    indirect: tuple[str, ...]
    """Antonyms of the adjective that it is similar to: quick, similar to fast, whose antonym is slow."""


class _Source(Protocol):
    """Where senses come from; words are lower case."""

    exceptions: Exceptions

    def has(self, word: str, pos: Pos) -> bool: ...

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]: ...

    def uses(self, word: str) -> Mapping[str, int]: ...


class Lexicon:
    """Synonyms and antonyms of words in any form; from `open_lexicon`.

    Answers depend on nothing but the arguments and the files. A pickled lexicon is its path: it is opened again where it
    arrives. Parts of speech are n, v, a (also written s) and r; None stands for all of them, commonest first, as far as
    the source counts uses.
    """

    def __init__(self, source: _Source, path: str) -> None:
        self.path = path
        self.morphology = Morphology(source.exceptions, self._known)
        self._source = source
        self._replacements = lru_cache(maxsize=16384)(self._find_replacements)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open_lexicon, (self.path,)

    def __repr__(self) -> str:
        return f"Lexicon({self.path!r})"

    def _known(self, word: str, pos: Pos) -> bool:
        return self._source.has(word, pos)

    def parts(self, word: str) -> set[str]:
        """The parts of speech, of n v a r, that the word or a word that it is a form of may be."""
        return {pos for pos in POS if self.lemmas(word, pos)}

    def lemmas(self, word: str, pos: str) -> list[str]:
        """The words of the lexicon that `word` may be a form of, itself first: ("better", "a") -> better, good, well."""
        return self.morphology.lemmas(word.lower(), _part(pos))

    def synonyms(self, word: str, pos: str | None = None) -> list[str]:
        """Other words of the meanings of the word's lemmas, as lemmas, in sense order."""
        lemmas = self._readings(word.lower(), pos)
        found = (other for reading in lemmas for sense in self._source.senses(*reading) for other in sense.synonyms)
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def antonyms(self, word: str, pos: str | None = None) -> list[str]:
        """Antonyms of the word's lemmas, as lemmas, in sense order; after them those of similar adjectives."""
        lemmas = self._readings(word.lower(), pos)
        senses = [sense for reading in lemmas for sense in self._source.senses(*reading)]
        found = [other for sense in senses for other in sense.direct] + [
            other for sense in senses for other in sense.indirect
        ]
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def inflect(self, lemma: str, like: str, pos: str | None = None) -> str | None:
        """`lemma` in the form and with the capitals that `like` has: ("walk", "Ran") -> "Walked".

        Returns:
            None where that is not certain; without `pos` all parts of speech that both words have must agree.
        """
        parts = POS if pos is None else (_part(pos),)
        shared = [part for part in parts if self.lemmas(like, part) and self._known(lemma.lower(), part)]
        forms = {self.morphology.inflect(lemma, like.lower(), part) for part in shared}
        form = forms.pop() if len(forms) == 1 else None
        return None if form is None else match_case(form, like)

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
                    forms = (self.morphology.inflect(other, word, part, base=lemma) for other in words)
                    found.update(dict.fromkeys(form for form in forms if form is not None))
        own = [word, *(lemma for lemma, _ in readings)]
        return tuple(_without(synonyms, own)), tuple(_without({**direct, **indirect}, [*own, *synonyms]))

    def _readings(self, word: str, pos: str | None, common: bool = False) -> list[tuple[str, Pos]]:
        """Lemmas of a lower-case word and their parts of speech, commonest first; `common`: without the rare ones."""
        parts = POS if pos is None else (_part(pos),)
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
    if path == SMALL:
        return _small()
    return _wordnet(str(_folder(path).resolve()))


@lru_cache(maxsize=1)
def _small() -> Lexicon:
    return Lexicon(_Table(ROWS), SMALL)


@lru_cache(maxsize=4)
def _wordnet(folder: str) -> Lexicon:
    return Lexicon(_WordNet(Path(folder)), folder)


def _folder(path: str | None) -> Path:
    """The folder of the database files."""
    if path is not None:
        named = {f"the path {path}": [Path(path), Path(path) / "dict"]}
    elif folder := os.environ.get("WNSEARCHDIR"):
        named = {f"WNSEARCHDIR={folder}": [Path(folder)]}
    elif folder := os.environ.get("WNHOME"):
        named = {f"WNHOME={folder}": [Path(folder) / "dict"]}
    else:
        named = {"the usual folders": [Path(folder) for folder in FOLDERS]}
    for where, folders in named.items():
        for candidate in folders:
            if (candidate.expanduser() / "index.noun").is_file():
                return candidate.expanduser()
        raise DataError(f"no WordNet in {where} (no file index.noun): {INSTALL}; or use the small table: {SMALL!r}")
    raise AssertionError("one place is always named")


class _Lines:
    """A file of sorted lines, mapped into memory."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise DataError(f"WordNet's file {path} cannot be read ({error}): {INSTALL}") from error
        self.path = path

    def find(self, key: bytes) -> int:
        """Where the first line begins that is not less than `key`, by its first bytes."""
        data, low, high = self.bytes, 0, len(self.bytes)
        while low < high:
            middle = (low + high) // 2
            start = max(low, data.rfind(b"\n", low, middle) + 1)
            if data[start : start + len(key)] < key:
                low = data.find(b"\n", middle) + 1 or high
            else:
                high = start
        return low

    def line(self, start: int) -> bytes:
        end = self.bytes.find(b"\n", start)
        return self.bytes[start : end if end >= 0 else len(self.bytes)]

    def starting_with(self, key: bytes) -> Iterable[bytes]:
        """The lines that begin with `key`."""
        start = self.find(key)
        while self.bytes[start : start + len(key)] == key:
            line = self.line(start)
            yield line
            start += len(line) + 1

    def check_sorted(self) -> None:
        lines = [line for line in self.bytes[:].split(b"\n") if line and not line.startswith(b"  ")]  # without the licence
        if not lines or lines != sorted(lines):
            raise DataError(f"WordNet's file {self.path} is {'not sorted' if lines else 'empty'}: {INSTALL}")


class _WordNet:
    """WordNet's files, searched in place."""

    def __init__(self, folder: Path) -> None:
        self._index = {pos: _Lines(folder / f"index.{name}") for pos, name in _FILES.items()}
        self._data = {pos: _Lines(folder / f"data.{name}") for pos, name in _FILES.items()}
        for lines in self._index.values():
            lines.check_sorted()
        counts = (folder / name for name in ("cntlist.rev", "index.sense"))  # either may be absent
        self._counts = next((_Lines(path) for path in counts if path.is_file()), None)
        self.exceptions: Exceptions = {pos: _exceptions(folder / f"{name}.exc") for pos, name in _FILES.items()}

    def has(self, word: str, pos: Pos) -> bool:
        return self._entry(word, pos) is not None

    def _entry(self, word: str, pos: Pos) -> bytes | None:
        if not word or " " in word:  # the licence's lines begin with spaces
            return None
        key, lines = word.encode("utf-8", "replace") + b" ", self._index[pos]
        start = lines.find(key)
        return lines.line(start) if lines.bytes[start : start + len(key)] == key else None

    def uses(self, word: str) -> Mapping[str, int]:
        """Part of speech -> how often the word has been found as such in the texts that WordNet's authors tagged."""
        found: dict[str, int] = {}
        key = word.encode("utf-8", "replace") + b"%"
        for line in self._counts.starting_with(key) if self._counts else ():
            pos = _SYNSET_TYPES[line[len(key) : len(key) + 1]]
            found[pos] = found.get(pos, 0) + int(line.rsplit(None, 1)[1])
        return found

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]:
        if (entry := self._entry(word, pos)) is None:
            return ()
        fields = entry.split()
        return tuple(self._sense(word, pos, int(offset)) for offset in fields[len(fields) - int(fields[2]) :])

    def _sense(self, word: str, pos: Pos, offset: int) -> Sense:
        synset = self._synset(pos, offset)
        number = next((place for place, other in enumerate(synset.words, 1) if other.lower() == word), None)
        if number is None:
            raise DataError(f"WordNet's files {self._index[pos].path} and {self._data[pos].path} do not belong together")
        indirect: list[str] = []
        if synset.satellite:
            for _, head, _, _ in synset.pointers("&"):
                indirect += self._targets(self._synset("a", head), None)
        return Sense(
            synset.words[number - 1],
            tuple(other for other in synset.words if "_" not in other and other.lower() != word),
            tuple(other for other in self._targets(synset, number) if "_" not in other),
            tuple(other for other in indirect if "_" not in other),
        )

    def _targets(self, synset: _Synset, number: int | None) -> list[str]:
        """Antonyms of a synset's word (from 1; None: of any); pointers from or to 0 hold for whole synsets."""
        found: list[str] = []
        for pos, offset, source, target in synset.pointers("!"):
            if number is None or source in (0, number):
                words = self._synset(pos, offset).words
                found += [words[target - 1]] if target else words
        return found

    def _synset(self, pos: Pos, offset: int) -> _Synset:
        line = self._data[pos].line(offset)
        if line[:8] != b"%08d" % offset:
            raise DataError(
                f"WordNet's file {self._data[pos].path} has no synset at byte {offset}, which an index names: files of two "
                f"versions, or with changed line ends; {INSTALL}"
            )
        return _Synset(line.split(b" | ", 1)[0].decode("utf-8", "replace").split())


class _Synset:
    """A line of a data file, in fields."""

    def __init__(self, fields: list[str]) -> None:
        words = int(fields[3], 16)
        self.satellite = fields[2] == "s"
        self.words = [re.sub(r"\((a|p|ip)\)$", "", word) for word in fields[4 : 4 + 2 * words : 2]]
        first = 4 + 2 * words
        self._pointers = fields[first + 1 : first + 1 + 4 * int(fields[first])]

    def pointers(self, symbol: str) -> list[tuple[Pos, int, int, int]]:
        """Pointers of a kind: part of speech and offset of the target, number of the source's and target's word."""
        return [
            (_part(pos), int(offset), int(words[:2], 16), int(words[2:], 16))
            for kind, offset, pos, words in zip(*(iter(self._pointers),) * 4, strict=True)
            if kind == symbol
        ]


class _Table:
    """Rows of part of speech, words and opposite words."""

    def __init__(self, text: str) -> None:
        self._senses: dict[tuple[str, str], list[Sense]] = {}
        for row in text.strip().splitlines():
            pos, *sides = (field.strip() for field in row.split("|"))
            left, right = (side.split() for side in sides)
            for words, others in ((left, right), (right, left)):
                for word in words:
                    synonyms = tuple(other for other in words if other != word)
                    self._senses.setdefault((word, pos), []).append(Sense(word, synonyms, tuple(others), ()))
        self.exceptions = respellings((word, _part(pos)) for word, pos in self._senses)

    def has(self, word: str, pos: Pos) -> bool:
        return (word, pos) in self._senses

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]:
        return tuple(self._senses.get((word, pos), ()))

    def uses(self, word: str) -> Mapping[str, int]:
        return {}


def _exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Irregular form, of one part -> its words ("comics": comic_strip, comic). Some distributions lack the file."""
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for form, *words in map(str.split, filter(str.strip, path.read_text(encoding="utf-8").splitlines())):
        if "_" not in form:
            found[form] = tuple(dict.fromkeys([*found.get(form, ()), *words]))
    return found


def _part(pos: str) -> Pos:
    for part in POS:
        if pos == part or (pos == "s" and part == "a"):
            return part
    raise ValueError(f"pos={pos!r}; allowed are {', '.join(POS)} (noun, verb, adjective, adverb), or None for all")


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
