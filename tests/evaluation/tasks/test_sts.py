"""Pairs and their correlations against naive versions, both layouts, published sizes, Lee, and sets of one's own."""

from __future__ import annotations

import gzip
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gensim.test.utils import datapath
from scipy import stats

from multicse.evaluation.registry import available, make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks import sts
from multicse.evaluation.tasks.sts import Pairs, PairTask
from multicse.reproduction.tasks.senteval import SUBSETS
from tests.evaluation.evaluation_helpers import Bag, hub_pairs, pair_task, rated, write_raw, write_year


def task(name: str, data: Path) -> PairTask:
    (made,) = make_tasks([name], data)
    assert isinstance(made, PairTask)
    return made


def triples(pairs: Pairs) -> list[tuple[float, str, str]]:
    return [*zip(pairs.gold, pairs.first, pairs.second, strict=True)]


def test_agrees_with_a_naive_implementation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = rated(90)
    subsets = ("u", "v", "v", "w", "w", "w")  # of unequal sizes, so that mean and weighted mean differ
    write_raw(tmp_path / "STS16.raw.tsv", rows, subsets)
    got = evaluate([task("sts16", tmp_path)], Bag())["sts16"]

    vectors = [Bag().encode([a, b]) for _, a, b in rows]
    cosines = np.array([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in vectors])
    gold, subset = np.array([float(s) for s, _, _ in rows]), np.array([subsets[i % 6] for i in range(90)])
    want: dict[str, float] = {}
    for metric, correlation in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        parts = [100 * correlation(cosines[subset == name], gold[subset == name]).statistic for name in "uvw"]
        want |= {metric: 100 * correlation(cosines, gold).statistic, f"{metric}_mean": float(np.mean(parts))}
        want[f"{metric}_wmean"] = float(np.average(parts, weights=[15, 30, 45]))
    assert got == pytest.approx(want, abs=1e-9)
    assert len({round(v, 6) for v in want.values()}) == 6  # the six are different numbers here
    with caplog.at_level(logging.WARNING):
        assert sts.correlations("toy", np.ones(3), np.arange(3)) == {"spearman": 0, "pearson": 0}
    assert "task toy" in caplog.text


def test_senteval_layout_of_the_absent_sets(tmp_path: Path) -> None:
    """STS16 and SICK-R test: a written folder; unrated lines are skipped, STS16 has columns of sources."""
    want = []
    for seed, subset in enumerate(SUBSETS["sts16"]):
        rows = rated(10 + seed, seed)
        want += [(float(s), a, b) for i, (s, a, b) in enumerate(rows) if i != seed]
        rows[seed] = ("", "never  rated", "this  pair")
        write_year(tmp_path / "downstream" / "STS" / "STS16-en-test", subset, rows, "\tsource\tsource")
    sick = tmp_path / "downstream" / "SICK" / "SICK_test_annotated.txt"
    sick.parent.mkdir()
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    sick.write_text(head + "".join(f"{i}\t{a}\t{b}\t{s}\tNEUTRAL\n" for i, (s, a, b) in enumerate(rated(12))))
    assert available(tmp_path) == available(tmp_path / "downstream") == ["sts16", "sickr"]
    year, sickr = (task(name, tmp_path) for name in ("sts16", "sickr"))
    assert triples(year.pairs) == want and year.pairs.skipped == 5
    assert sickr.pairs.second == tuple(b for _, _, b in rated(12))


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
    assert triples(task("stsb-test", tmp_path / "downstream").pairs) == [(4.5, 'it said "no', "x y"), (3.0, "b", "c")]


def test_real_sets_have_their_published_sizes_in_both_layouts(datasets: Path) -> None:
    sizes = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "stsb-train": 5749, "stsb-dev": 1500, "stsb-test": 1379}
    sizes |= {"sickr-train": 4500, "sickr-dev": 500}
    folders = (datasets / "sts", datasets / "senteval" / "downstream")
    for name, size in sizes.items():
        raw, senteval = (task(name, folder) for folder in folders)
        assert len(raw.pairs) == len(senteval.pairs) == size
        assert sorted(raw.pairs.gold) == sorted(senteval.pairs.gold)
        assert sorted(set(raw.pairs.subset)) == sorted(set(senteval.pairs.subset))
    found = ["sts12", "sts13", "sts14", "stsb-dev", "stsb-test", "sickr-dev"]
    assert available(folders[0]) == available(folders[1]) == found


# ----------------------------------------------------------------------------------------------------- sets of one's own


def test_columns_in_any_order_and_gzipped(tmp_path: Path) -> None:
    lines = ["sentence2\tid\tsentence1\tscore", *(f"{b}\t7\t{a}\t{s}" for s, a, b in rated(40))]
    (tmp_path / "my pairs (1).tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    made = pair_task(tmp_path / "my pairs (1).tsv.gz")
    assert triples(made.pairs) == [(float(s), a, b) for s, a, b in rated(40)]
    assert (made.name, set(made.pairs.subset)) == ("my-pairs-1-", {"all"})


@pytest.mark.parametrize(("name", "separator"), [("x.tsv#quoted=yes", "\t"), ("x.csv", "\t"), ("x.csv.gz", ";")])
def test_pairs_as_pandas_writes_them(tmp_path: Path, name: str, separator: str) -> None:
    """Sentences with quotation marks and separators are quoted; of a set that is never quoted the marks are text."""
    rows = [(i, f'"{i}," he said; so', f"{i} says\t'no'") for i in range(5)]
    table = pd.DataFrame(rows, columns=["score", "sentence1", "sentence2"])
    table.to_csv(tmp_path / name.partition("#")[0], index=False, sep=separator)
    assert triples(pair_task(tmp_path / name).pairs) == rows and pair_task(tmp_path / name).name == "x"
    lines = "".join(f'{score}\t"{score}"\t"a\n' for score in range(5))
    (tmp_path / "STSB.dev.raw.tsv").write_text(f"score\tsentence1\tsentence2\n{lines}")
    assert task("stsb-dev", tmp_path).pairs.first == tuple(f'"{score}"' for score in range(5))


def test_semeval_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "spanish-2014"
    unrated = [("", "nunca", "valorado"), *rated(12, seed=1)]
    write_year(folder, "wikipedia", rated(8), "\tsource")
    write_year(folder, "track5.en-en", unrated)
    one, both = pair_task(folder / "STS.input.track5.en-en.txt"), pair_task(folder)
    assert triples(one.pairs) == [(float(s), a, b) for s, a, b in unrated[1:]]
    assert (one.name, set(one.pairs.subset), one.pairs.skipped) == ("track5.en-en", {"track5.en-en"}, 1)
    assert (both.name, both.pairs.subset) == ("spanish-2014", ("track5.en-en",) * 12 + ("wikipedia",) * 8)


def test_lee_is_split_by_document_and_needs_no_data_folder() -> None:
    assert available() == ["lee", "lee-dev", "lee-all"]
    parts = {name: sts.lee(name) for name in sts.LEE}
    assert {name: (len(part.sentences()), len(part.pairs)) for name, part in parts.items()} == {
        "lee": (30, 435),
        "lee-dev": (20, 190),
        "lee-all": (50, 1225),
    }
    assert not set(parts["lee"].sentences()) & set(parts["lee-dev"].sentences())
    ratings = np.loadtxt(datapath("similarities0-1.txt"))
    assert parts["lee-dev"].pairs.gold[:4] == tuple(ratings[0, [1, 5, 6, 10]])
    assert 0.2 <= min(parts["lee-all"].gold) <= max(parts["lee-all"].gold) <= 1


# -------------------------------------------------------------- Hugging Face datasets: folders here; the Hub is not asked


def records(names: str, rows: list[tuple[str, str, str]] | None = None) -> list[dict[str, Any]]:
    """Records with the columns of `names`: score, sentence, sentence."""
    return [dict(zip(names.split(), (float(s), a, b), strict=True)) for s, a, b in rows or rated(20)]


def write(folder: Path, split: str, items: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder


@pytest.mark.parametrize("names", ["score sentence1 sentence2", "relatedness_score sentence_A sentence_B"])
def test_a_dataset_in_a_folder(tmp_path: Path, names: str) -> None:
    """SICK's column `label` is its entailment, not its rating."""
    for split, rows in (("test", rated(20)), ("validation", rated(7, seed=1))):
        items = [{"label": i % 3, **item} for i, item in enumerate(records(names, rows))]
        folder = write(tmp_path / "my set", split, items)
    made, dev = hub_pairs(str(folder)), hub_pairs(f"{folder}:validation")
    assert made.name == "my-set-test" and triples(made.pairs) == [(float(s), a, b) for s, a, b in rated(20)]
    assert (dev.name, len(dev.pairs)) == ("my-set-validation", 7)


def test_without_the_library_the_hub_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EvaluationError, match="pip install datasets"):
        hub_pairs("mteb/sts12-sts")


@pytest.mark.parametrize(("spec", "asked"), [("someone/set", (None, "test")), ("someone/set:de:dev", ("de", "dev"))])
def test_what_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch, spec: str, asked: tuple[str, ...]) -> None:
    import datasets

    def load(path: str, config: str | None = None, **settings: Any) -> Any:
        assert set(settings) <= {"split", "streaming"}  # never trust_remote_code
        assert (path, config, settings["split"]) == ("someone/set", *asked)
        return datasets.Dataset.from_list(records("score sentence1 sentence2"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert hub_pairs(spec).name == "-".join(["set", *filter(None, asked)])
