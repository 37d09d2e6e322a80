"""Labelled TSVs in their three forms, what is refused, and the frozen probe against scikit-learn."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.tasks.classification import PARTS, ClassificationTask, Labelled, Row, read_labelled, score
from tests.evaluation.evaluation_helpers import WORDS, Bag, sentence

Example = tuple[str, ...]


def examples(count: int, classes: tuple[str, ...] = ("dog", "cat"), seed: int = 0) -> list[Example]:
    """count times (label, text), the label's word among the others."""
    rng = random.Random(seed)
    rows = [(classes[i % len(classes)], sentence(rng, 4)) for i in range(count)]
    return [(f"about {label}", f"{label} {text} {label}") for label, text in rows]


def write(path: Path, rows: list[Example], header: Example = ("label", "text")) -> Path:
    content = "".join("\t".join(row) + "\n" for row in [header, *rows]).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_one_file_is_split_by_class_and_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "pets.tsv.gz", examples(100))
    data = read_labelled(path)
    assert {part: len(rows) for part, rows in data.parts.items()} == {"train": 80, "dev": 10, "test": 10}
    assert [np.bincount(y).tolist() for y in data.y.values()] == [[40, 40], [5, 5], [5, 5]]
    places = [row.place for rows in data.parts.values() for row in rows]
    assert sorted(places) == sorted(f"{path}, line {n}" for n in range(2, 102))
    assert read_labelled(path).hash == data.hash != read_labelled(path, seed=1).hash
    assert data.classes == ("about cat", "about dog")


def test_a_split_column_and_three_files_are_the_same(tmp_path: Path) -> None:
    rows = examples(60)
    parts = ["train"] * 40 + ["dev"] * 8 + ["test"] * 12
    stated: list[Example] = [(text, part, label) for (label, text), part in zip(rows, parts, strict=True)]
    one = read_labelled(write(tmp_path / "one.tsv", stated, ("sentence", "split", "label")))
    for part in ("train", "dev", "test"):
        write(tmp_path / f"pets.{part}.tsv", [row for row, own in zip(rows, parts, strict=True) if own == part])
    hashes = {read_labelled(tmp_path / f"pets.{part}.tsv").hash for part in ("train", "dev", "test")}
    assert hashes == {one.hash}


def test_scores(tmp_path: Path) -> None:
    classes = tuple(WORDS[:7])
    path = write(tmp_path / "words.tsv", examples(420, classes))
    task, encoder = ClassificationTask("words", read_labelled(path)), Bag(32)
    metrics, details, _ = task.score(encoder)
    assert list(metrics) == ["accuracy", "precision", "recall", "f1", "matthews"]
    assert metrics["accuracy"] > 75
    confusion = np.asarray(json.loads(json.dumps(details))["confusion"])
    assert confusion.sum(1).tolist() == [6] * 7
    assert 100 * confusion.trace() / 42 == pytest.approx(metrics["accuracy"])
    assert metrics["recall"] == pytest.approx(metrics["accuracy"])  # classes of equal size


def test_every_class_counts_the_same_in_macro_means() -> None:
    """Of three rows of one class all are right, of one row of another none."""
    rows = [Row("text", label, "here") for label in "aaab"]
    found = score(Labelled("x", {"train": rows, "dev": rows, "test": rows}), np.zeros(4, int), {})
    assert (found.metrics["accuracy"], found.metrics["recall"], found.metrics["precision"]) == (75, 50, 37.5)


def test_matthews_correlation_of_glue() -> None:
    """CoLA's metric, against its formula over the four counts."""
    rows = [Row("text", label, "here") for label in "aaaaaabbbb"]
    data = Labelled("pets", {part: rows for part in PARTS})
    metrics = score(data, np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0]), {}).metrics  # 4 and 3 right, 2 and 1 wrong
    assert metrics["matthews"] == pytest.approx(100 * (4 * 3 - 2 * 1) / np.sqrt(5 * 6 * 4 * 5))


def test_a_second_sentence_counts(tmp_path: Path) -> None:
    """The label is whether both sentences are the same, which neither shows alone."""
    rng = random.Random(0)
    rows: list[Example] = []
    for i in range(400):
        first = sentence(rng, 3)
        rows.append((first, "yes" if i % 2 else "no", first if i % 2 else sentence(rng, 3)))
    data = read_labelled(write(tmp_path / "rte.tsv", rows, ("premise", "label", "hypothesis")))
    assert {(row.text, row.second) for part in data.parts.values() for row in part} == {(a, b) for a, _, b in rows}
    assert ClassificationTask("rte", data).score(Bag(32)).metrics["accuracy"] > 90
