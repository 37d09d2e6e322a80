"""Where senses come from: WordNet's own database files, searched in place, or a small table of our own.

WordNet's files (formats: its manual pages wndb(5), senseidx(5), cntlist(5)) are mapped into memory and searched in place,
so nothing is loaded and all processes of a machine share one copy.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

from multicse.data.errors import DataError

Pos = Literal["n", "v", "a", "r"]
"""Noun, verb, adjective, adverb."""
POS: tuple[Pos, ...] = get_args(Pos)

Exceptions = Mapping[Pos, Mapping[str, tuple[str, ...]]]
"""Part of speech -> irregular form -> the words it comes from."""

INSTALL = (
    "apt-get install wordnet-base, or unpack WordNet's database files (https://wordnet.princeton.edu/download) "
    "and name their folder: as the path or in the environment variable WNSEARCHDIR"
)
"""How to get WordNet; part of the error when there is none."""

_FILES: Mapping[Pos, str] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SYNSET_TYPES = {b"1": "n", b"2": "v", b"3": "a", b"4": "r", b"5": "a"}  # in sense keys


class Sense(NamedTuple):
    """One meaning of a word. Antonyms of several parts are left out."""

    spelling: str
    """The word as it is spelled in this meaning: "China", "china"."""
    synonyms: tuple[str, ...]
    """Those of several parts have underscores: ice_cream."""
    direct: tuple[str, ...]
    """Antonyms of the word itself."""
    indirect: tuple[str, ...]
    """Antonyms of the adjective that it is similar to: quick, similar to fast, whose antonym is slow."""


class Source(Protocol):
    """Where senses come from; words are lower case."""

    exceptions: Exceptions

    def has(self, word: str, pos: Pos) -> bool: ...

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]: ...

    def uses(self, word: str) -> Mapping[str, int]: ...


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


class WordNetFiles:
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
            tuple(other for other in synset.words if other.lower() != word),
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
            (part_of_speech(pos), int(offset), int(words[:2], 16), int(words[2:], 16))
            for kind, offset, pos, words in zip(*(iter(self._pointers),) * 4, strict=True)
            if kind == symbol
        ]


class SmallTable:
    """Rows of part of speech, words and opposite words; see `lexicon.SMALL`."""

    exceptions: Exceptions = {}

    def __init__(self, text: str) -> None:
        self._senses: dict[tuple[str, str], list[Sense]] = {}
        for row in text.strip().splitlines():
            pos, *sides = (field.strip() for field in row.split("|"))
            left, right = (side.split() for side in sides)
            for words, others in ((left, right), (right, left)):
                for word in words:
                    synonyms = tuple(other for other in words if other != word)
                    self._senses.setdefault((word, pos), []).append(Sense(word, synonyms, tuple(others), ()))

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


def part_of_speech(pos: str) -> Pos:
    """n, v, a or r; s, WordNet's mark of a similar adjective, is a."""
    for part in POS:
        if pos == part or (pos == "s" and part == "a"):
            return part
    raise ValueError(f"pos={pos!r}; allowed are {', '.join(POS)} (noun, verb, adjective, adverb), or None for all")
