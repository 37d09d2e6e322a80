"""Lexicon: golden examples, and files that a test writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.data import wordnet as lexicon
from multicse.data.errors import DataError
from multicse.data.shards import RawSample
from multicse.data.streams.triplets import TripletTextStream
from multicse.data.wordnet import POS, Lexicon, Pos, open_lexicon
from multicse.pipelines import pack
from tests.conftest import ROOT
from tests.data.packing import run, write_wordnet


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


# A lexicon file.

GERMAN = """words,opposites,pos
"groß, riesig","klein, winzig",a
"Haus, Gebäude, großer Bau",,
laufen,"stehen, still stehen",v
"高兴, 快乐",悲伤,a
die,,n
"""


def test_a_thesaurus_of_another_language_becomes_a_lexicon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its words replace words of sentences, with their capitals; no rule and no function word of English applies."""
    (tmp_path / "words.csv").write_text(GERMAN)
    command = ("lexicon", tmp_path / "words.csv", "--out", tmp_path / "words.sqlite")
    assert run(*command) == 0 and "14 words; read them with --streams.text.lexicon" in capsys.readouterr().out
    assert run(*command) == 2 and "--overwrite" in capsys.readouterr().err
    assert run(*command, "--overwrite") == 0
    lexicon = open_lexicon(str(tmp_path / "words.sqlite"))
    assert lexicon.replacements("Groß", None) == (["Riesig"], ["Klein", "Winzig"])
    assert lexicon.replacements("winzig", "a") == (["klein"], ["groß", "riesig"])
    assert lexicon.replacements("Haus", "n") == (["Gebäude"], []) and lexicon.replacements("haus", "n") == ([], [])
    assert lexicon.synonyms("haus", phrases=True) == ["Gebäude", "großer_Bau"]
    assert lexicon.replacements("laufen", None) == ([], ["stehen"]), "an antonym of two words replaces no word"
    assert lexicon.replacements("高兴", None) == (["快乐"], ["悲伤"])
    assert lexicon.has("die", "n") and not lexicon.has("groß", "n") and not lexicon.has("laufens", "v")
    assert lexicon.synonyms("\ud800") == []
    stream = TripletTextStream(shards="", lexicon=str(tmp_path / "words.sqlite"))
    row = stream.row(RawSample("a", "x", {"txt": "Das Tier ist groß."}), np.random.default_rng(0))
    assert row["text1"] == "Das Tier ist riesig." and row["text2"] in ("Das Tier ist klein.", "Das Tier ist winzig.")


def test_the_page_on_other_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first command makes a lexicon of its table."""
    page = (ROOT / "docs/how-to/lexicon.md").read_text()
    words, made = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ('text title="words.csv"', "bash"))
    (tmp_path / "words.csv").write_text(words)
    monkeypatch.chdir(tmp_path)
    python, script, *options = made.split()
    assert (python, script) == ("python", "pipelines/pack.py") and run(*options) == 0
    lexicon = open_lexicon(str(tmp_path / "words.sqlite"))
    assert lexicon.replacements("schnell", "a") == (["rasch", "flink"], ["langsam", "träge"])
    assert lexicon.replacements("Haus", None) == (["Gebäude"], [])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("words\n", "no rows"),
        ("words,pos\na,x\n", r"row 2: pos 'x' is none of n v a r"),
        ('words,opposites\n" , ",b\n', "row 2: the column words is empty"),
        ("word\na\n", "Did you mean 'word'"),
    ],
)
def test_a_thesaurus_that_is_none_is_told(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "words.csv").write_text(content)
    with pytest.raises(DataError, match=said):
        pack.Lexicon(tmp_path / "words.csv", tmp_path / "words.sqlite").run()
    assert [file.name for file in tmp_path.iterdir()] == ["words.csv"]


def test_a_file_that_is_no_lexicon_is_told(tmp_path: Path) -> None:
    (tmp_path / "words.sqlite").write_text("groß riesig " * 100)
    with pytest.raises(DataError, match=r"words\.sqlite is not a lexicon .*lexicon words\.tsv"):
        open_lexicon(str(tmp_path / "words.sqlite"))


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
