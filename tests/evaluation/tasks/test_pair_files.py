"""Pair sets beside the seven: any TSV with scores and sentences, and SemEval's own files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from evaluation.task import EvaluationError
from evaluation.tasks.sts import Pairs, pair_task, read_pairs
from tests.evaluation.evaluation_helpers import Bag, rated, write_raw, write_year

ROWS = rated(40)


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def table(header: str, rows: list[tuple[str, str, str]] = ROWS) -> str:
    """A TSV with the columns of `header`, in its order."""
    lines = [dict(zip(("score", "sentence1", "sentence2"), row, strict=True)) for row in rows]
    names = header.split()
    return "\n".join(
        ["\t".join(names), *("\t".join(line.get(n, f"{n}{i % 3}") for n in names) for i, line in enumerate(lines))]
    )


def triples(pairs: Pairs) -> list[tuple[float, str, str]]:
    return [*zip(pairs.gold, pairs.first, pairs.second, strict=True)]


@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
@pytest.mark.parametrize(
    "header", ["score sentence1 sentence2", "sentence2 id sentence1 score", "sentence1 sentence2 score"]
)
def test_columns_in_any_order_plain_and_gzipped(tmp_path: Path, name: str, header: str) -> None:
    pairs = read_pairs(write(tmp_path / name, table(header)))
    assert triples(pairs) == [(float(s), a, b) for s, a, b in ROWS]
    assert set(pairs.subset) == {"all"}


def test_subset_column_gives_the_means(tmp_path: Path) -> None:
    """The same file read as STS16 and as a set of one's own is the same set."""
    mine = pair_task(write(tmp_path / "mine.tsv", table("subset score sentence1 sentence2")))
    assert mine.pairs.subset[:4] == ("subset0", "subset1", "subset2", "subset0")
    metrics = mine.score(Bag()).metrics
    plain = pair_task(write(tmp_path / "plain.tsv", table("score sentence1 sentence2"))).score(Bag()).metrics
    assert metrics["spearman"] == plain["spearman"] == plain["spearman_mean"]
    assert metrics["spearman_mean"] != pytest.approx(metrics["spearman"], abs=1e-3)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("stsb-de-test.tsv.gz", "stsb-de-test"),
        ("my pairs (1).tsv", "my-pairs-1-"),
        ("STS.input.track5.en-en.txt", "track5.en-en"),
    ],
)
def test_task_is_named_after_the_file(tmp_path: Path, file: str, name: str) -> None:
    if file.startswith("STS."):
        write_year(tmp_path, "track5.en-en", ROWS)
    else:
        write(tmp_path / file, table("score sentence1 sentence2"))
    task = pair_task(tmp_path / file)
    assert (task.name, len(task.pairs)) == (name, 40)


def test_semeval_files_go_in_pairs(tmp_path: Path) -> None:
    folder = tmp_path / "spanish-2014"
    unrated = [("", "nunca", "valorado"), *rated(12, seed=1)]
    write_year(folder, "wikipedia", rated(8), "\tsource")
    write_year(folder, "news", unrated)
    one = read_pairs(folder / "STS.input.news.txt")
    assert triples(one) == [(float(s), a, b) for s, a, b in unrated[1:]]
    assert (set(one.subset), one.skipped) == ({"news"}, 1)
    both = pair_task(folder)
    assert both.name == "spanish-2014"
    assert both.pairs.subset == ("news",) * 12 + ("wikipedia",) * 8
    assert triples(both.pairs)[12:] == triples(read_pairs(folder / "STS.input.wikipedia.txt"))


def test_the_translations_of_stsb(datasets: Path) -> None:
    """Sizes are STS-B's, and ratings are its ratings, in every language."""
    english = np.loadtxt(
        datasets / "sts" / "STSB.dev.raw.tsv", dtype=str, delimiter="\t", skiprows=1, usecols=3, comments=None
    )
    files = sorted((datasets / "stsb_multi").glob("stsb-*-dev.tsv.gz"))
    assert len(files) == 11
    for file in files:
        pairs = read_pairs(file)
        np.testing.assert_allclose(sorted(pairs.gold), sorted(english.astype(float)), atol=5e-4)
        assert pairs.skipped == 0
    assert len(pair_task(datasets / "stsb_multi" / "stsb-de-test.tsv.gz").pairs) == 1379


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "score\tsentence_1\tsentence2\n1\ta\tb\n", r"line 1: no column 'sentence1'; did you mean 'sentence_1'\?"),
        (
            "a.tsv",
            "score\tfirst\tsentence2\n1\ta\tb\n",
            r"line 1: no column 'sentence1'\. Found 'score', 'first', 'sentence2'",
        ),
        ("a.tsv", "score\tscore\tsentence1\tsentence2\n", r"line 1: more than one column 'score'"),
        ("a.tsv", "score\tsentence1\tsentence2\n", r"a\.tsv holds no rated pair: it has no pairs at all, an empty split"),
        (
            "a.tsv",
            "score\tsentence1\tsentence2\n\ta\tb\n\tc\td\n",
            r"a\.tsv holds no rated pair: the score is empty in all 2",
        ),
        ("a.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n1.0\tc\td\n", r"a\.tsv: all 2 pairs have the score 1, so there is"),
        (
            "a.tsv",
            "score\tsentence1\tsentence2\n1\ta\tb\n\nhigh\tc\td\n",
            r"a\.tsv, line 4: the score 'high' is not a number",
        ),
        (
            "a.tsv",
            "score\tsentence1\tsentence2\n1\ta\tb\textra\n",
            r"a\.tsv, line 2: 4 tab-separated fields .* header has 3",
        ),
        ("a.tsv", "score\tsentence1\tsentence2\n1\ta\tb\n", r"a\.tsv has 1 rated pair \(0 more"),
        (
            "a.tsv",
            "score\tsentence1\tsentence2\n1\ta\tb\nnan\tc\td\n",
            r"a\.tsv has 1 rated pair \(1 more came without",
        ),
        ("a.tsv", "score\tsentence1\tsentence2\ninf\ta\tb\n", r"a\.tsv, line 2: the score 'inf' is not a number"),
        ("a.csv", "score,sentence1,sentence2\n", r"a\.csv is not a file of rated pairs by its name; use \.tsv or \.tsv\.gz"),
        ("b.tsv.gz", "", r"no file .*a\.tsv\.gz; did you mean 'b\.tsv\.gz'\?"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    write(tmp_path / name, text)
    with pytest.raises(EvaluationError, match=message):
        pair_task(tmp_path / name.replace("b", "a"))


def test_broken_gzip_missing_folder_and_missing_gold(tmp_path: Path) -> None:
    whole = gzip.compress(table("score sentence1 sentence2").encode())
    for broken in (b"score\tsentence1", whole[:-20], whole[:20] + b"\0\0\0\0" + whole[24:]):
        (tmp_path / "x.tsv.gz").write_bytes(broken)
        with pytest.raises(EvaluationError, match=r"x\.tsv\.gz(, line \d+: byte| cannot be read after line \d)"):
            read_pairs(tmp_path / "x.tsv.gz")
    for missing in (r"nowhere/x\.tsv", "nowhere"):
        with pytest.raises(EvaluationError, match=rf"no file .*{missing}\."):
            read_pairs(tmp_path / missing.replace("\\", ""))
    with pytest.raises(EvaluationError, match=r"no STS\.input\.<subset>\.txt in the folder"):
        read_pairs(tmp_path)
    write_year(tmp_path, "news", ROWS)
    (tmp_path / "STS.gs.news.txt").unlink()
    with pytest.raises(EvaluationError, match=r"no file .*STS\.gs\.news\.txt"):
        read_pairs(tmp_path / "STS.input.news.txt")


def test_a_raw_set_may_be_read_by_its_path(tmp_path: Path) -> None:
    task = pair_task(write_raw(tmp_path / "STS17.raw.tsv", ROWS, ("u", "v")))
    assert (task.name, set(task.pairs.subset)) == ("STS17.raw", {"u", "v"})
