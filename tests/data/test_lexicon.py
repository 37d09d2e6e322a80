"""Lexicons: the small table, and files made of a thesaurus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.data.errors import DataError
from multicse.data.lexicon import Lexicon, Pos, open_lexicon
from multicse.data.shards import RawSample
from multicse.data.streams.triplets import TripletTextStream
from tests.conftest import ROOT
from tests.data.packing import run


@pytest.fixture(scope="module")
def small() -> Lexicon:
    return open_lexicon("small")


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
    """Its second command makes a lexicon of its table."""
    page = (ROOT / "docs/how-to/lexicon.md").read_text()
    _, words, made, *_ = (block.partition("\n")[2] for block in page.split("```")[1::2])
    (tmp_path / "words.csv").write_text(words)
    monkeypatch.chdir(tmp_path)
    python, script, *options = made.split()
    assert (python, script) == ("python", "pipelines/pack.py") and run(*options) == 0
    lexicon = open_lexicon(str(tmp_path / "words.sqlite"))
    assert lexicon.replacements("schnell", "a") == (["rasch", "flink"], ["langsam", "träge"])
    assert lexicon.replacements("Haus", None) == (["Gebäude"], [])


def test_a_file_that_is_no_lexicon_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or none at all: the message names both commands that make one."""
    (tmp_path / "words.sqlite").write_text("groß riesig " * 100)
    monkeypatch.chdir(tmp_path)
    wrong = {"words.sqlite": "is not a lexicon", ".": "is not a lexicon", None: r"wordnet\.sqlite does not exist"}
    for path, said in wrong.items():
        with pytest.raises(DataError, match=rf"{said}.*prepare\.py wordnet.*pack\.py lexicon words\.tsv"):
            open_lexicon(path)
