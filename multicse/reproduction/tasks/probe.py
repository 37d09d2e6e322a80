"""SentEval's protocols for selecting the L2 of classifiers, and the heads of `classify:` and `finetune:`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from multicse.data.settings import Settings, refuse_idle
from multicse.evaluation.task import Task
from multicse.evaluation.tasks import classification
from multicse.evaluation.tasks.classification import ClassificationTask, Fitted, Parts, accuracy, read_labelled
from multicse.reproduction.tasks.classifiers import Classifiers, Protocol, fit, fit_module

OUTER_SEED = 1111  # seed of the outer folds; SentEval fixes it, independent of the seed of the classifier
HELD_OUT = 0.05  # fraction of the training rows for early stopping of the last fit

TEST = Protocol()
RELEASED = Protocol(last_fit="held_out")  # exactly as in SentEval
# SentEval's prototyping setting. On features with a large common offset, RMSprop with its learning rate of .01 oscillates:
# after a fixed number of epochs MRPC scored 57 to 72 depending on the seed (majority class: 66). Held-out rows must stop it.
FAST = RELEASED.replace(kfold=5, optimizer="rmsprop", batch=128, tenacity=3, epoch_size=2)
TWO_FOLD = RELEASED.replace(kfold=2, epoch_size=10)  # settings of GCLSR's code
PRESETS = {"test": TEST, "released": RELEASED, "fast": FAST, "two-fold": TWO_FOLD}


class Probing(Settings):
    """Options of tasks that train a classifier by SentEval's protocols."""

    protocol: Literal["test", "released", "fast", "two-fold"] = "test"
    """Protocol for training the classifier. test: SentEval's setting for published results, with a final fit on all training
    data. released: exactly as in the SentEval toolkit. fast: SentEval's setting for prototyping. two-fold: GCLSR's two-fold
    protocol."""
    hidden: int = Field(0, ge=0)
    """Width of the hidden layer of the classifier (SG-BERT uses 50); 0 is logistic regression."""

    def settings(self, seed: int) -> Protocol:
        """Return the protocol of the options."""
        return PRESETS[self.protocol].replace(nhid=self.hidden, seed=seed)


class Result(NamedTuple):
    """Test accuracy in points, with details of the selection."""

    accuracy: float
    dev: float
    """Dev accuracy in points that selected the L2."""
    l2: list[float]
    """Selected L2 per outer fold; one value without outer folds."""
    folds: list[float]
    """Accuracy in points per outer fold; one value without outer folds."""
    epochs: list[int]
    predicted: np.ndarray
    """Predicted classes of the test rows; of all rows in nested k-fold."""

    def details(self) -> dict[str, Any]:
        """Return the details that reports show in addition to the accuracy."""
        return {"dev_accuracy": self.dev, "l2": self.l2, "folds": self.folds, "epochs": self.epochs}


def run(x: Parts, y: Parts, protocol: Protocol) -> Result:
    """Run SentEval's protocol for the given splits.

    With the split "all": nested k-fold. With "train" and "test": k-fold on train selects the L2. With "train", "dev" and
    "test": dev selects the L2 and stops training.

    Args:
        x: Features (N, d) by split.
        y: Classes 0, 1, ... (N,) by split.
        protocol: Protocol of training.
    """
    if "all" in x:
        return _nested(x["all"], y["all"], protocol)
    if "dev" in x:
        return _split(x, y, protocol)
    return _kfold(x, y, protocol)


def _nested(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> Result:
    """Test on outer folds; inner folds of the other rows select the L2 (SentEval's InnerKFoldClassifier)."""
    outer = list(_folds(y, protocol.kfold, OUTER_SEED))
    inner = [(rest[a], rest[b]) for rest, _ in outer for a, b in _folds(y[rest], protocol.kfold, OUTER_SEED)]
    choice = _choose(x, y, inner, len(outer), protocol)
    final = _last_fit(x, y, [rest for rest, _ in outer], choice, protocol)
    votes, predicted = final.predict(x), np.zeros(len(y), dtype=np.int64)
    for fold, (_, test) in enumerate(outer):
        predicted[test] = votes[test, fold]
    scores = [accuracy(y[test], predicted[test]) for _, test in outer]
    return _result(choice, scores, final, predicted)


def _kfold(x: Parts, y: Parts, protocol: Protocol) -> Result:
    """Select the L2 by k-fold on train, then fit on train and test (SentEval's KFoldClassifier)."""
    learned, labels = x["train"], y["train"]
    choice = _choose(learned, labels, list(_folds(labels, protocol.kfold, protocol.seed)), 1, protocol)
    final = _last_fit(learned, labels, [np.arange(len(labels))], choice, protocol)
    predicted = final.predict(x["test"])[:, 0]
    return _result(choice, [accuracy(y["test"], predicted)], final, predicted)


def _split(x: Parts, y: Parts, protocol: Protocol) -> Result:
    """Fit once per L2 on train and test the best one on dev (SentEval's SplitClassifier, which fits it again)."""
    both, labels = np.concatenate([x["train"], x["dev"]]), np.concatenate([y["train"], y["dev"]])
    learned = len(y["train"])
    pair = (np.arange(learned), np.arange(learned, len(labels)))
    choice = _choose(both, labels, [pair], 1, protocol)
    best = protocol.l2.index(choice.l2[0])
    predicted = choice.fitted.predict(x["test"])[:, best]
    score = accuracy(y["test"], predicted)
    dev, epochs = 100 * float(choice.fitted.dev[best]), int(choice.fitted.epochs[best])
    return Result(score, dev, choice.l2, [score], [epochs], predicted)


def _folds(y: np.ndarray, k: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training and test rows of stratified k-fold cross-validation."""
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(k, shuffle=True, random_state=seed).split(np.zeros(len(y)), y)


def _hold_out(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into training rows and the 5 % for early stopping of the last fit, as in the toolkit."""
    order = np.random.RandomState(seed).permutation(len(rows))
    count = int(HELD_OUT * len(rows))
    return rows[order[count:]], rows[order[:count]]


def fewest_rows(protocol: Protocol, nesting: int) -> int:
    """Return the minimum number of rows per class so that every fold contains the class.

    Args:
        protocol: Protocol with the number of folds.
        nesting: Levels of k-fold; 0 needs 1 row.
    """
    least = 1
    for _ in range(nesting):
        least = max(protocol.kfold, math.ceil(least * protocol.kfold / (protocol.kfold - 1)))
    return least


class _Choice(NamedTuple):
    """Dev accuracy in points, the L2 that reached it and the mean epochs of its fits, per group of inner folds."""

    dev: list[float]
    l2: list[float]
    epochs: np.ndarray
    fitted: Classifiers
    """All classifiers of the groups."""


def _choose(
    x: np.ndarray, y: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]], groups: int, protocol: Protocol
) -> _Choice:
    """Select the best L2 on average for each of `groups` equally long sequences of (train, dev) `pairs`."""
    strengths = np.asarray(protocol.l2)
    train, dev = (np.repeat(mask, len(strengths), axis=1) for mask in _masks(pairs, len(y)))
    fitted = fit(x, y, train, dev, np.tile(strengths, len(pairs)), protocol)
    scores, epochs = (part.reshape(groups, -1, len(strengths)).mean(1) for part in (fitted.dev, fitted.epochs))
    scores, best = _points(scores), _points(scores).argmax(1)
    group = np.arange(groups)
    return _Choice(scores[group, best].tolist(), strengths[best].tolist(), epochs[group, best], fitted)


def _last_fit(x: np.ndarray, y: np.ndarray, rows: list[np.ndarray], choice: _Choice, protocol: Protocol) -> Classifiers:
    """Train the classifiers to test, one per group of training `rows`."""
    strengths = np.asarray(choice.l2)
    if protocol.last_fit == "held_out":
        return fit(x, y, *_masks([_hold_out(group, protocol.seed) for group in rows], len(y)), strengths, protocol)
    nothing = np.zeros(0, dtype=np.int64)
    lengths = protocol.epoch_size * np.round(choice.epochs / protocol.epoch_size).astype(np.int64)
    return fit(x, y, *_masks([(group, nothing) for group in rows], len(y)), strengths, protocol, lengths)


def _result(choice: _Choice, scores: list[float], final: Classifiers, predicted: np.ndarray) -> Result:
    return Result(float(np.mean(scores)), float(np.mean(choice.dev)), choice.l2, scores, final.epochs.tolist(), predicted)


def _points(share: np.ndarray) -> np.ndarray:
    """Round to points with two decimals, as the toolkit does before it compares strengths; ties go to the weakest."""
    return np.round(100 * share.astype(np.float64), 2)


def _masks(pairs: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the masks (rows, len(pairs)) of train and of dev."""
    train, dev = np.zeros((rows, len(pairs)), dtype=bool), np.zeros((rows, len(pairs)), dtype=bool)
    for column, (learn, stop) in enumerate(pairs):
        train[learn, column] = True
        dev[stop, column] = True
    return train, dev


# ---------------------------------------------------------------------------------------------------------------- heads


def three_layers(width: int, classes: int) -> nn.Module:
    """Return MoCoUTRL's classifier with GELU: 768-3072-768-C for embeddings of 768 dimensions.

    Args:
        width: Dimension of the embeddings.
        classes: Number of classes C.
    """
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, classes)
    )


MODULES: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "three-layers": three_layers}
"""Heads for fine-tuning an encoder."""


def senteval(x: Parts, y: Parts, protocol: Protocol) -> Fitted:
    """Fit a logistic regression, or one hidden layer, by SentEval's protocol: dev selects the L2 and stops training.

    Args:
        x: Features (N, d) by split.
        y: Classes (N,) by split.
        protocol: Protocol of the classifier.
    """
    return _fitted(_split(x, y, protocol), protocol)


def three_layers_probe(x: Parts, y: Parts, protocol: Protocol) -> Fitted:
    """Fit MoCoUTRL's classifier with Adam, without L2, and test the best round by dev accuracy; arguments as `senteval`."""
    inputs = {part: torch.from_numpy(rows) for part, rows in x.items()}
    best, score, epochs = fit_module(
        lambda: three_layers(x["train"].shape[1], int(y["train"].max()) + 1),
        inputs["train"],
        torch.from_numpy(y["train"]),
        nn.functional.cross_entropy,
        lambda model: accuracy(y["dev"], _predict(model, inputs["dev"])),
        protocol,
    )
    predicted = _predict(best, inputs["test"])
    tested = accuracy(y["test"], predicted)
    return _fitted(Result(tested, score, [0.0], [tested], [epochs], predicted), protocol)


def _fitted(result: Result, protocol: Protocol) -> Fitted:
    return Fitted(result.predicted, {**result.details(), "protocol": dataclasses.asdict(protocol)})


@torch.no_grad()
def _predict(model: nn.Module, x: Tensor) -> np.ndarray:
    return torch.cat([model(rows).argmax(1) for rows in x.split(4096)]).numpy()


HEADS = {"senteval": senteval, "three-layers": three_layers_probe}


class Classify(Probing, classification.Classify):
    """Labelled texts in a TSV with the columns label text, or label sentence1 sentence2: a probe on frozen embeddings."""

    kind: Literal["classify"] = "classify"
    head: Literal["linear", "senteval", "three-layers"] = "linear"
    """linear: scikit-learn's logistic regression. senteval: SentEval's classifier. three-layers: MoCoUTRL's classifier."""

    @model_validator(mode="after")
    def _protocols_are_of_the_other_heads(self) -> Self:
        if self.head == "linear":
            refuse_idle(self, ["protocol", "hidden"], "head=linear has none; add head=senteval")
        return self

    def make(self, seed: int) -> Task:
        """Return the task."""
        if self.head == "linear":
            return super().make(seed)
        fit = partial(HEADS[self.head], protocol=self.settings(seed))
        return ClassificationTask(self.title, read_labelled(self.place, seed), fit, self.head)
