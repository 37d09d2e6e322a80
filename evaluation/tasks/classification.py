"""Classification of texts or pairs on frozen sentence vectors, for any labelled TSV (see `labelled_texts`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from multicse.data.errors import did_you_mean
from multicse.evaluation.task import Encoder, EvaluationError, Probing, Score
from multicse.evaluation.tasks.labelled_texts import PARTS, Labelled, LabelledTask

L2 = (1e-5, 1e-4, 1e-3, 1e-2)  # of the mean loss; SentEval's


class Fitted(NamedTuple):
    """Classes (N,) predicted for the test part, and what a report says of how they came about."""

    predicted: np.ndarray
    details: dict[str, Any]


Parts = dict[str, np.ndarray]
"""Features (N, d) or classes (N,) of train, dev and test."""


def linear(x: Parts, y: Parts, probing: Probing) -> Fitted:
    """Fit a logistic regression for each strength of L2, and predict by the one that is best on dev."""
    from sklearn.linear_model import LogisticRegression

    rows = len(y["train"])
    models = [LogisticRegression(C=1 / (l2 * rows), max_iter=1000).fit(x["train"], y["train"]) for l2 in L2]
    dev = [accuracy(y["dev"], model.predict(x["dev"])) for model in models]
    best = int(np.argmax(dev))
    return Fitted(models[best].predict(x["test"]), {"dev_accuracy": dev[best], "l2": L2[best]})


HEADS: dict[str, Callable[[Parts, Parts, Probing], Fitted]] = {"linear": linear}
"""Classifiers by the names that ``classify:FILE?head=NAME`` takes; plugins add theirs."""


class ClassificationTask(LabelledTask):
    """Accuracy, macro precision, recall and F1, and Matthews' correlation, in points, of a classifier on frozen vectors.

    Pairs of vectors u, v become the features [|u - v|, u * v]. The classifier is one of `HEADS`.
    """

    def __init__(self, name: str, data: Labelled, probing: Probing | None = None, head: str = "linear") -> None:
        check(name, data, head, HEADS)
        super().__init__(name, data)
        self.probing = probing or Probing()
        self.head = head

    def score(self, encoder: Encoder) -> Score:
        """The metrics; in the details the counts, classes and confusion, and how the classifier came about."""
        fitted = HEADS[self.head](self.data.features(encoder), self.data.y, self.probing)
        return score(self.data, fitted.predicted, {"head": self.head, **fitted.details})


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Share of equal labels (N,), in points."""
    return 100 * float(np.mean(gold == predicted))


def score(data: Labelled, predicted: np.ndarray, details: dict[str, Any]) -> Score:
    """Metrics of `predicted` (N,) for the test part, with its counts beside other `details`.

    Macro means are over the classes that occur in the test part or in the predictions; a class never predicted has
    precision 0. ``confusion[i][j]`` counts rows of class i taken for class j, in the order of ``classes``.
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


def check(name: str, data: Labelled, head: str, known: Iterable[str]) -> None:
    """Raises EvaluationError for an unknown head, data without a dev or a test part, and such a part with one class."""
    if head not in known:
        raise EvaluationError(f"unknown head {head!r}.{did_you_mean(head, known)} Heads are {', '.join(known)}")
    if set(data.parts) != set(PARTS):
        raise EvaluationError(f"task {name}: the parts are {', '.join(data.parts)}; train, dev and test are needed")
    data.check_measured()
