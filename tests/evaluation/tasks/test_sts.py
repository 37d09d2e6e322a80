"""Pairs and their correlations against naive versions, both layouts, published sizes, Lee, and sets of one's own."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import numpy as np
import pytest
from gensim.test.utils import datapath
from sklearn.feature_extraction.text import TfidfVectorizer

from multicse.evaluation.registry import available, make_tasks
from multicse.evaluation.task import EvaluationError, evaluate
from multicse.evaluation.tasks import sts
from multicse.evaluation.tasks.sts import Pairs, PairTask, pair_task
from tests.evaluation.evaluation_helpers import Bag, rated, write_raw, write_year


def naive_ranks(values: list[float]) -> list[float]:
    """Average ranks, counted."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def naive_correlation(x: list[float], y: list[float]) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return 100 * top / (sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y)) ** 0.5


def naive_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return sum(a * b) / (sum(a * a) ** 0.5 * sum(b * b) ** 0.5)


def task(name: str, data: Path) -> PairTask:
    (made,) = make_tasks([name], data)
    assert isinstance(made, PairTask)
    return made


def test_agrees_with_a_naive_implementation(tmp_path: Path) -> None:
    rows = rated(90)
    subsets = ("u", "v", "v", "w", "w", "w")  # of unequal sizes, so that mean and weighted mean differ
    write_raw(tmp_path / "STS16.raw.tsv", rows, subsets)
    got = evaluate([task("sts16", tmp_path)], Bag())["sts16"]

    cosines = [naive_cosine(*Bag().encode([a, b])) for _, a, b in rows]
    gold = [float(s) for s, _, _ in rows]
    parts = []
    for subset in "uvw":
        at = [i for i in range(90) if subsets[i % 6] == subset]
        x, y = [cosines[i] for i in at], [gold[i] for i in at]
        parts.append((naive_correlation(naive_ranks(x), naive_ranks(y)), naive_correlation(x, y), len(at)))
    assert [n for *_, n in parts] == [15, 30, 45]
    want = {
        "spearman": naive_correlation(naive_ranks(cosines), naive_ranks(gold)),
        "pearson": naive_correlation(cosines, gold),
        "spearman_mean": sum(s for s, _, _ in parts) / 3,
        "spearman_wmean": sum(s * n for s, _, n in parts) / 90,
        "pearson_mean": sum(p for _, p, _ in parts) / 3,
        "pearson_wmean": sum(p * n for _, p, n in parts) / 90,
    }
    assert got == pytest.approx(want, abs=1e-9)
    assert len({round(v, 6) for v in want.values()}) == 6  # the six are different numbers here


def test_each_distinct_sentence_is_encoded_once_and_in_one_call(tmp_path: Path) -> None:
    rows = rated(40)
    write_raw(tmp_path / "STSB.dev.raw.tsv", rows + rows)
    write_raw(tmp_path / "SICK.trial.raw.tsv", rows[:20] + rated(5, seed=1))
    bag = Bag()
    evaluate(make_tasks(["stsb-dev", "sickr-dev", "stsb-dev-geometry"], tmp_path), bag)
    assert bag.calls == 1
    assert len(bag.seen) == len(set(bag.seen))
    assert set(bag.seen) == {text for row in rows + rated(5, seed=1) for text in row[1:]}


def test_senteval_layout_of_the_absent_sets(tmp_path: Path) -> None:
    """STS15, STS16 and SICK-R test: a written folder; unrated lines are skipped, STS16 has columns of sources."""
    for year, subsets in {
        "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
        "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    }.items():
        for seed, subset in enumerate(subsets):
            rows = rated(10 + seed, seed)
            rows[seed] = ("", "never  rated", "this  pair")
            write_year(tmp_path / "STS" / f"{year}-en-test", subset, rows, "\tsource\tsource" * (year == "STS16"))
    sick = tmp_path / "SICK" / "SICK_test_annotated.txt"
    sick.parent.mkdir()
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    sick.write_text(head + "".join(f"{i}\t{a}\t{b}\t{s}\tNEUTRAL\n" for i, (s, a, b) in enumerate(rated(12))))

    assert available(tmp_path) == ["sts15", "sts16", "sickr"]
    tasks = [task(name, tmp_path) for name in ("sts15", "sts16", "sickr")]
    assert [len(t.pairs) for t in tasks] == [55, 55, 12]
    assert [t.pairs.skipped for t in tasks] == [5, 5, 0]
    assert tasks[0].pairs.gold == tasks[1].pairs.gold
    assert tasks[0].pairs.first == tasks[1].pairs.first
    rows = [r for seed in range(5) for i, r in enumerate(rated(10 + seed, seed)) if i != seed]
    assert [*zip(tasks[0].pairs.gold, tasks[0].pairs.first, tasks[0].pairs.second, strict=True)] == [
        (float(s), a, b) for s, a, b in rows
    ]
    assert tasks[2].pairs.second == tuple(b for _, _, b in rated(12))
    assert all(t.score(Bag()).metrics["spearman"] != 0 for t in tasks)


def test_senteval_text_is_joined_by_blanks_and_raw_text_kept(tmp_path: Path) -> None:
    odd = 'it  said "no'
    rows = [("1", odd, "line\u2028separator\x85kept"), ("2", "b", "c")]
    write_raw(tmp_path / "STSB.test.raw.tsv", rows)
    raw = task("stsb-test", tmp_path)
    assert raw.pairs.first == (odd, "b")  # an unpaired quotation mark is text
    assert raw.pairs.second == ("line\u2028separator\x85kept", "c")
    folder = tmp_path / "downstream" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "sts-test.csv").write_text(f"genre\tfile\tyear\t1\t4.5\t{odd}\tx y\r\ngenre\tfile\tyear\t2\t3\tb\tc\r\n")
    senteval = task("stsb-test", tmp_path / "downstream")
    assert senteval.pairs.first == ('it said "no', "b")
    assert senteval.pairs.second == ("x y", "c")
    assert senteval.pairs.gold == (4.5, 3.0)


def test_folder_above_downstream_is_accepted(tmp_path: Path) -> None:
    write_year(tmp_path / "downstream" / "STS" / "STS13-en-test", "FNWN", rated(5))
    assert available(tmp_path) == available(tmp_path / "downstream") == ["sts13"]


def test_real_sets_have_their_published_sizes_in_both_layouts(datasets: Path) -> None:
    sizes = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "stsb-train": 5749, "stsb-dev": 1500, "stsb-test": 1379}
    sizes |= {"sickr-train": 4500, "sickr-dev": 500}
    folders = (datasets / "sts", datasets / "senteval" / "downstream")
    for name, size in sizes.items():
        raw, senteval = (task(name, folder) for folder in folders)
        assert len(raw.pairs) == len(senteval.pairs) == size
        assert sorted(raw.pairs.gold) == sorted(senteval.pairs.gold)
        assert sorted(set(raw.pairs.subset)) == sorted(set(senteval.pairs.subset))
    assert (
        available(folders[0]) == available(folders[1]) == ["sts12", "sts13", "sts14", "stsb-dev", "stsb-test", "sickr-dev"]
    )


def test_a_collapsed_encoder_scores_zero_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Collapsed:
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            return np.ones((len(items), 4))

    pairs = PairTask("toy", Pairs(("a", "b", "c"), ("d", "e", "f"), (1.0, 2.0, 3.0), ("s",) * 3))
    with caplog.at_level(logging.WARNING):
        assert set(pairs.score(Collapsed()).metrics.values()) == {0.0}
    assert "task toy" in caplog.text


def test_nan_embedding_names_the_sentence(tmp_path: Path) -> None:
    class Broken(Bag):
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            vectors = super().encode(items)
            vectors[items.index("the red dog")] = np.nan
            return vectors

    write_raw(tmp_path / "STS12.raw.tsv", [*rated(5), ("1", "the red dog", "a cat")])
    with pytest.raises(EvaluationError, match="the red dog"):
        task("sts12", tmp_path).score(Broken())


HEAD = "score\tsentence1\tsentence2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "1\ta\tb\nhigh\tc\td\n", "line 3"),
        (HEAD + "\ta\tb\n\tc\td\n", "2 more came without"),
    ],
    ids=["number", "unrated"],
)
def test_files_without_ratings(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "STS13.raw.tsv").write_text(text)
    with pytest.raises(EvaluationError, match=message):
        make_tasks(["sts13"], tmp_path)


# ----------------------------------------------------------------------------------------------------- sets of one's own


def pair_file(path: Path, header: str, rows: list[tuple[str, str, str]]) -> Path:
    """A TSV with the columns of `header`, in its order."""
    names = header.split()
    lines = [dict(zip(("score", "sentence1", "sentence2"), row, strict=True)) for row in rows]
    cells = [names, *([line.get(name, f"{name}{i % 3}") for name in names] for i, line in enumerate(lines))]
    text = "\n".join("\t".join(row) for row in cells).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def triples(pairs: Pairs) -> list[tuple[float, str, str]]:
    return [*zip(pairs.gold, pairs.first, pairs.second, strict=True)]


@pytest.mark.parametrize(
    ("file", "header", "name"),
    [
        ("stsb-de-test.tsv.gz", "score sentence1 sentence2", "stsb-de-test"),
        ("my pairs (1).tsv", "sentence2 id sentence1 score", "my-pairs-1-"),
    ],
)
def test_columns_in_any_order_plain_and_gzipped(tmp_path: Path, file: str, header: str, name: str) -> None:
    task = pair_task(pair_file(tmp_path / file, header, rated(40)))
    assert triples(task.pairs) == [(float(s), a, b) for s, a, b in rated(40)]
    assert (task.name, set(task.pairs.subset)) == (name, {"all"})


def test_semeval_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "spanish-2014"
    unrated = [("", "nunca", "valorado"), *rated(12, seed=1)]
    write_year(folder, "wikipedia", rated(8), "\tsource")
    write_year(folder, "track5.en-en", unrated)
    one, both = pair_task(folder / "STS.input.track5.en-en.txt"), pair_task(folder)
    assert triples(one.pairs) == [(float(s), a, b) for s, a, b in unrated[1:]]
    assert (one.name, set(one.pairs.subset), one.pairs.skipped) == ("track5.en-en", {"track5.en-en"}, 1)
    assert (both.name, both.pairs.subset) == ("spanish-2014", ("track5.en-en",) * 12 + ("wikipedia",) * 8)
    with pytest.raises(EvaluationError):
        pair_task(tmp_path)


def test_the_translations_of_stsb(datasets: Path) -> None:
    """Sizes are STS-B's, and ratings are its ratings, in every language."""
    english = sorted(task("stsb-dev", datasets / "sts").gold)
    files = sorted((datasets / "stsb_multi").glob("stsb-*-dev.tsv.gz"))
    assert len(files) == 11
    for file in files:
        np.testing.assert_allclose(sorted(pair_task(file).pairs.gold), english, atol=5e-4)


def test_lee_is_split_by_document() -> None:
    parts = {name: sts.lee(name) for name in sts.LEE}
    assert {name: (len(part.sentences()), len(part.pairs)) for name, part in parts.items()} == {
        "lee": (30, 435),
        "lee-dev": (20, 190),
        "lee-all": (50, 1225),
    }
    assert not set(parts["lee"].sentences()) & set(parts["lee-dev"].sentences())
    assert set(parts["lee"].sentences()) | set(parts["lee-dev"].sentences()) == set(parts["lee-all"].sentences())
    ratings = np.loadtxt(datapath("similarities0-1.txt"))
    assert parts["lee-dev"].pairs.gold[:4] == tuple(ratings[0, [1, 5, 6, 10]])
    assert 0.2 <= min(parts["lee-all"].gold) <= max(parts["lee-all"].gold) <= 1


def test_lee_needs_no_data_folder() -> None:
    class WordOverlap:
        """TF-IDF without stop words; Lee et al. report correlations of about 0.5 for such models."""

        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            return TfidfVectorizer(stop_words="english").fit_transform(items).toarray()

    assert available() == ["lee", "lee-dev", "lee-all"]
    scores = evaluate(make_tasks(available()), WordOverlap())
    assert all(45 < part["pearson"] < 60 for part in scores.values())
