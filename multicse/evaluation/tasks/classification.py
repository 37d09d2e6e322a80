"""Classification of labelled texts or pairs on frozen sentence embeddings.

A TSV or CSV, optionally with ``.gz``, has a header with the column ``label`` and one column of sentences (``text``,
``sentence``, ...), or two for pairs (``sentence1 sentence2``, ``premise hypothesis``, ``question sentence``). The split is,
in this order of preference: the files ``NAME.train.tsv``, ``NAME.dev.tsv`` and ``NAME.test.tsv``, given by any of them; a
column ``split`` with train, dev and test; otherwise 80, 10 and 10 % of every class, drawn by a seed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from multicse.data.errors import did_you_mean
from multicse.data.text_files import read_rows
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up

PARTS = ("train", "dev", "test")
TEXT = ("text", "sentence", "question", "premise", "hypothesis", "text1", "text2", "sentence1", "sentence2")
L2 = (1e-5, 1e-4, 1e-3, 1e-2)  # regularisation of the mean loss, as in SentEval
TENTHS = 10  # parts of a file without a split: one is test, one dev


class Row(NamedTuple):
    """A labelled sentence, or a labelled pair (`second`); `place` names file and line."""

    text: str
    label: str
    place: str
    second: str = ""


class Labelled:
    """Labelled rows by part, with classes numbered in sorted order.

    Args:
        source: File of the rows, for errors.
        parts: Rows of "all"; of "train" and "test"; or of "train", "dev" and "test".
    """

    def __init__(self, source: str, parts: dict[str, list[Row]]) -> None:
        self.source = source
        self.parts = parts
        for part, rows in parts.items():
            if not rows:
                raise EvaluationError(f"{source}: the {part} part is empty")
        learned = parts.get("all", parts.get("train", []))
        self.counts = Counter(row.label for row in learned)
        self.classes = tuple(sorted(self.counts))
        if len(self.classes) < 2:
            raise EvaluationError(f"{source}: all {len(learned):,} training rows have the label {self.classes[0]!r}")
        for row in (row for rows in parts.values() for row in rows):
            if row.label not in self.counts:
                near = did_you_mean(row.label, self.classes)
                raise EvaluationError(f"{row.place}: the label {row.label!r} is not in the train part.{near}")

    @cached_property
    def y(self) -> dict[str, np.ndarray]:
        """Return the class numbers (N,) by part."""
        return {part: np.searchsorted(self.classes, [row.label for row in rows]) for part, rows in self.parts.items()}

    @property
    def pairs(self) -> bool:
        """Return whether the rows are pairs of sentences."""
        return any(row.second for rows in self.parts.values() for row in rows)

    @property
    def hash(self) -> str:
        """SHA-256 of parts, sentences and labels."""
        rows = ((part, row.text, row.second, row.label) for part, rows in self.parts.items() for row in rows)
        return hashlib.sha256("".join(map(repr, rows)).encode()).hexdigest()

    @property
    def sides(self) -> list[list[str]]:
        """Return the sentences of each part; for pairs, then the second sentences of each part."""
        sides = [[row.text for row in rows] for rows in self.parts.values()]
        return sides + ([[row.second for row in rows] for rows in self.parts.values()] if self.pairs else [])

    def features(self, encoder: Encoder) -> dict[str, np.ndarray]:
        """Return the input of a classifier by part, float32: embeddings (N, d), or `pair_features` (N, 2d) of pairs."""
        found = [vectors.astype(np.float32) for vectors in look_up(encoder, *self.sides)]
        made = map(pair_features, found[: len(self.parts)], found[len(self.parts) :]) if self.pairs else found
        return dict(zip(self.parts, made, strict=True))

    def check_folds(self, folds: int, least: int) -> None:
        """Raise EvaluationError if a class has fewer than `least` training rows."""
        label, count = min(self.counts.items(), key=lambda item: item[1])
        if count < least:
            raise EvaluationError(f"{self.source}: the class {label!r} has {count} rows; {folds} folds need {least}")


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Compute the features [|u - v|, u * v] of pairs, (N, 2d), for a classifier.

    Args:
        u: Embeddings of the first sentences, (N, d).
        v: Embeddings of the second sentences, (N, d).
    """
    return np.concatenate([np.abs(u - v), u * v], axis=1)


class LabelledTask:
    """Base class of tasks on labelled sentences."""

    primary = "accuracy"

    def __init__(self, name: str, data: Labelled) -> None:
        self.name, self.hash = name, data.hash
        self.data = data

    def sentences(self) -> list[str]:
        """Return the distinct sentences of all parts."""
        return list(dict.fromkeys(text for side in self.data.sides for text in side))


class Fitted(NamedTuple):
    """Predicted classes (N,) of the test part, and details of the classifier for the report."""

    predicted: np.ndarray
    details: dict[str, Any]


Parts = dict[str, np.ndarray]
"""Features (N, d) or classes (N,) of train, dev and test."""


def linear(x: Parts, y: Parts) -> Fitted:
    """Fit a logistic regression for each strength of L2, and predict with the best one on dev."""
    from sklearn.linear_model import LogisticRegression

    rows = len(y["train"])
    models = [LogisticRegression(C=1 / (l2 * rows), max_iter=1000).fit(x["train"], y["train"]) for l2 in L2]
    dev = [accuracy(y["dev"], model.predict(x["dev"])) for model in models]
    best = int(np.argmax(dev))
    return Fitted(models[best].predict(x["test"]), {"dev_accuracy": dev[best], "l2": L2[best]})


class ClassificationTask(LabelledTask):
    """Accuracy, macro precision, recall and F1, and Matthews' correlation of a probe on frozen embeddings, in points.

    Args:
        name: Name of the task.
        data: Labelled rows.
        fit: Function that fits a classifier to features and classes by part. Default: `linear`.
        head: Name of the classifier, for the report.
    """

    def __init__(
        self, name: str, data: Labelled, fit: Callable[[Parts, Parts], Fitted] = linear, head: str = "linear"
    ) -> None:
        check_labelled(name, data)
        super().__init__(name, data)
        self.fit, self.head = fit, head

    def score(self, encoder: Encoder) -> Score:
        """Return the metrics; details are counts, classes, the confusion matrix and the classifier's settings."""
        fitted = self.fit(self.data.features(encoder), self.data.y)
        return score(self.data, fitted.predicted, {"head": self.head, **fitted.details})


class Classify(Kind):
    """Labelled texts in a TSV with the columns label text, or label sentence1 sentence2: a probe on frozen embeddings."""

    kind: Literal["classify"] = "classify"
    trains: ClassVar[bool] = True

    def make(self, seed: int) -> Task:
        """Return the task."""
        return ClassificationTask(self.title, read_labelled(self.place, seed))


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Compute the share of correct labels, in points.

    Args:
        gold: Labels, (N,).
        predicted: Predicted labels, (N,).
    """
    return 100 * float(np.mean(gold == predicted))


def score(data: Labelled, predicted: np.ndarray, details: dict[str, Any]) -> Score:
    """Score predictions of the test part.

    A class that is never predicted has precision 0. ``confusion[i][j]`` counts rows of class i predicted as class j.

    Args:
        data: Labelled rows.
        predicted: Predicted class numbers of the test part, (N,).
        details: Further details for the report.
    """
    from sklearn.metrics import confusion_matrix, matthews_corrcoef, precision_recall_fscore_support

    gold = data.y["test"]
    macro = precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)[:3]
    metrics = {"accuracy": accuracy(gold, predicted)}
    metrics |= {name: 100 * float(value) for name, value in zip(("precision", "recall", "f1"), macro, strict=True)}
    metrics["matthews"] = 100 * float(matthews_corrcoef(gold, predicted))
    confusion = confusion_matrix(gold, predicted, labels=np.arange(len(data.classes)))
    counts = {part: len(rows) for part, rows in data.parts.items()}
    return Score(
        metrics, {**counts, "classes": list(data.classes), "confusion": confusion.tolist(), **details}, predicted == gold
    )


def check_labelled(name: str, data: Labelled) -> None:
    """Raise EvaluationError for data without two classes in both dev and test."""
    if set(data.parts) != set(PARTS):
        raise EvaluationError(f"task {name}: found the parts {', '.join(data.parts)}, expected train, dev and test")
    for part in ("dev", "test"):  # with one class, a constant answer would be perfect
        if len(set(data.y[part].tolist())) < 2:
            raise EvaluationError(f"{data.source}: the {part} part has one class; it needs rows of at least two")


# ---------------------------------------------------------------------------------------------------------------- files


def read_labelled(path: str | Path, seed: int = 0) -> Labelled:
    """Read train, dev and test of a labelled TSV or CSV.

    Args:
        path: File of all rows, or one of NAME.train.tsv, NAME.dev.tsv and NAME.test.tsv.
        seed: Seed of the split of a file that has none.

    Raises:
        EvaluationError: A part or a class is missing, or a row is invalid.
        DataError: A file or column is missing.
    """
    file = Path(path).expanduser()
    named = re.fullmatch(r"(.+)\.(train|dev|test)(\.[ct]sv(?:\.gz)?)", file.name)
    if named:
        files = {part: file.with_name(f"{named[1]}.{part}{named[3]}") for part in PARTS}
        return Labelled(str(file), {part: [row for _, row in _rows(files[part])] for part in PARTS})
    rows = list(_rows(file))
    if any(part for part, _ in rows):
        return Labelled(str(file), {part: [row for own, row in rows if own == part] for part in PARTS})
    return Labelled(str(file), _tenths(file, [row for _, row in rows], seed))


def _tenths(file: Path, rows: list[Row], seed: int) -> dict[str, list[Row]]:
    from sklearn.model_selection import StratifiedKFold

    labels = [row.label for row in rows]
    label, count = min(Counter(labels).items(), key=lambda item: item[1], default=("", 0))
    if count < TENTHS:
        raise EvaluationError(
            f"{file}: the class {label!r} has {count} rows, too few for ten parts; add a column named split (train, "
            "dev, test), or remove the class"
        )
    splitter = StratifiedKFold(TENTHS, shuffle=True, random_state=seed)
    tenths = [left_out for _, left_out in splitter.split(np.zeros(len(rows)), labels)]
    chosen = {"test": tenths[0], "dev": tenths[1], "train": np.sort(np.concatenate(tenths[2:]))}
    return {part: [rows[i] for i in chosen[part]] for part in PARTS}


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a table with their part ("" without a split column)."""
    for number, fields in read_rows(path, ("label",), TEXT):
        place = f"{path}, line {number}"
        texts = [" ".join(cell.split()) for column, cell in fields.items() if column in TEXT]
        label = fields["label"].strip()
        if len(texts) > 2:
            raise EvaluationError(f"{path}: {len(texts)} columns contain sentences ({', '.join(TEXT)}); keep one or two")
        if not label or not all(texts):
            raise EvaluationError(f"{place}: the label or a sentence is empty")
        part = fields.get("split", "").strip()
        if "split" in fields and part not in PARTS:
            raise EvaluationError(f"{place}: unknown split {part!r}.{did_you_mean(part, PARTS)} Splits: {', '.join(PARTS)}")
        yield part, Row(texts[0], label, place, *texts[1:])
