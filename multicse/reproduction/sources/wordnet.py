"""WordNet's database files (manual pages wndb(5), senseidx(5), cntlist(5)) as a lexicon."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from multicse.data.errors import DataError
from multicse.data.lexicon import ENGLISH, Pos, Sense
from multicse.reproduction.downloads import Words

_FILES: Mapping[Pos, str] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_POS: Mapping[str, Pos] = {"n": "n", "v": "v", "a": "a", "s": "a", "r": "r"}  # of pointers; s: satellite
_SYNSET_TYPES: Mapping[str, Pos] = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}  # in sense keys

Pointer = tuple[Pos, int, int, int]
"""Part of speech and offset of the target, number of the source and of the target word, from 1; 0: all."""


def words(index: Path, *_: Path) -> Words:
    """Return the words of the folder of an index; the files of irregular forms and of counts may be missing."""
    folder = index.parent
    exceptions = {pos: _exceptions(folder / f"{name}.exc") for pos, name in _FILES.items()}
    return Words(_senses(folder), ENGLISH._replace(exceptions=exceptions))


def _senses(folder: Path) -> Iterator[tuple[Pos, Sense]]:
    """Yield the senses of all words, of each word the commonest first. Raises DataError if files do not belong together."""
    data = {pos: _Data(folder / f"data.{name}") for pos, name in _FILES.items()}
    uses = _uses(folder)
    for pos, name in _FILES.items():
        for line in (folder / f"index.{name}").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("  "):  # of the licence
                continue
            (
                word,
                _,
                count,
                *_,
            ) = fields = line.split()
            for place, offset in enumerate(fields[len(fields) - int(count) :]):
                yield pos, _sense(data, word, pos, int(offset), uses[word, pos] if not place else 0)


def _sense(data: Mapping[Pos, _Data], word: str, pos: Pos, offset: int, uses: int) -> Sense:
    synset = data[pos].synset(offset)
    number = next((place for place, other in enumerate(synset.words, 1) if other.lower() == word), None)
    if number is None:
        raise DataError(f"WordNet's file {data[pos].path} does not belong to its index, which has {word!r} at byte {offset}")
    heads = [data["a"].synset(head) for _, head, _, _ in synset.pointers("&")] if synset.satellite else []
    return Sense(
        synset.words[number - 1],
        tuple(other for other in synset.words if other.lower() != word),
        tuple(_antonyms(data, synset, number)),
        tuple(other for head in heads for other in _antonyms(data, head, None)),
        uses,
    )


def _antonyms(data: Mapping[Pos, _Data], synset: _Synset, number: int | None) -> Iterator[str]:
    """Yield the antonyms of a word of a synset, counted from 1, or of all its words."""
    for pos, offset, source, target in synset.pointers("!"):
        if number is None or source in (0, number):
            found = data[pos].synset(offset).words
            yield from [found[target - 1]] if target else found


class _Data:
    """A file of synsets by byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = path.read_bytes()

    def synset(self, offset: int) -> _Synset:
        """Return the synset that starts at a byte."""
        line = self._bytes[offset : self._bytes.find(b"\n", offset)]
        if line[:8] != b"%08d" % offset:
            raise DataError(
                f"WordNet's file {self.path} has no synset at byte {offset}, to which another refers: the files are of two "
                "versions, or their line ends were changed; unpack them again"
            )
        return _Synset(line.split(b" | ", 1)[0].decode("utf-8", "replace").split())


class _Synset:
    """A line of a data file, in fields."""

    def __init__(self, fields: list[str]) -> None:
        count = int(fields[3], 16)
        self.satellite = fields[2] == "s"
        self.words = [re.sub(r"\((a|p|ip)\)$", "", word) for word in fields[4 : 4 + 2 * count : 2]]
        first = 4 + 2 * count
        self._pointers = fields[first + 1 : first + 1 + 4 * int(fields[first])]

    def pointers(self, symbol: str) -> list[Pointer]:
        """Return the pointers of a kind."""
        return [
            (_POS[pos], int(offset), int(words[:2], 16), int(words[2:], 16))
            for kind, offset, pos, words in zip(*(iter(self._pointers),) * 4, strict=True)
            if kind == symbol
        ]


def _uses(folder: Path) -> Counter[tuple[str, str]]:
    """Return the number of uses of each word as a part of speech in the texts that WordNet's authors tagged."""
    found = Counter[tuple[str, str]]()
    path = next((folder / name for name in ("cntlist.rev", "index.sense") if (folder / name).is_file()), None)
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path else ():
        word, _, rest = line.partition("%")
        found[word, _SYNSET_TYPES[rest[:1]]] += int(line.rsplit(None, 1)[1])
    return found


def _exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the base forms of irregular forms ("comics": comic_strip, comic); some distributions lack the file."""
    found: dict[str, tuple[str, ...]] = {}
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for form, *bases in map(str.split, filter(str.strip, text.splitlines())):
        if "_" not in form:
            found[form] = tuple(dict.fromkeys([*found.get(form, ()), *bases]))
    return found
