"""Labelled TSVs in their three forms, what is refused, and the frozen probe against scikit-learn."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from evaluation.task import EvaluationError, encode_once
from evaluation.tasks.classification import ClassificationTask, three_layers
from evaluation.tasks.labelled_texts import PARTS, read_labelled
from evaluation.tasks.probe import TEST
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
    assert {part: np.bincount(y).tolist() for part, y in data.y.items()} == {
        "train": [40, 40],
        "dev": [5, 5],
        "test": [5, 5],
    }
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


@pytest.mark.parametrize("head", ["linear", "three-layers"])
def test_scores(head: str, tmp_path: Path) -> None:
    classes = tuple(WORDS[:7])
    path = write(tmp_path / "words.tsv", examples(420, classes))
    task, encoder = ClassificationTask("words", read_labelled(path), TEST.replace(batch=8), head), Bag(32)
    metrics, details, _ = task.score(encode_once([task], encoder))
    assert encoder.calls == 1
    assert list(metrics) == ["accuracy", "precision", "recall", "f1"]
    assert metrics["accuracy"] > 75
    assert (details["train"], details["dev"], details["test"]) == (336, 42, 42)
    confusion = np.asarray(json.loads(json.dumps(details))["confusion"])
    assert confusion.sum(1).tolist() == [6] * 7
    assert 100 * confusion.trace() / 42 == pytest.approx(metrics["accuracy"])
    assert metrics["recall"] == pytest.approx(metrics["accuracy"])  # classes of equal size
    assert metrics == task.score(Bag(32)).metrics


def test_the_papers_head() -> None:
    shapes = [tuple(p.shape) for p in three_layers(768, 7).parameters() if p.ndim == 2]
    assert shapes == [(3072, 768), (768, 3072), (7, 768)]


GOOD = examples(40)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("", "x"), *GOOD], ("label", "text"), "bad.tsv, line 2"),
        ([*GOOD, ("rare", "x")], ("label", "text"), "'rare'"),
        ([(*row, "trian") for row in GOOD], ("label", "text", "split"), "Did you mean 'train'"),
        (
            [*((*row, part) for part in PARTS for row in examples(10)), ("about dogs", "dogs", "test")],
            ("label", "text", "split"),
            "bad.tsv, line 32",
        ),
    ],
    ids=["no label", "rare class", "unknown part", "not in train"],
)
def test_bad_files(rows: list[Example], header: Example, message: str, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=message):
        read_labelled(write(tmp_path / "bad.tsv", rows, header))


@pytest.mark.parametrize(("part", "rows"), [("dev", examples(1)), ("test", examples(4, ("cat",)))])
def test_a_part_that_tells_nothing_apart(part: str, rows: list[Example], tmp_path: Path) -> None:
    parts = {"train": examples(20), "dev": examples(6), "test": examples(6)} | {part: rows}
    written = [(*row, name) for name, own in parts.items() for row in own]
    path = write(tmp_path / "x.tsv", written, ("label", "text", "split"))
    with pytest.raises(EvaluationError, match=f"the {part} part"):
        ClassificationTask("x", read_labelled(path))
