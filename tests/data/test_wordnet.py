"""Lexicon: golden examples, and files that a test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from multicse.data import wordnet as lexicon
from multicse.data.errors import DataError
from multicse.data.wordnet import POS, Lexicon, Pos, open_lexicon
from tests.data.packing import write_wordnet


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
    # The direct antonym of the second sense comes before the indirect antonym of the first.
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


@pytest.mark.parametrize("variable", ["WNSEARCHDIR", "WNHOME", None])
def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    folder = write_wordnet(tmp_path / "dict")
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.delenv("WNHOME", raising=False)
    monkeypatch.setattr(lexicon, "FOLDERS", ("/no/such/folder", str(folder)) if variable is None else ())
    if variable is not None:
        monkeypatch.setenv(variable, str(folder if variable == "WNSEARCHDIR" else tmp_path))
    assert open_lexicon().path == str(folder)
    assert open_lexicon() is open_lexicon(str(tmp_path))  # `dict` below a path is found too


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_wordnet(tmp_path / "a")
    (folder / "data.adj").write_bytes(b"  one more line\n" + (folder / "data.adj").read_bytes())
    with pytest.raises(DataError, match=r"data\.adj"):
        open_lexicon(str(folder)).synonyms("quick", "a")
    folder = write_wordnet(tmp_path / "b")
    (folder / "index.adj").write_text("".join(reversed((folder / "index.adj").read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match=r"index\.adj is not sorted"):
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
def test_small_table(small: Lexicon, word: str, pos: Pos | None, synonyms: list[str], antonyms: list[str]) -> None:
    assert small.replacements(word, pos) == (synonyms, antonyms)


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
