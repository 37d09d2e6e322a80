"""Labelled TSVs in their three forms, what is refused, and the frozen probe against scikit-learn."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from evaluation.task import EvaluationError, encode_once
from evaluation.tasks import probe
from evaluation.tasks.classification import ClassificationTask, score, three_layers
from evaluation.tasks.labelled_texts import PARTS, Labelled, Row, read_labelled
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
    assert ClassificationTask.from_file(tmp_path / "pets.dev.tsv").name == "pets"


@pytest.mark.parametrize("head", ["linear", "three-layers"])
def test_scores(head: str, tmp_path: Path) -> None:
    classes = tuple(WORDS[:7])
    path = write(tmp_path / "words.tsv", examples(420, classes))
    task, encoder = ClassificationTask.from_file(path, TEST.replace(batch=8), head), Bag(32)
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


def test_134_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "many.tsv", [(str(i % 134), f"w{i % 134} w{i % 134} x{i}") for i in range(134 * 10)])
    task = ClassificationTask.from_file(path, TEST.replace(batch=16, max_epochs=60))
    metrics, details, _ = task.score(Bag(64))
    assert len(details["classes"]) == 134
    assert metrics["accuracy"] > 80


def test_macro_metrics_are_sklearns() -> None:
    gold, predicted = ["a", "a", "b", "b", "c", "a"], ["a", "b", "b", "b", "a", "a"]
    rows = [Row(f"text {i}", label, "here") for i, label in enumerate(gold)]
    data = Labelled("x", {"train": rows, "dev": rows, "test": rows})
    metrics, details, _ = score(data, np.array(["abc".index(label) for label in predicted]), {})
    expected = {"accuracy": accuracy_score(gold, predicted)}
    for name, metric in {"precision": precision_score, "recall": recall_score, "f1": f1_score}.items():
        expected[name] = metric(gold, predicted, average="macro", zero_division=0)
    assert metrics == pytest.approx({name: 100 * value for name, value in expected.items()})
    assert details["confusion"] == [[2, 1, 0], [0, 2, 0], [1, 0, 0]]


def test_the_papers_head() -> None:
    shapes = [tuple(p.shape) for p in three_layers(768, 7).parameters() if p.ndim == 2]
    assert shapes == [(3072, 768), (768, 3072), (7, 768)]


def test_the_head_learns_what_a_line_cannot() -> None:
    rng = np.random.default_rng(0)
    scale = np.where(np.arange(8) < 2, 1.0, 0.1)  # the class is whether the first two numbers have one sign
    x = {part: rng.standard_normal((600, 8)) * scale for part in ("train", "dev", "test")}
    rows = {part: [Row(" ".join(map(str, v)), str(v[0] * v[1] > 0), "here") for v in vectors] for part, vectors in x.items()}

    class Numbers:
        def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
            return np.array([[float(number) for number in item.split()] for item in items])

    data = Labelled("xor", rows)
    linear, head = (
        ClassificationTask("xor", data, head=h).score(Numbers()).metrics["accuracy"] for h in ("linear", "three-layers")
    )
    assert linear < 65 < 85 < head
    hidden = ClassificationTask("xor", data, TEST.replace(nhid=50, max_epochs=40)).score(Numbers())
    assert hidden.details["protocol"]["nhid"] == 50


GOOD = examples(40)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("", "x"), *GOOD], ("label", "text"), "bad.tsv, line 2"),
        ([("dog", " "), *GOOD], ("label", "text"), "bad.tsv, line 2"),
        ([], ("label", "text"), "bad.tsv"),
        ([*GOOD, ("rare", "x")], ("label", "text"), "'rare'"),
        (examples(40, ("dog",)), ("label", "text"), "'about dog'"),
        ([(*row, "trian") for row in GOOD], ("label", "text", "split"), "Did you mean 'train'"),
        ([(*row, "train") for row in GOOD], ("label", "text", "split"), "dev part is empty"),
        (
            [*((*row, part) for part in PARTS for row in examples(10)), ("about dogs", "dogs", "test")],
            ("label", "text", "split"),
            "bad.tsv, line 32",
        ),
    ],
    ids=["no label", "no text", "no rows", "rare class", "one class", "unknown part", "no dev", "not in train"],
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
        ClassificationTask.from_file(path)


def test_what_a_task_refuses(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="head"):
        ClassificationTask.from_file(write(tmp_path / "pets.tsv", GOOD), head="three-layer")
    with pytest.raises(EvaluationError, match="train, dev and test"):
        ClassificationTask("pets", Labelled("pets", {"all": [Row("a", "1", ""), Row("b", "2", "")]}))


def test_linear_is_the_probe(tmp_path: Path) -> None:
    task = ClassificationTask.from_file(write(tmp_path / "pets.tsv", examples(100)))
    x = {part: Bag().encode([row.text for row in rows]).astype(np.float32) for part, rows in task.data.parts.items()}
    expected = probe.split(x, task.data.y, TEST)
    metrics, details, _ = task.score(Bag())
    assert (metrics["accuracy"], details["dev_accuracy"], details["l2"]) == (expected.accuracy, expected.dev, expected.l2)
