from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from gensim.test.utils import datapath
from sklearn.feature_extraction.text import TfidfVectorizer

from evaluation.registry import available, make_tasks
from evaluation.task import EvaluationError, Task, evaluate
from evaluation.tasks import lee
from evaluation.tasks.sts import Pairs, PairTask
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
        parts.append((naive_correlation(naive_ranks(x), naive_ranks(y)), len(at)))
    assert [n for _, n in parts] == [15, 30, 45]
    want = {
        "spearman": naive_correlation(naive_ranks(cosines), naive_ranks(gold)),
        "pearson": naive_correlation(cosines, gold),
        "spearman_mean": sum(s for s, _ in parts) / 3,
        "spearman_wmean": sum(s * n for s, n in parts) / 90,
    }
    assert got == pytest.approx(want, abs=1e-9)
    assert len({round(v, 6) for v in want.values()}) == 4  # the four are different numbers here


def test_details_hold_counts_and_subsets(tmp_path: Path) -> None:
    rows = rated(30)
    rows[3] = ("", *rows[3][1:])
    rows[7] = ("nan", *rows[7][1:])
    write_raw(tmp_path / "STS15.raw.tsv", rows, ("u", "v"))
    details = task("sts15", tmp_path).score(Bag()).details
    assert (details["pairs"], details["skipped"]) == (28, 2)
    assert {name: part["pairs"] for name, part in details["subsets"].items()} == {"u": 15, "v": 13}


def test_each_distinct_sentence_is_encoded_once_and_in_one_call(tmp_path: Path) -> None:
    rows = rated(40)
    write_raw(tmp_path / "STSB.dev.raw.tsv", rows + rows)
    write_raw(tmp_path / "SICK.trial.raw.tsv", rows[:20] + rated(5, seed=1))
    bag = Bag()
    evaluate(make_tasks(["stsb-dev", "sickr-dev", "stsb-dev-geometry"], tmp_path), bag)
    assert bag.calls == 1
    assert len(bag.seen) == len(set(bag.seen))
    assert set(bag.seen) == {text for row in rows + rated(5, seed=1) for text in row[1:]}


def test_all_lookups_agree_with_scoring_directly(tmp_path: Path) -> None:
    write_raw(tmp_path / "STSB.dev.raw.tsv", rated(40))
    tasks: list[Task] = make_tasks(["stsb-dev", "stsb-dev-geometry"], tmp_path)
    together = evaluate(tasks, Bag())
    for one in tasks:
        assert one.score(Bag()).metrics == pytest.approx(together[one.name])


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


def test_raw_layout_of_the_absent_sets(tmp_path: Path) -> None:
    rows = [("", "never rated", "this pair"), *rated(30)]
    for file in ("STS15.raw.tsv", "STS16.raw.tsv", "SICK.test.raw.tsv"):
        write_raw(tmp_path / file, rows, ("u", "v"))
    assert available(tmp_path) == ["sts15", "sts16", "sickr"]
    for name in available(tmp_path):
        pairs = task(name, tmp_path).pairs
        assert [*zip(pairs.gold, pairs.first, pairs.second, strict=True)] == [(float(s), a, b) for s, a, b in rows[1:]]
        assert pairs.skipped == 1
        assert set(pairs.subset) == ({"all"} if name == "sickr" else {"u", "v"})


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


def test_zero_vectors_have_cosine_zero() -> None:
    class Blank(Bag):
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            return np.where(np.array([text == "b" for text in items])[:, None], 0.0, super().encode(items))

    pairs = PairTask("x", Pairs(("a", "a", "a"), ("b", "a", "cat"), (1.0, 2.0, 3.0), ("s",) * 3))
    cosines = pairs.similarities(Blank())
    assert cosines[0] == 0
    assert cosines[1] == pytest.approx(1)


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
    for run in (lambda t: evaluate([t], Broken()), lambda t: t.score(Broken())):
        with pytest.raises(EvaluationError, match="'the red dog'"):
            run(task("sts12", tmp_path))


def test_wrong_number_of_rows_is_refused(tmp_path: Path) -> None:
    class Short(Bag):
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            return super().encode(items)[:-1]

    write_raw(tmp_path / "STS12.raw.tsv", rated(5))
    with pytest.raises(EvaluationError, match="one row per sentence"):
        task("sts12", tmp_path).score(Short())


GOOD = "dataset\tsubset\trow\tscore\tsentence1\tsentence2\n"


ROW = "X\ts\t0\t1\ta\tb\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "STS12.raw.tsv",
            GOOD.replace("score", "gold") + ROW,
            r"line 1: no column 'score'.* Found .*'row', 'gold'",
        ),
        ("STS12.raw.tsv", GOOD + ROW + "X\ts\t1\t1\ta\n", r"STS12.raw.tsv, line 3: 5 tab-separated fields where .* has 6"),
        ("STS12.raw.tsv", GOOD + "X\ts\t0\thigh\ta\tb\n", r"STS12.raw.tsv, line 2: the score 'high' is not a number"),
        ("STS12.raw.tsv", GOOD, r"STS12.raw.tsv holds no rated pair: it has no pairs at all"),
        ("STS12.raw.tsv", "", r"STS12.raw.tsv is empty; it needs a header with .* score, sentence1, sentence2, subset"),
        ("STS12.raw.tsv", GOOD + ROW, r"task sts12: .*STS12.raw.tsv has 1 rated pair \(0 more"),
        ("STS13.raw.tsv", GOOD, r"no file .*STS12.raw.tsv"),
        ("other.tsv", GOOD, r"neither a SentEval downstream folder .* nor a folder of raw TSVs"),
    ],
)
def test_bad_raw_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        make_tasks(["sts12"], tmp_path)


def test_bad_senteval_files(tmp_path: Path) -> None:
    folder = tmp_path / "STS" / "STS13-en-test"
    for subset in ("FNWN", "OnWN"):
        write_year(folder, subset, rated(3))
    with pytest.raises(EvaluationError, match=r"no file .*STS.input.headlines.txt"):
        make_tasks(["sts13"], tmp_path)
    write_year(folder, "headlines", rated(3))
    (folder / "STS.gs.headlines.txt").write_text("1\n2\n")
    with pytest.raises(EvaluationError, match=r"STS.input.headlines.txt has 3 lines but .*STS.gs.headlines.txt has 2"):
        make_tasks(["sts13"], tmp_path)
    (folder / "STS.gs.headlines.txt").write_text("1\n2\nx\n")
    with pytest.raises(EvaluationError, match=r"STS.gs.headlines.txt, line 3: the score 'x'"):
        make_tasks(["sts13"], tmp_path)
    (folder / "STS.gs.headlines.txt").write_text("1\n2\n3\n")
    (folder / "STS.input.headlines.txt").write_text("a\tb\nc d\ne\tf\n")
    with pytest.raises(EvaluationError, match=r"STS.input.headlines.txt, line 2: no tab"):
        make_tasks(["sts13"], tmp_path)
    (folder / "STS.input.headlines.txt").write_bytes(b"a\tb\nc\td\n\xff\te\n")
    with pytest.raises(EvaluationError, match=r"STS.input.headlines.txt, line 3: byte 0xff is not UTF-8; save"):
        make_tasks(["sts13"], tmp_path)


def test_unknown_names_and_missing_folders(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"unknown task 'stsb_dev'; did you mean 'stsb-dev'\?"):
        make_tasks(["stsb_dev"])
    with pytest.raises(EvaluationError, match=r"unknown task 'imagenet'\. Tasks are sts12"):
        make_tasks(["imagenet"])
    with pytest.raises(EvaluationError, match="task sts12 needs data"):
        make_tasks(["sts12"])
    with pytest.raises(EvaluationError, match=r"no data folder .*nowhere"):
        make_tasks(["sts12"], tmp_path / "nowhere")


def test_lee_is_split_by_document() -> None:
    parts = {name: lee.lee(name) for name in lee.PARTS}
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
