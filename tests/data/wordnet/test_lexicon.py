"""Lexicon: golden examples, WordNet's own `wn` program, files that a test writes."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from multicse.data.errors import DataError
from multicse.data.wordnet import lexicon
from multicse.data.wordnet.lexicon import Lexicon, match_case, open_lexicon
from multicse.data.wordnet.sources import POS, Pos, SmallTable, WordNetFiles
from tests.data.wordnet.small_wordnet import write_wordnet


@pytest.fixture(scope="module")
def wordnet() -> Lexicon:
    try:
        return open_lexicon()
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def small() -> Lexicon:
    return open_lexicon("small")


@pytest.fixture
def written(tmp_path: Path) -> Lexicon:
    return open_lexicon(str(write_wordnet(tmp_path / "wn")))


def test_files_in_wordnets_format(written: Lexicon) -> None:
    assert written.synonyms("quick", "a") == ["speedy", "alive"]  # sense order; no word of several parts, no "(p)"
    assert written.synonyms("quick", "a", phrases=True) == ["speedy", "in_no_time", "alive"]
    # The second sense's own antonym comes before the first one's indirect one.
    assert written.replacements("quick", "a") == (["speedy", "alive"], ["dead", "slow"])
    assert written.replacements("swift", None) == (["fast"], [])  # the antonym of its synonym fast
    assert written.replacements("walk", None) == (["stroll"], ["run", "race"])  # a pointer between whole synsets
    assert written.replacements("walks", None) == ([], [])
    assert written.synonyms("walks") == ["stroll"]
    assert written.synonyms("slow") == ["sluggard"]
    parts = {
        word: {pos for pos in POS if written._lemmas(word, pos)} for word in ("quick", "fast", "ran", "quick a", "\ud800")
    }
    assert parts == {"quick": {"a", "n"}, "fast": {"a", "r"}, "ran": {"v"}, "quick a": set(), "\ud800": set()}
    assert written.synonyms("") == []


def test_parts_of_speech_in_the_order_of_use(written: Lexicon) -> None:
    assert written.synonyms("quick") == ["speedy", "alive", "core"]  # 35 times an adjective, once a noun
    assert written.synonyms("quick", "n") == ["core"]
    assert written.replacements("Quick", None) == (["Speedy", "Alive"], ["Dead", "Slow"])  # without the rare noun
    with pytest.raises(ValueError, match="pos='x'"):
        written.synonyms("quick", "x")
    assert written.synonyms("quick", "s") == written.synonyms("quick", "a")


def test_a_name_is_not_meant_by_a_word_written_small(written: Lexicon) -> None:
    assert written.replacements("slow", "n") == ([], [])
    assert written.replacements("Slow", "n") == (["Sluggard"], [])


@pytest.mark.parametrize("variable", ["WNSEARCHDIR", "WNHOME", None])
def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    folder = write_wordnet(tmp_path / "dict")
    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lexicon, "FOLDERS", ("/no/such/folder", str(folder)) if variable is None else ())
    if variable is not None:
        monkeypatch.setenv(variable, str(folder if variable == "WNSEARCHDIR" else tmp_path))
    assert open_lexicon().path == str(folder)
    assert open_lexicon() is open_lexicon(str(tmp_path))  # `dict` below a path is found too


def test_without_wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WNSEARCHDIR", "WNHOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lexicon, "FOLDERS", (str(tmp_path),))
    with pytest.raises(DataError, match="the usual folders"):
        open_lexicon()
    with pytest.raises(DataError, match=str(tmp_path)):
        open_lexicon(str(tmp_path))
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))  # a wrong name is an error, not a reason to look elsewhere
    with pytest.raises(DataError, match="WNSEARCHDIR="):
        open_lexicon()


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_wordnet(tmp_path / "a")
    (folder / "data.adj").write_bytes(b"  one more line\n" + (folder / "data.adj").read_bytes())
    with pytest.raises(DataError, match=r"data\.adj"):
        open_lexicon(str(folder)).synonyms("quick", "a")
    folder = write_wordnet(tmp_path / "b")
    lines = (folder / "index.adj").read_bytes().splitlines(keepends=True)
    (folder / "index.adj").write_bytes(b"".join([*lines[:2], *reversed(lines[2:])]))
    with pytest.raises(DataError, match=r"index\.adj"):
        open_lexicon(str(folder))
    folder = write_wordnet(tmp_path / "c")
    (folder / "index.adv").unlink()
    with pytest.raises(DataError, match=r"index\.adv"):
        open_lexicon(str(folder))


# The small table.


@pytest.mark.parametrize(
    ("word", "pos", "synonyms", "antonyms"),
    [
        ("Quick", "a", ["Fast", "Rapid"], ["Slow"]),
        ("START", "v", ["BEGIN"], ["STOP", "END", "FINISH"]),
        ("started", "v", [], []),  # base forms only
        ("wife", "n", [], ["husband"]),
        ("wives", "n", [], []),
        ("hot", None, [], ["cold", "chilly", "icy"]),
        ("in", None, [], []),
        ("iPhone", None, [], []),
    ],
)
def test_small_table(small: Lexicon, word: str, pos: str | None, synonyms: list[str], antonyms: list[str]) -> None:
    assert small.replacements(word, pos) == (synonyms, antonyms)


def test_no_word_is_both() -> None:
    found = Lexicon(SmallTable("a | hot spicy | mild\na | hot mild |"), "own")
    assert found.synonyms("hot") == ["spicy", "mild"]
    assert found.replacements("hot", "a") == (["spicy", "mild"], [])


def test_pickled_as_a_path(small: Lexicon, written: Lexicon) -> None:
    for each in (small, written):
        assert len(pickle.dumps(each)) < 300
        assert pickle.loads(pickle.dumps(each)) is each


@pytest.mark.parametrize(
    ("word", "like", "expected"),
    [
        ("fast", "quick", "fast"),
        ("fast", "Quick", "Fast"),
        ("fast", "QUICK", "FAST"),
        ("Paris", "city", "Paris"),
        ("fast", "iPhone", None),
        ("fast", "", None),
        ("large", "Well-known", "Large"),
    ],
)
def test_capitals(word: str, like: str, expected: str | None) -> None:
    assert match_case(word, like) == expected


# WordNet.


@pytest.mark.parametrize(
    ("word", "pos", "lemmas"),
    [
        ("ran", "v", ["run"]),
        ("better", "a", ["better", "good", "well"]),
        ("better", "r", ["better", "well"]),
        ("leaves", "n", ["leaf", "leave"]),
        ("boss", "n", ["boss"]),
        ("feed", "v", ["feed"]),
        ("comics", "n", ["comic_strip", "comic"]),
    ],
)
def test_lemmas(wordnet: Lexicon, word: str, pos: Pos, lemmas: list[str]) -> None:
    assert wordnet._lemmas(word, pos) == lemmas


def test_golden_words(wordnet: Lexicon) -> None:
    assert wordnet.synonyms("buy", "v")[:1] == ["purchase"]
    assert wordnet.synonyms("bought", "v")[:1] == ["purchase"]
    assert wordnet.replacements("run", "v")[1] == ["idle"]
    assert wordnet.replacements("hot", "a")[1][:3] == ["cold", "nonviolent", "cool"]
    assert wordnet.replacements("fast", "a")[1][0] == "slow"
    assert wordnet.replacements("quick", "a")[1] == ["slow", "unhurried", "inactive", "unintelligent", "unexcitable"]
    assert wordnet.replacements("WIFE", "n")[1] == ["HUSBAND"]
    assert wordnet.replacements("buy", None) == (["purchase", "bribe", "corrupt"], ["sell"])
    assert wordnet.replacements("bought", None) == wordnet.replacements("saw", None) == ([], [])  # the noun saw is rare
    assert wordnet.replacements("go", "v")[1] == ["come"]
    assert wordnet.replacements("he", None) == ([], [])
    assert wordnet.replacements("China", "n")[0][:1] == ["PRC"] and "PRC" not in wordnet.replacements("china", "n")[0]


def lemmas_of(found: Lexicon, pos: Pos) -> list[str]:
    """All single words of an index."""
    assert isinstance(found._source, WordNetFiles)
    text = found._source._index[pos].bytes[:].decode()
    return [word for word in re.findall(r"^(\S+) ", text, re.M) if "_" not in word]


WN = pytest.mark.skipif(shutil.which("wn") is None, reason="no program wn: apt-get install wordnet")


def ask_wn(found: Lexicon, word: str, search: str) -> list[list[str]]:
    """What `wn` prints of every sense, in lines without blank ones."""
    environment = {**os.environ, "WNSEARCHDIR": found.path}
    text = subprocess.run(["wn", word, search], env=environment, capture_output=True, text=True, check=False).stdout
    senses = re.split(r"^Sense \d+\n", text, flags=re.M)[1:]
    return [[line for line in sense.splitlines() if line.strip()] for sense in senses]


def words_of(line: str) -> list[str]:
    """Words of a synset as `wn` prints it, without those of several parts: "large (vs. small), big" -> large, big."""
    parts = [
        re.sub(r"\s*\((vs\. .*?|a|p|ip|predicate|prenominal|postnominal)\)", "", part).strip() for part in line.split(", ")
    ]
    return [part for part in parts if " " not in part]


def unique(words: list[str], word: str) -> list[str]:
    found: dict[str, str] = {}
    for other in words:
        found.setdefault(other.lower(), other)
    return [other for key, other in found.items() if key != word]


def wn_antonyms(senses: list[list[str]], word: str) -> tuple[list[str], list[list[str]]]:
    """Direct antonyms, and the words of every indirect one's synset."""
    direct, indirect = [], []
    for synset, *lines in senses:
        mine = re.search(rf"(?:^|, ){re.escape(word)}((?: ?\(\w+\))?(?: \(vs\. .*?\))*)(?:,|$)", synset, re.I)
        direct += re.findall(r"\(vs\. (.*?)\)", mine[1]) if mine else []
        direct += [match[1] for line in lines if (match := re.match(r" +Antonym of (.*) \(Sense \d+\)", line))]
        indirect += [words_of(line.split("->", 1)[1].strip()) for line in lines if line.startswith("INDIRECT")]
    return [other for other in direct if " " not in other], indirect


def antonyms_of(found: Lexicon, word: str, pos: Pos) -> list[str]:
    """Antonyms of all meanings, the direct ones first."""
    senses = found._source.senses(word, pos)
    words = [
        *(other for sense in senses for other in sense.direct),
        *(other for sense in senses for other in sense.indirect),
    ]
    return unique(words, word)


@WN
def test_200_words_as_wn_says(wordnet: Lexicon) -> None:
    draw, antonyms = random.Random(7), 0
    plenty = [(word, pos) for pos in POS for word in draw.sample(lemmas_of(wordnet, pos), 1500)]
    # Of a form that is a word too, wn prints both in an order of its own; with a hyphen it looks up the word without it too.
    plenty = [(word, pos) for word, pos in plenty if wordnet._lemmas(word, pos) == [word] and "-" not in word]
    with_antonyms = [(word, pos) for word, pos in plenty if pos != "a" and antonyms_of(wordnet, word, pos)]
    adjectives = [(word, pos) for word, pos in plenty if pos == "a"]
    for word, pos in draw.sample(plenty, 100) + draw.sample(with_antonyms, 50) + draw.sample(adjectives, 50):
        senses = ask_wn(wordnet, word, f"-syns{pos}")
        expected = unique([other for synset, *_ in senses for other in words_of(synset)], word)
        assert [other.lower() for other in wordnet.synonyms(word, pos)] == [other.lower() for other in expected], (word, pos)
        direct, indirect = wn_antonyms(ask_wn(wordnet, word, f"-ants{pos}"), word)
        found = antonyms_of(wordnet, word, pos)
        antonyms += bool(found)
        direct = unique(direct, word)
        assert [other.lower() for other in found[: len(direct)]] == [other.lower() for other in direct], (word, pos)
        rest = [other.lower() for other in found[len(direct) :]]
        # wn prints the whole synset that an indirect antonym is in
        assert set(rest) <= {other.lower() for synset in indirect for other in synset}, (word, pos)
        for synset in indirect:
            assert not synset or {other.lower() for other in synset} & {word, *(other.lower() for other in found)}, (
                word,
                pos,
            )
    assert antonyms > 60
