"""Synonyms and antonyms of words, from a lexicon file of any language or a small table of our own.

A lexicon is an SQLite database, so that nothing is loaded and all processes of a machine share one copy. `write_lexicon`
makes one: of a thesaurus (`pipelines/pack.py`), or of WordNet (`reproduction/prepare.py`).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from multicse.data.errors import DataError, command

Pos = Literal["n", "v", "a", "r"]
"""Noun, verb, adjective, adverb."""
POS: tuple[Pos, ...] = get_args(Pos)

SMALL = "small"
"""Path of a small table of everyday words: our own work (small_words.txt), for the demo and for tests.

Each row is one meaning and, optionally, its opposite: part of speech | words | opposite words. The words of a half are
synonyms of each other and antonyms of the words of the other half."""
TABLE = Path(__file__).with_name("small_words.txt")
WORDNET = "wordnet.sqlite"
"""Lexicon if none is named, in the current folder: `reproduction/prepare.py wordnet` makes it."""

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
    """One meaning of a word. An underscore separates the parts of a word: ice_cream."""

    spelling: str
    """Spelling of the word in this meaning, for example "China" or "china"."""
    synonyms: tuple[str, ...]
    """The other words with this meaning."""
    direct: tuple[str, ...]
    """Antonyms of the word itself."""
    indirect: tuple[str, ...]
    """Antonyms of the adjective to which it is similar: slow for quick, which is similar to fast."""
    uses: int = 0
    """Number of uses in texts; 0 if the source does not count them."""


class Language(NamedTuple):
    """How the base forms of words are found; nothing, if a lexicon contains all forms that it knows."""

    rules: Mapping[Pos, tuple[tuple[str, str], ...]] = {}
    """Ending of a form, and the ending of its base form that replaces it."""
    exceptions: Mapping[Pos, Mapping[str, tuple[str, ...]]] = {}
    """Base forms of irregular forms."""
    function_words: frozenset[str] = frozenset()
    """Words that are never replaced, in small letters."""


ANY, ENGLISH = Language(), Language(RULES, {}, FUNCTION_WORDS)

_TABLES = """
CREATE TABLE sense (word TEXT, pos TEXT, spelling TEXT, synonyms TEXT, antonyms TEXT, indirect TEXT, uses INTEGER);
CREATE TABLE rule (pos TEXT, form TEXT, base TEXT);
CREATE TABLE exception (pos TEXT, form TEXT, base TEXT);
CREATE TABLE function_word (word TEXT);
"""


def _fill(database: sqlite3.Connection, senses: Iterable[tuple[Pos, Sense]], language: Language) -> None:
    """Write senses, of each word the commonest first, and what is known of the language."""
    rows = (
        (one.spelling.lower(), pos, one.spelling, *map(json.dumps, (one.synonyms, one.direct, one.indirect)), one.uses)
        for pos, one in senses
    )
    forms = (
        (pos, form, base) for pos, found in language.exceptions.items() for form, all_ in found.items() for base in all_
    )
    database.executescript(_TABLES)
    database.executemany("INSERT INTO sense VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    database.executemany(
        "INSERT INTO rule VALUES (?, ?, ?)", ((p, *rule) for p, all_ in language.rules.items() for rule in all_)
    )
    database.executemany("INSERT INTO exception VALUES (?, ?, ?)", forms)
    database.executemany("INSERT INTO function_word VALUES (?)", ((word,) for word in sorted(language.function_words)))
    database.execute("CREATE INDEX of_word ON sense (word, pos)")
    database.commit()


def write_lexicon(senses: Iterable[tuple[Pos, Sense]], path: Path, language: Language = ANY) -> int:
    """Write a lexicon file, and return its number of words.

    Args:
        senses: Parts of speech and meanings, of each word the commonest first.
        path: New file, which replaces an older one when it is complete.
        language: How the forms of words are found.

    Raises:
        DataError: As `senses`, and if there are none.
    """
    scratch = path.with_name(f"{path.name}.partial")
    scratch.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(scratch)) as database:
            _fill(database, senses, language)
            count = int(database.execute("SELECT COUNT(DISTINCT word) FROM sense").fetchone()[0])
        if not count:
            raise DataError(f"{path.name}: the thesaurus has no rows; give another")
        os.replace(scratch, path)
        return count
    finally:
        scratch.unlink(missing_ok=True)


def thesaurus(rows: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[tuple[Pos, Sense]]:
    """Yield the meanings of the words of a thesaurus, for `write_lexicon`.

    Args:
        rows: Place, for messages, and columns of each meaning: `words`, synonyms of each other, and optionally `opposites`,
            their antonyms, and `pos` (n, v, a or r, noun, verb, adjective, adverb; default: n). Commas separate words.

    Raises:
        DataError: If a row has no words or an unknown part of speech.
    """
    for place, row in rows:
        given = row.get("pos", "").strip() or "n"
        pos = next((one for one in POS if one == given), None)
        sides = (row.get(name, "").split(",") for name in ("words", "opposites"))
        words, opposites = (["_".join(word.split()) for word in side if word.strip()] for side in sides)
        if pos is None or not words:
            what = f"pos {given!r} is none of {' '.join(POS)}" if words else "the column words is empty"
            raise DataError(f"{place}: {what}; a row is a meaning: pos, words and opposites, with commas between words")
        for group, others in ((words, opposites), (opposites, words)):
            for word in group:
                yield pos, Sense(word, tuple(other for other in group if other != word), tuple(others), ())


class Lexicon:
    """Synonyms and antonyms of words; `open_lexicon` opens one.

    Parts of speech are n, v, a and r. None means all of them, commonest first if the lexicon counts uses.
    """

    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self.path = path
        self._database = database
        self.senses("", "n")  # an error of a file without this table
        self._rules = list(database.execute("SELECT pos, form, base FROM rule ORDER BY rowid"))
        self._exceptions: dict[tuple[str, str], list[str]] = {}
        for pos, form, base in database.execute("SELECT pos, form, base FROM exception ORDER BY rowid"):
            self._exceptions.setdefault((form, pos), []).append(base)
        self._function_words = frozenset(word for (word,) in database.execute("SELECT word FROM function_word"))
        self._replacements = lru_cache(maxsize=16384)(self._find_replacements)

    def senses(self, word: str, pos: Pos) -> list[Sense]:
        """Return the meanings of a base form as a part of speech, commonest first."""
        query = "SELECT spelling, synonyms, antonyms, indirect, uses FROM sense WHERE word = ? AND pos = ? ORDER BY rowid"
        rows = self._database.execute(query, (word.encode("utf-8", "replace").decode(), pos))
        return [
            Sense(spelling, tuple(json.loads(alike)), tuple(json.loads(direct)), tuple(json.loads(indirect)), uses)
            for spelling, alike, direct, indirect, uses in rows
        ]

    def synonyms(self, word: str, pos: Pos | None = None, *, phrases: bool = False) -> list[str]:
        """Return the other words, in their base form, of all meanings of a word in any form, commonest meaning first.

        Args:
            word: Word.
            pos: Part of speech. If None, all of them.
            phrases: Include synonyms of several parts, such as "ice_cream".
        """
        lemmas = self._readings(word.lower(), pos)
        senses = (sense for reading in lemmas for sense in self.senses(*reading))
        found = (other for sense in senses for other in sense.synonyms if phrases or "_" not in other)
        return _without(found, [word, *(lemma for lemma, _ in lemmas)])

    def has(self, word: str, pos: Pos) -> bool:
        """Return True if a word in its base form can be this part of speech and is not a function word."""
        return word.lower() not in self._function_words and bool(self.senses(word.lower(), pos))

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
        readings = self._readings(word, pos, common=True) if word not in self._function_words else []
        synonyms: dict[str, None] = {}
        direct: dict[str, None] = {}
        indirect: dict[str, None] = {}
        for lemma, part in readings:
            for sense in self.senses(lemma, part) if lemma == word else ():
                if small and sense.spelling != sense.spelling.lower():
                    continue
                for found, words in ((synonyms, sense.synonyms), (direct, sense.direct), (indirect, sense.indirect)):
                    found.update(dict.fromkeys(other for other in words if "_" not in other))
        return tuple(_without(synonyms, [word])), tuple(_without({**direct, **indirect}, [word, *synonyms]))

    def _lemmas(self, word: str, pos: Pos) -> list[str]:
        """Return the possible base forms of a form: itself, and the forms by exceptions, otherwise by rules."""
        found = [word]
        if bases := self._exceptions.get((word, pos)):
            found += bases[:1] if bases[0] == word else bases  # like `wn`: "feed" is listed as feed and as a form of fee
        elif len(word) > 2 and not (pos == "n" and word.endswith("ss")):  # "be" is not a form of "b", nor "boss" of "bos"
            rules = [(end, new) for of, end, new in self._rules if of == pos and word.endswith(end)]
            detached = (word.removesuffix(end) + new for end, new in rules)
            found += [base for base in detached if len(base) > 1]
        return [base for base in dict.fromkeys(found) if self.senses(base, pos)]

    def _readings(self, word: str, pos: Pos | None, common: bool = False) -> list[tuple[str, Pos]]:
        """Return lemmas of a lower-case word with their parts of speech, commonest first; `common`: without rare ones."""
        parts = POS if pos is None else (pos,)
        readings: list[tuple[str, Pos]] = [(lemma, part) for part in parts for lemma in self._lemmas(word, part)]
        if len(readings) < 2:
            return readings
        uses = {reading: sum(sense.uses for sense in self.senses(*reading)) for reading in readings}
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
        path: A lexicon file, or "small" for a table of some 200 words. If None, `WORDNET` in the current folder.

    Raises:
        DataError: If it does not exist or is not a lexicon; the message has the commands that make one.
    """
    return _opened(SMALL if path == SMALL else str(Path(path or WORDNET).resolve()))


@lru_cache(maxsize=4)
def _opened(path: str) -> Lexicon:
    if path == SMALL:
        rows = (row.split("|") for row in TABLE.read_text(encoding="utf-8").strip().splitlines())
        small = (
            {"pos": pos, **{n: ",".join(side.split()) for n, side in zip(("words", "opposites"), sides, strict=False)}}
            for pos, *sides in rows
        )
        database = sqlite3.connect(":memory:", check_same_thread=False)
        _fill(database, thesaurus((SMALL, row) for row in small), ENGLISH)
        return Lexicon(database, path)
    try:
        return Lexicon(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, check_same_thread=False), path)
    except sqlite3.Error as error:
        what = f"is not a lexicon ({error})" if Path(path).exists() else "does not exist"
        raise DataError(
            f"{path} {what}; make one of WordNet ({command('prepare', 'reproduction')} wordnet), or of a thesaurus "
            f"({command('pack')} lexicon words.tsv --out words.sqlite), or use {SMALL!r}, a table of some 200 words"
        ) from None


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
