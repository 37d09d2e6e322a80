"""Synonyms and antonyms of words, from a lexicon file of any language, WordNet's files or a small table of our own.

A lexicon file is an SQLite database with one table, `sense`: word (in small letters), pos, spelling, and synonyms and
antonyms as JSON. `write_lexicon` makes it; all processes of a machine share its pages.

WordNet's files (formats: its manual pages wndb(5), senseidx(5), cntlist(5)) are memory-mapped and searched in place, so
nothing is loaded and all processes of a machine share one copy.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from multicse.data.errors import DataError, command

Pos = Literal["n", "v", "a", "r"]
"""Noun, verb, adjective, adverb."""
POS: tuple[Pos, ...] = get_args(Pos)

INSTALL = (
    "apt-get install wordnet-base, or unpack WordNet's database files (https://wordnet.princeton.edu/download) "
    "and set their folder as the path or in the environment variable WNSEARCHDIR"
)
"""Part of error messages: how to install WordNet."""

_FILES: Mapping[Pos, str] = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_SYNSET_TYPES = {b"1": "n", b"2": "v", b"3": "a", b"4": "r", b"5": "a"}  # in sense keys

SMALL = "small"
"""Path of a small table of everyday words: our own work (small_words.txt), for the demo and for tests.

Each row is one meaning and, optionally, its opposite: part of speech | words | opposite words. The words of a half are
synonyms of each other and antonyms of the words of the other half."""

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
"""Folders in which WordNet is searched if neither a path nor the environment names one."""

RARE = 0.1
"""`Lexicon.replacements` ignores readings of a word with less than this share of the uses of its commonest reading."""

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
"""WordNet's rules of detachment (manual page morphy(7)): ending of a form -> ending of its base form."""

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
"""Function words; WordNet contains many of them only as nouns ("in": indium, "he": helium)."""


class Sense(NamedTuple):
    """One meaning of a word. Antonyms of several parts are left out."""

    spelling: str
    """Spelling of the word in this meaning, for example "China" or "china"."""
    synonyms: tuple[str, ...]
    """Synonyms; an underscore separates the parts of a synonym (ice_cream)."""
    direct: tuple[str, ...]
    """Antonyms of the word itself."""
    indirect: tuple[str, ...]
    """Antonyms of the adjective to which it is similar: slow for quick, which is similar to fast."""


class _Lines:
    """A file of sorted lines, mapped into memory."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is empty, so it cannot be mapped
            raise DataError(f"WordNet's file {path} cannot be read ({error}): {INSTALL}") from error
        self.path = path

    def find(self, key: bytes) -> int:
        """Return the position of the first line whose first bytes are not less than `key`."""
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
        """Return the line that starts at a position."""
        end = self.bytes.find(b"\n", start)
        return self.bytes[start : end if end >= 0 else len(self.bytes)]

    def starting_with(self, key: bytes) -> Iterable[bytes]:
        """Yield the lines that start with `key`."""
        start = self.find(key)
        while self.bytes[start : start + len(key)] == key:
            line = self.line(start)
            yield line
            start += len(line) + 1

    def check_sorted(self) -> None:
        """Raise DataError unless the lines are sorted by their bytes; lines in the order of a locale would not be found."""
        lines = [line for line in self.bytes[:].split(b"\n") if line and not line.startswith(b"  ")]  # without the licence
        if not lines or lines != sorted(lines):
            raise DataError(f"WordNet's file {self.path} is {'not sorted' if lines else 'empty'}: {INSTALL}")


class WordNetFiles:
    """WordNet's files, searched in place."""

    rules, function_words = RULES, FUNCTION_WORDS

    def __init__(self, folder: Path) -> None:
        self._index = {pos: _Lines(folder / f"index.{name}") for pos, name in _FILES.items()}
        self._data = {pos: _Lines(folder / f"data.{name}") for pos, name in _FILES.items()}
        for lines in self._index.values():
            lines.check_sorted()
        counts = (folder / name for name in ("cntlist.rev", "index.sense"))  # either may be absent
        self._counts = next((_Lines(path) for path in counts if path.is_file()), None)
        self.exceptions = {pos: _exceptions(folder / f"{name}.exc") for pos, name in _FILES.items()}

    def has(self, word: str, pos: Pos) -> bool:
        """Return True if the word can be this part of speech."""
        return self._entry(word, pos) is not None

    def _entry(self, word: str, pos: Pos) -> bytes | None:
        if not word or " " in word:  # the lines of the licence start with spaces
            return None
        return next(iter(self._index[pos].starting_with(word.encode("utf-8", "replace") + b" ")), None)

    def uses(self, word: str) -> Mapping[str, int]:
        """Return the number of uses of the word as each part of speech in the texts that WordNet's authors tagged."""
        found: dict[str, int] = {}
        key = word.encode("utf-8", "replace") + b"%"
        for line in self._counts.starting_with(key) if self._counts else ():
            pos = _SYNSET_TYPES[line[len(key) : len(key) + 1]]
            found[pos] = found.get(pos, 0) + int(line.rsplit(None, 1)[1])
        return found

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]:
        """Return the meanings of the word as a part of speech, commonest first."""
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
        """Return the antonyms of a word of a synset, counted from 1, or of all its words (None, and 0 in pointers)."""
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
                f"WordNet's file {self._data[pos].path} has no synset at byte {offset}, to which an index refers: the files "
                f"are of two versions, or their line ends were changed; {INSTALL}"
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

    def pointers(self, symbol: str) -> list[tuple[Any, int, int, int]]:
        """Return the pointers of a kind: part of speech and offset of the target, number of the source and target word."""
        return [
            ("a" if pos == "s" else pos, int(offset), int(words[:2], 16), int(words[2:], 16))
            for kind, offset, pos, words in zip(*(iter(self._pointers),) * 4, strict=True)
            if kind == symbol
        ]


class SmallTable:
    """Table with rows of part of speech, words and opposite words; see `SMALL`."""

    rules, function_words = RULES, FUNCTION_WORDS
    exceptions: Mapping[Pos, Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, text: str) -> None:
        self._senses: dict[tuple[str, str], list[Sense]] = {}
        for row in text.strip().splitlines():
            pos, *sides = (field.strip() for field in row.split("|"))
            for sense in _senses(*(side.split() for side in sides)):
                self._senses.setdefault((sense.spelling, pos), []).append(sense)

    def has(self, word: str, pos: Pos) -> bool:
        """Return True if the word can be this part of speech."""
        return (word, pos) in self._senses

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]:
        """Return the meanings of the word as a part of speech."""
        return tuple(self._senses.get((word, pos), ()))

    def uses(self, word: str) -> Mapping[str, int]:
        """Return nothing: the table does not count uses."""
        return {}


def _senses(words: list[str], opposites: list[str]) -> Iterator[Sense]:
    """Yield the meaning of each word of a group of synonyms, and of each word of the group of their antonyms."""
    for group, others in ((words, opposites), (opposites, words)):
        for word in group:
            yield Sense(word, tuple(other for other in group if other != word), tuple(others), ())


class LexiconFile:
    """Lexicon file of any language. It contains base forms: no rules find the base form of another form."""

    rules: Mapping[Pos, tuple[tuple[str, str], ...]] = {}
    function_words: frozenset[str] = frozenset()
    exceptions: Mapping[Pos, Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, path: Path) -> None:
        try:
            self._database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            self.senses("", "n")
        except sqlite3.Error as error:
            made = f"make one from a thesaurus: {command('pack')} lexicon words.tsv --out words.sqlite"
            raise DataError(f"{path} is not a lexicon ({error}); {made}") from None

    def has(self, word: str, pos: Pos) -> bool:
        """Return True if the word can be this part of speech."""
        return bool(self.senses(word, pos))

    def senses(self, word: str, pos: Pos) -> tuple[Sense, ...]:
        """Return the meanings of the word as a part of speech, in the order of the thesaurus."""
        query = "SELECT spelling, synonyms, antonyms FROM sense WHERE word = ? AND pos = ? ORDER BY rowid"
        rows = self._database.execute(query, (word.encode("utf-8", "replace").decode(), pos))
        found = ((spelling, json.loads(alike), json.loads(opposite)) for spelling, alike, opposite in rows)
        return tuple(
            Sense(spelling, tuple(alike), tuple(one for one in opposite if "_" not in one), ())
            for spelling, alike, opposite in found
        )

    def uses(self, word: str) -> Mapping[str, int]:
        """Return nothing: a thesaurus does not count uses."""
        return {}


def write_lexicon(rows: Iterable[tuple[str, Mapping[str, str]]], path: Path) -> int:
    """Write a lexicon file, and return its number of words.

    Args:
        rows: Place, for messages, and columns of each meaning: `words`, synonyms of each other, and optionally `opposites`,
            their antonyms, and `pos` (n, v, a or r, noun, verb, adjective, adverb; default: n). Commas separate words.
        path: New file.

    Raises:
        DataError: If a row has no words or an unknown part of speech, or there are no rows.
    """

    def found() -> Iterator[tuple[str, str, str, str, str]]:
        for place, row in rows:
            pos = row.get("pos", "").strip() or "n"
            sides = (row.get(name, "").split(",") for name in ("words", "opposites"))
            words, opposites = (["_".join(word.split()) for word in side if word.strip()] for side in sides)
            if pos not in POS or not words:
                what = f"pos {pos!r} is none of {' '.join(POS)}" if words else "the column words is empty"
                raise DataError(f"{place}: {what}; a row is a meaning: pos, words and opposites, with commas between words")
            for sense in _senses(words, opposites):
                yield sense.spelling.lower(), pos, sense.spelling, json.dumps(sense.synonyms), json.dumps(sense.direct)

    scratch = path.with_name(f"{path.name}.partial")
    scratch.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(scratch)) as database, database:
            database.execute("CREATE TABLE sense (word TEXT, pos TEXT, spelling TEXT, synonyms TEXT, antonyms TEXT)")
            database.executemany("INSERT INTO sense VALUES (?, ?, ?, ?, ?)", found())
            database.execute("CREATE INDEX of_word ON sense (word, pos)")
            count = int(database.execute("SELECT COUNT(DISTINCT word) FROM sense").fetchone()[0])
        if not count:
            raise DataError(f"{path.name}: the thesaurus has no rows; give another")
        os.replace(scratch, path)
        return count
    finally:
        scratch.unlink(missing_ok=True)


def _exceptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the base forms of irregular forms ("comics": comic_strip, comic); some distributions lack the file."""
    if not path.is_file():
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for form, *words in map(str.split, filter(str.strip, path.read_text(encoding="utf-8").splitlines())):
        if "_" not in form:
            found[form] = tuple(dict.fromkeys([*found.get(form, ()), *words]))
    return found


class Lexicon:
    """Synonyms and antonyms of words; `open_lexicon` opens one.

    Parts of speech are n, v, a and r. None means all of them, commonest first if the source counts uses.
    """

    def __init__(self, source: WordNetFiles | SmallTable | LexiconFile, path: str) -> None:
        self.path = path
        self._source = source
        self._replacements = lru_cache(maxsize=16384)(self._find_replacements)

    def synonyms(self, word: str, pos: Pos | None = None, *, phrases: bool = False) -> list[str]:
        """Return the other words, in their base form, of all meanings of a word in any form, commonest meaning first.

        Args:
            word: Word.
            pos: Part of speech. If None, all of them.
            phrases: Include synonyms of several parts, such as "ice_cream".
        """
        lemmas = self._readings(word.lower(), pos)
        senses = (sense for reading in lemmas for sense in self._source.senses(*reading))
        found = (other for sense in senses for other in sense.synonyms if phrases or "_" not in other)
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def has(self, word: str, pos: Pos) -> bool:
        """Return True if a word in its base form can be this part of speech and is not a function word."""
        return word.lower() not in self._source.function_words and self._source.has(word.lower(), pos)

    def replacements(self, word: str, pos: Pos | None) -> tuple[list[str], list[str]]:
        """Return the synonyms and antonyms, with its capitals, that can replace a word in its base form in a text.

        Rare readings are left out (`RARE`), as are the meanings of a name if the word is in lower case ("china"), and
        antonyms that are synonyms in another meaning. Nothing replaces other forms ("walked"), function words ("in") and
        words with irregular capitals ("iPhone").

        Args:
            word: Word with the text's spelling.
            pos: Part of speech. If None, all of them.
        """
        if _match_case("x", word) is None:
            return [], []
        synonyms, antonyms = self._replacements(word.lower(), pos, word.islower())
        return _cased(synonyms, word), _cased(antonyms, word)

    def _find_replacements(self, word: str, pos: Pos | None, small: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        readings = self._readings(word, pos, common=True) if word not in self._source.function_words else []
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
        """Return the possible base forms of a form: itself, and the forms by exceptions, otherwise by the source's rules."""
        found, exceptions = [word], self._source.exceptions.get(pos, {})
        if word in exceptions:
            bases = exceptions[word]
            found += bases[:1] if bases[0] == word else bases  # like `wn`: "feed" is listed as feed and as a form of fee
        elif len(word) > 2 and not (pos == "n" and word.endswith("ss")):  # "be" is not a form of "b", nor "boss" of "bos"
            detached = (word.removesuffix(end) + new for end, new in self._source.rules.get(pos, ()) if word.endswith(end))
            found += [base for base in detached if len(base) > 1]
        return [base for base in dict.fromkeys(found) if self._source.has(base, pos)]

    def _readings(self, word: str, pos: Pos | None, common: bool = False) -> list[tuple[str, Pos]]:
        """Return lemmas of a lower-case word with their parts of speech, commonest first; `common`: without rare ones."""
        parts = POS if pos is None else (pos,)
        readings: list[tuple[str, Pos]] = [(lemma, part) for part in parts for lemma in self._lemmas(word, part)]
        if len(readings) < 2:
            return readings
        uses = {(lemma, part): self._source.uses(lemma).get(part, 0) for lemma, part in readings}
        readings.sort(key=lambda reading: -uses[reading])  # stable: otherwise in the order n v a r, the word itself first
        least = RARE * uses[readings[0]] if common else 0
        return [reading for reading in readings if uses[reading] >= least]


def _match_case(word: str, like: str) -> str | None:
    """Give a word the capitals of another word, or return None if these are irregular; capitals that it already has stay."""
    if like.islower() or (like.isalpha() and like == like.lower()):  # or a script without capitals
        return word
    if len(like) > 1 and like.isupper():
        return word.upper()
    titled = like[:1].isupper() and (len(like) == 1 or like[1:].islower())
    return word[:1].upper() + word[1:] if titled else None


def open_lexicon(path: str | None = None) -> Lexicon:
    """Open a lexicon, once per process.

    Args:
        path: A lexicon file, or a folder of WordNet's database files, or the folder that contains it as ``dict``, or "small"
            for a table of some 200 words. If None, the folder in the environment variable WNSEARCHDIR, otherwise ``dict`` in
            WNHOME, otherwise one of `FOLDERS`.
    """
    if path == SMALL:
        return _opened(SMALL)
    file = Path(path) if path is not None and Path(path).is_file() else _folder(path)
    return _opened(str(file.resolve()))


@lru_cache(maxsize=4)
def _opened(path: str) -> Lexicon:
    if path == SMALL:
        return Lexicon(SmallTable(TABLE.read_text(encoding="utf-8")), path)
    return Lexicon(LexiconFile(Path(path)) if Path(path).is_file() else WordNetFiles(Path(path)), path)


def _folder(path: str | None) -> Path:
    """Return the folder of the database files."""
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
    other = f"or use a lexicon file ({command('pack')} lexicon), or the small table: {SMALL!r}"
    raise DataError(f"WordNet not found in {where} (file index.noun): {INSTALL}; {other}")


def _without(words: Iterable[str], own: Iterable[str]) -> list[str]:
    """Return each word once, ignoring case, without the words of `own`."""
    seen, found = {word.lower() for word in own}, []
    for word in words:
        if word.lower() not in seen:
            seen.add(word.lower())
            found.append(word)
    return found


def _cased(words: Iterable[str], like: str) -> list[str]:
    cased = (_match_case(word, like) for word in words)
    return [word for word in cased if word is not None]
