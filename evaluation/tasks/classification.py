"""Classification of texts or pairs on frozen sentence vectors, for any labelled TSV (see `labelled_texts`).

MoCoUTRL's Web of Science set is made by ``python pipelines/prepare.py wos``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multicse.data.errors import did_you_mean
from multicse.evaluation.task import Encoder, EvaluationError, Score
from multicse.evaluation.tasks import probe
from multicse.evaluation.tasks.classifiers import OPTIMIZERS, Protocol, best_round
from multicse.evaluation.tasks.labelled_texts import PARTS, Labelled, LabelledTask
from multicse.evaluation.tasks.probe import Result


def three_layers(width: int, classes: int) -> nn.Module:
    """MoCoUTRL's classifier, 768-3072-768-C with GELU for vectors of 768."""
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, classes)
    )


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "three-layers": three_layers}


class ClassificationTask(LabelledTask):
    """Accuracy, macro precision, recall and F1, and Matthews' correlation, in points, of a classifier on frozen vectors.

    Pairs of vectors u, v become the features [|u - v|, u * v].
    Head "linear" is logistic regression (one hidden layer with `Protocol.nhid`) by SentEval's protocol for a given split:
    dev chooses the L2 and when to stop. "three-layers" is MoCoUTRL's, trained by the same loop without L2.
    """

    def __init__(self, name: str, data: Labelled, protocol: Protocol = probe.TEST, head: str = "linear") -> None:
        check(name, data, head)
        super().__init__(name, data)
        self.protocol = protocol
        self.head = head

    def score(self, encoder: Encoder) -> Score:
        """The metrics; in the details the counts, classes and confusion, and how the classifier came about."""
        x = self.data.features(encoder)
        fit = probe.split if self.head == "linear" else fit_head
        result = fit(x, self.data.y, self.protocol)
        details = {"head": self.head, **result.details(), "protocol": dataclasses.asdict(self.protocol)}
        return score(self.data, result.predicted, details)


def score(data: Labelled, predicted: np.ndarray, details: dict[str, Any]) -> Score:
    """Metrics of `predicted` (N,) for the test part, with its counts beside other `details`.

    Macro means are over the classes that occur in the test part or in the predictions; a class never predicted has
    precision 0. ``confusion[i][j]`` counts rows of class i taken for class j, in the order of ``classes``.
    """
    from sklearn.metrics import confusion_matrix, matthews_corrcoef, precision_recall_fscore_support

    gold = data.y["test"]
    macro = precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)[:3]
    metrics = {"accuracy": probe.accuracy(gold, predicted)}
    metrics |= {name: 100 * float(value) for name, value in zip(("precision", "recall", "f1"), macro, strict=True)}
    metrics["matthews"] = 100 * float(matthews_corrcoef(gold, predicted))
    confusion = confusion_matrix(gold, predicted, labels=np.arange(len(data.classes)))
    counts = {part: len(rows) for part, rows in data.parts.items()}
    return Score(
        metrics, {**counts, "classes": list(data.classes), "confusion": confusion.tolist(), **details}, predicted == gold
    )


def fit_head(x: dict[str, np.ndarray], y: dict[str, np.ndarray], protocol: Protocol) -> Result:
    """MoCoUTRL's head on features x (N, d) of train, dev and test: Adam, no L2, the best round by dev accuracy."""
    inputs = {part: torch.from_numpy(rows) for part, rows in x.items()}
    labels = torch.from_numpy(y["train"])
    order = torch.Generator().manual_seed(protocol.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(protocol.seed)
        model = three_layers(x["train"].shape[1], int(y["train"].max()) + 1)
    optimizer = OPTIMIZERS[protocol.optimizer](list(model.parameters()))

    def epoch() -> None:
        for batch in torch.randperm(len(labels), generator=order).split(protocol.batch):
            loss = nn.functional.cross_entropy(model(inputs["train"][batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def dev() -> float:
        return probe.accuracy(y["dev"], _predict(model, inputs["dev"]))

    best, score, epochs = best_round(model, epoch, dev, protocol)
    predicted = _predict(best, inputs["test"])
    accuracy = probe.accuracy(y["test"], predicted)
    return Result(accuracy, score, [0.0], [accuracy], [epochs], predicted)


@torch.no_grad()
def _predict(model: nn.Module, x: Tensor) -> np.ndarray:
    return torch.cat([model(rows).argmax(1) for rows in x.split(4096)]).numpy()


def check(name: str, data: Labelled, head: str) -> None:
    """Raises EvaluationError for an unknown head, data without a dev or a test part, and such a part with one class."""
    if head not in HEADS:
        raise EvaluationError(f"unknown head {head!r}.{did_you_mean(head, HEADS)} Heads are {', '.join(HEADS)}")
    if set(data.parts) != set(PARTS):
        raise EvaluationError(f"task {name}: the parts are {', '.join(data.parts)}; train, dev and test are needed")
    data.check_measured()
