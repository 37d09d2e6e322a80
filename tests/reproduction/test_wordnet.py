"""WordNet's files as a lexicon: golden examples, and files that the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from multicse.data.lexicon import POS, Lexicon, Pos, open_lexicon
from multicse.reproduction import prepare
from multicse.reproduction.downloads import SOURCES

NAMES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}

Pointer = tuple[str, int, int, int]
"""Symbol, index of the other synset in `SYNSETS`, number of the source word and of the target word."""

SYNSETS: list[tuple[Pos, str, list[str], list[Pointer]]] = [
    ("a", "a", ["fast", "swift"], [("!", 1, 1, 1), ("&", 2, 0, 0)]),
    ("a", "a", ["slow"], [("!", 0, 1, 1)]),
    ("a", "s", ["quick", "speedy", "in_no_time(p)"], [("&", 0, 0, 0)]),
    ("a", "a", ["quick", "alive(p)"], [("!", 4, 1, 1), ("!", 1, 2, 1)]),
    ("a", "a", ["dead"], [("!", 3, 1, 1)]),
    ("n", "n", ["Slow", "sluggard"], []),
    ("n", "n", ["quick", "core"], []),
    ("v", "v", ["walk", "stroll"], [("!", 8, 0, 0)]),
    ("v", "v", ["run", "race"], []),
    ("r", "r", ["quickly", "fast"], []),
]
"""Part of speech, type, words, pointers."""


def write_wordnet(folder: Path) -> Path:
    """Write a folder of database files with `SYNSETS`; senses of a word are in the order of the list."""
    folder.mkdir(exist_ok=True)
    licence = b"  1 first line of a licence  \n  2 and the last\n"
    offsets: list[int] = []
    lines: dict[str, bytes] = {}
    for _ in range(2):  # the second time with the offsets found in the first, which change no length
        places, made = iter(offsets or [0] * len(SYNSETS)), dict.fromkeys(NAMES, licence)
        known, offsets = list(offsets or [0] * len(SYNSETS)), []
        for pos, kind, words, pointers in SYNSETS:
            offsets.append(len(made[pos]))
            fields = [f"{next(places):08d} 00 {kind} {len(words):02x}", *(f"{word} 0" for word in words)]
            fields += [f"{len(pointers):03d}"]
            for mark, to, source, target in pointers:
                fields.append(f"{mark} {known[to]:08d} {SYNSETS[to][0]} {source:02x}{target:02x}")
            made[pos] += (" ".join(fields) + " | a gloss with ! in it  \n").encode()
        lines = made
    for part_of_speech, name in NAMES.items():
        (folder / f"data.{name}").write_bytes(lines[part_of_speech])
        senses: dict[str, list[int]] = {}
        for offset, (part, _, words, _) in zip(offsets, SYNSETS, strict=True):
            for word in words if part == part_of_speech else ():
                senses.setdefault(word.lower().removesuffix("(p)"), []).append(offset)
        rows = []
        for word, found in senses.items():
            rows.append(f"{word} {part_of_speech} {len(found)} 1 ! {len(found)} 0 {' '.join(f'{o:08d}' for o in found)}  \n")
        (folder / f"index.{name}").write_bytes(licence + "".join(sorted(rows)).encode())
        (folder / f"{name}.exc").write_text("ran run\nrunning run\n" if part_of_speech == "v" else "")
    (folder / "cntlist.rev").write_text("quick%1:08:00:: 1 1\nquick%3:00:02:: 2 5\nquick%5:00:00:fast:00 1 30\n")
    return folder


def made(folder: Path, *options: str) -> Lexicon:
    """The lexicon of `reproduction/prepare.py`."""
    assert prepare.main(["wordnet", "--out", str(folder), *options]) == 0
    return open_lexicon(str(folder / "wordnet.sqlite"))


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    """The real one, where a package has installed it."""
    if not any(Path(place, "index.noun").is_file() for place in SOURCES["wordnet"].places):
        pytest.skip("WordNet is not installed (apt-get install wordnet-base)")
    return made(tmp_path_factory.mktemp("wordnet"))


@pytest.fixture
def written(tmp_path: Path) -> Lexicon:
    return made(tmp_path, "--source", str(write_wordnet(tmp_path / "wn")))


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


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("data.adj", b"  1 first", b"  one more line\n  1 first", "no synset at byte"),
        ("index.adj", b"\nquick a", b"\nquack a", "does not belong to its index"),
        ("index.adv", b"", None, "index.adv not found"),
    ],
)
def test_files_that_do_not_fit(
    name: str, old: bytes, new: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_wordnet(tmp_path / "wn") / name
    content = file.read_bytes()
    file.unlink()
    if new is not None:
        file.write_bytes(content.replace(old, new, 1))
    assert prepare.main(["wordnet", "--source", str(tmp_path / "wn"), "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "wordnet.sqlite").exists()


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
