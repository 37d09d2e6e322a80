"""Classifiers on frozen vectors, trained by SentEval's protocol (Conneau and Kiela 2018), many of them at once.

Nested 10-fold with four L2 strengths is 400 small models. They differ in the rows they learn from and in their L2 only,
so all of them are columns of one weight matrix: a step is one matrix product, and a mask says which rows of the
minibatch a model learns from. A model that stops early leaves the matrix.

Two things differ from the toolkit, and change the numbers by no more than another seed does: all models see the same
shuffled minibatches, of a size at which a model's expected share is `Protocol.batch` rows (the toolkit draws an order
for each model, in batches of exactly that size), and the random numbers are another stream. Initial weights are the same
for all models, as they are in the toolkit, which seeds each classifier alike. Loss (mean over a model's own rows), L2 in
the gradient (biases included), stopping and choice of L2 are the toolkit's. A third does change them, is the default,
and can be turned off: see `Protocol.last_fit`.

With a hidden layer (SG-BERT's Table 4) the matrix is not three times as fast as one classifier after the other, so these are
scikit-learn's, in the same protocol.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.task import EvaluationError

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {  # torch's defaults, as in SentEval
    "adam": lambda weights: torch.optim.Adam(weights, fused=True),
    "rmsprop": torch.optim.RMSprop,
}
OUTER_SEED = 1111  # of the folds that are tested on; SentEval fixes it whatever the classifier's seed is
HELD_OUT = 0.05  # of the training rows, for stopping the last fit
WEIGHTS = 2**20  # in one matrix, at most: larger ones leave the cache


@dataclass(frozen=True)
class Protocol:
    """How a classifier is trained and its L2 chosen; the defaults are SentEval's setting for published numbers.

    `nhid` hidden units (0 is logistic regression; the hidden layer is Linear-Sigmoid-Linear, always with Adam). Dev accuracy
    is taken every `epoch_size` epochs; the count of rounds without improvement is never set back, and the fit ends at the
    round after it has reached `tenacity`, or past `max_epochs`. The best round's weights are kept.

    `last_fit` is how the classifier that is tested, after k-fold has chosen its L2, is trained. "all": on all training
    rows, for as long as the inner fits of that L2 took on average; this takes an optimizer that is steady at the end, as
    Adam is here. "held_out", the toolkit's: 5 % of the rows (170 of CR's) are kept out and stop it. An accuracy over so
    few rows goes up and down by chance, so the best round is often an early one: it costs 0.3 to 0.8 points on MR, CR,
    SUBJ and MPQA, and several on smaller sets.
    """

    kfold: int = 10
    optimizer: str = "adam"
    batch: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    nhid: int = 0
    max_epochs: int = 200
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    seed: int = 1111
    last_fit: Literal["all", "held_out"] = "all"

    def __post_init__(self) -> None:
        if self.nhid < 0 or (self.nhid and self.optimizer != "adam"):
            raise EvaluationError(
                f"a hidden layer is of at least 1 unit and trained by Adam, not {self.nhid} and {self.optimizer}"
            )

    def replace(self, **changes: Any) -> Protocol:
        """The same protocol with other values.

        ``TEST.replace(nhid=50)`` is that of SG-BERT's Table 4.
        """
        return dataclasses.replace(self, **changes)


TEST = Protocol()
RELEASED = Protocol(last_fit="held_out")  # to the letter what SentEval does
# SentEval's prototyping setting. On features with a large common offset RMSprop at its rate of .01 swings from epoch to
# epoch: after a fixed number of them MRPC gave 57 to 72 by the seed, its majority class 66. Rows kept out must stop it.
FAST = RELEASED.replace(kfold=5, optimizer="rmsprop", batch=128, tenacity=3, epoch_size=2)
TWO_FOLD = RELEASED.replace(kfold=2, epoch_size=10)  # what GCLSR's code sets
PRESETS = {"test": TEST, "released": RELEASED, "fast": FAST, "two-fold": TWO_FOLD}


class Classifiers(NamedTuple):
    """M trained classifiers: `predict` takes x (N, d) to classes (N, M); `dev` (M,) is the best accuracy on the rows that
    stopped each, in 0..1, and `epochs` (M,) how long each was trained."""

    predict: Callable[[np.ndarray], np.ndarray]
    dev: np.ndarray
    epochs: np.ndarray


# -------------------------------------------------------------------------------------------------------------- fitting


def fit(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    l2: np.ndarray,
    protocol: Protocol,
    epochs: np.ndarray | None = None,
) -> Classifiers:
    """M classifiers of x (N, d) into y (N,) of 0, 1, ..., all at once.

    Model m learns from the rows where `train` (N, M) is true, with strength l2 (M,), and is stopped by its accuracy on
    the rows where `dev` (N, M) is true; with `epochs` (M,) it is trained for that long and `dev` is not looked at. Rows
    that no model learns from are in no minibatch.
    """
    if protocol.nhid:
        return _fit_hidden(x, y, train, dev, l2, protocol, epochs)
    inputs, labels = _with_bias(x), torch.from_numpy(np.asarray(y, dtype=np.int64))
    used = np.flatnonzero(train.any(1))
    size = max(1, round(protocol.batch / train[used].mean()))
    classes = int(labels.max()) + 1
    at_once = max(1, WEIGHTS // (inputs.shape[1] * classes))
    parts = []
    for start in range(0, train.shape[1], at_once):
        models = slice(start, start + at_once)
        masks = [torch.from_numpy(np.ascontiguousarray(mask[:, models])) for mask in (train, dev)]
        strengths = torch.from_numpy(np.asarray(l2[models], dtype=np.float32))
        lengths = None if epochs is None else torch.from_numpy(epochs[models])
        part = _Fit(inputs, labels, masks[0], masks[1], strengths, classes, protocol)
        parts.append(part.run(torch.from_numpy(used), size, lengths))
    weights, accuracies, trained = zip(*parts, strict=True)
    weight = torch.cat(weights, -1)

    def predict(x: np.ndarray) -> np.ndarray:
        return torch.cat([_logits(weight, rows).max(1)[1] for rows in _with_bias(x).split(_block(weight))]).numpy()

    return Classifiers(predict, np.concatenate(accuracies), np.concatenate(trained))


class _Fit:
    """Models in training; the weights (d + 1, C, M), masks and optimizer state of those that stopped are dropped."""

    def __init__(
        self, x: Tensor, y: Tensor, train: Tensor, dev: Tensor, l2: Tensor, classes: int, protocol: Protocol
    ) -> None:
        self.x, self.y, self.train, self.dev, self.l2, self.protocol = x, y, train, dev, l2, protocol
        self.onehot = torch.eye(classes)
        self.random = torch.Generator().manual_seed(protocol.seed)
        bound = 1 / math.sqrt(x.shape[1] - 1)  # what nn.Linear begins with, bias included, for all models the same
        weight = torch.empty(x.shape[1], classes).uniform_(-bound, bound, generator=self.random)
        self.weight = weight[:, :, None].repeat(1, 1, len(l2))
        self.optimizer = OPTIMIZERS[protocol.optimizer]([self.weight])

    @torch.no_grad()
    def run(self, rows: Tensor, size: int, lengths: Tensor | None = None) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Train on minibatches of `size` of `rows` until every model has stopped, or for `lengths` (M,) epochs.

        Returns weights (d + 1, C, M) with the bias last, dev accuracies (M,) and epochs (M,).
        """
        protocol, count = self.protocol, len(self.l2)
        best = self.weight.clone()
        correct, misses, epochs = torch.full((count,), -1), torch.zeros(count), torch.zeros(count, dtype=torch.long)
        alive, dev_rows = torch.arange(count), self.dev.sum(0).double()
        for _ in range(protocol.max_epochs // protocol.epoch_size + 1):
            for _ in range(protocol.epoch_size):
                for batch in rows[torch.randperm(len(rows), generator=self.random)].split(size):
                    self._step(batch)
            epochs[alive] += protocol.epoch_size
            now = self._correct() if lengths is None else torch.zeros(len(alive), dtype=torch.long)
            better = now > correct[alive] if lengths is None else torch.ones(len(alive), dtype=torch.bool)
            best[..., alive[better]] = self.weight[..., better]
            correct[alive[better]] = now[better]
            stops = ~better & (misses[alive] >= protocol.tenacity) if lengths is None else epochs[alive] >= lengths[alive]
            misses[alive] += ~better
            if stops.any():
                alive = alive[~stops]
                self._keep(~stops)
            if not len(alive):
                break
        return best, (correct / dev_rows).numpy(), epochs.numpy()

    def _step(self, batch: Tensor) -> None:
        """One step of the optimizer on rows `batch` (B,), the gradient in closed form."""
        x = self.x[batch]
        share = self.train[batch].float()
        share /= share.sum(0).clamp(min=1)  # the mean over a model's own rows; none at all in a last, small batch
        logits = _logits(self.weight, x)
        error = logits.softmax(1).sub_(self.onehot[self.y[batch]][:, :, None]).mul_(share[:, None])  # (B, C, M)
        self.weight.grad = (x.T @ error.flatten(1)).view_as(self.weight).addcmul_(self.weight, self.l2)
        self.optimizer.step()

    def _correct(self) -> Tensor:
        """How many of its dev rows each model gets right (M,)."""
        rows = self.dev.any(1).nonzero().flatten()
        counts = torch.zeros(self.dev.shape[1], dtype=torch.long)
        for block in rows.split(_block(self.weight)):
            predicted = _logits(self.weight, self.x[block]).max(1)[1]
            counts += ((predicted == self.y[block][:, None]) & self.dev[block]).sum(0)
        return counts

    def _keep(self, models: Tensor) -> None:
        """Go on with some of the models only."""
        self.train, self.dev, self.l2 = self.train[:, models], self.dev[:, models], self.l2[models]
        old, self.weight = self.weight, self.weight[..., models].contiguous()
        state = self.optimizer.state.pop(old)
        self.optimizer.state[self.weight] = {
            name: value[..., models].contiguous() if value.shape == old.shape else value for name, value in state.items()
        }
        self.optimizer.param_groups[0]["params"] = [self.weight]


def _logits(weight: Tensor, x: Tensor) -> Tensor:
    """(B, C, M) of x (B, d + 1) under weights (d + 1, C, M)."""
    return (x @ weight.flatten(1)).view(len(x), *weight.shape[1:])


def _with_bias(x: np.ndarray) -> Tensor:
    rows = torch.from_numpy(np.asarray(x, dtype=np.float32))
    return torch.cat([rows, torch.ones(len(rows), 1)], 1)


def _block(weight: Tensor) -> int:
    """Rows to score at a time, so that what they give stays within a few MB."""
    return max(1, 2 * WEIGHTS // weight[0].numel())


def _fit_hidden(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    l2: np.ndarray,
    protocol: Protocol,
    epochs: np.ndarray | None,
) -> Classifiers:
    """`fit` with a hidden layer: scikit-learn's, one after the other, as each has an order of its own."""
    from threadpoolctl import threadpool_limits

    lengths = [None] * len(l2) if epochs is None else epochs.tolist()
    jobs = zip(train.T, dev.T, l2.tolist(), lengths, strict=True)
    with threadpool_limits(1):  # more threads cost more than such small products take
        models, scores, trained = zip(*(_train_hidden(x, y, *job, protocol) for job in jobs), strict=True)
    return Classifiers(lambda x: np.stack([m.predict(x) for m in models], 1), np.asarray(scores), np.asarray(trained))


def _train_hidden(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, dev: np.ndarray, l2: float, length: int | None, protocol: Protocol
) -> tuple[MLPClassifier, float, int]:
    """The model, its accuracy on the dev rows, and its epochs; with `length` the last round, else the best."""
    from sklearn.neural_network import MLPClassifier

    # its penalty is divided by the rows of a minibatch
    settings = {"activation": "logistic", "alpha": l2 * protocol.batch, "batch_size": protocol.batch}
    model = MLPClassifier((protocol.nhid,), random_state=protocol.seed, **settings)
    best, score, misses, epochs = model, -1.0, 0, 0
    while epochs <= protocol.max_epochs:
        for _ in range(protocol.epoch_size):
            model.partial_fit(x[train], y[train], classes=np.unique(y))
        epochs += protocol.epoch_size
        if length is not None:
            if epochs >= length:
                break
        elif (now := float(model.score(x[dev], y[dev]))) > score:
            best, score = copy.deepcopy(model), now
        elif misses >= protocol.tenacity:
            break
        else:
            misses += 1
    return best, score, epochs


# ------------------------------------------------------------------------------------------------------------ protocols


class Result(NamedTuple):
    """Accuracy in points on what was never trained on, and how it came about.

    `dev` is the accuracy at which the L2 was chosen; `l2` and `folds` (strength and accuracy) are those of every outer
    fold, or of the one split; `predicted` are the classes of the test rows (of all rows, in nested k-fold).
    """

    accuracy: float
    dev: float
    l2: list[float]
    folds: list[float]
    epochs: list[int]
    predicted: np.ndarray

    def details(self) -> dict[str, Any]:
        """What a report shows beside the accuracy."""
        return {"dev_accuracy": self.dev, "l2": self.l2, "folds": self.folds, "epochs": self.epochs}


def run(x: dict[str, np.ndarray], y: dict[str, np.ndarray], protocol: Protocol) -> Result:
    """SentEval's protocol for the parts there are, with features x (N, d) and classes y (N,) of 0, 1, ... by part.

    "all": nested k-fold. "train" and "test": the L2 by k-fold on train. "train", "dev" and "test": the L2, and when to
    stop, by dev.
    """
    if "all" in x:
        return nested(x["all"], y["all"], protocol)
    if "dev" in x:
        return split(x, y, protocol)
    return kfold(x, y, protocol)


def nested(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> Result:
    """Outer folds are tested on; inner folds, of the other rows, choose the L2 (SentEval's InnerKFoldClassifier)."""
    outer = list(folds(y, protocol.kfold, OUTER_SEED))
    inner = [(rest[a], rest[b]) for rest, _ in outer for a, b in folds(y[rest], protocol.kfold, OUTER_SEED)]
    choice = _choose(x, y, inner, len(outer), protocol)
    final = _last_fit(x, y, [rest for rest, _ in outer], choice, protocol)
    votes, predicted = final.predict(x), np.zeros(len(y), dtype=np.int64)
    for fold, (_, test) in enumerate(outer):
        predicted[test] = votes[test, fold]
    scores = [accuracy(y[test], predicted[test]) for _, test in outer]
    return _result(choice, scores, final, predicted)


def kfold(x: dict[str, np.ndarray], y: dict[str, np.ndarray], protocol: Protocol) -> Result:
    """k-fold on train chooses the L2, a last fit on train is tested (SentEval's KFoldClassifier)."""
    learned, labels = x["train"], y["train"]
    choice = _choose(learned, labels, list(folds(labels, protocol.kfold, protocol.seed)), 1, protocol)
    final = _last_fit(learned, labels, [np.arange(len(labels))], choice, protocol)
    predicted = final.predict(x["test"])[:, 0]
    return _result(choice, [accuracy(y["test"], predicted)], final, predicted)


def split(x: dict[str, np.ndarray], y: dict[str, np.ndarray], protocol: Protocol) -> Result:
    """One fit per L2 on train, the best on dev is tested (SentEval's SplitClassifier, which fits that one again)."""
    both, labels = np.concatenate([x["train"], x["dev"]]), np.concatenate([y["train"], y["dev"]])
    learned = len(y["train"])
    pair = (np.arange(learned), np.arange(learned, len(labels)))
    strengths = np.asarray(protocol.l2)
    train, dev = _masks([pair] * len(strengths), len(labels))
    fitted = fit(both, labels, train, dev, strengths, protocol)
    best = int(np.argmax(_points(fitted.dev)))
    predicted = fitted.predict(x["test"])[:, best]
    score = accuracy(y["test"], predicted)
    return Result(score, 100 * float(fitted.dev[best]), [protocol.l2[best]], [score], [int(fitted.epochs[best])], predicted)


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Share of equal labels (N,), in points."""
    return 100 * float(np.mean(gold == predicted))


def folds(y: np.ndarray, k: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Stratified k-fold: rows to learn from, rows left out."""
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(k, shuffle=True, random_state=seed).split(np.zeros(len(y)), y)


def hold_out(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from, and the 5 % that stop the last fit, drawn as the toolkit draws them."""
    order = np.random.RandomState(seed).permutation(len(rows))
    count = int(HELD_OUT * len(rows))
    return rows[order[count:]], rows[order[:count]]


def fewest_rows(protocol: Protocol, nesting: int) -> int:
    """How many rows of a class `nesting` levels of k-fold need so that every fold has one (0 levels: 1 row)."""
    least = 1
    for _ in range(nesting):
        least = max(protocol.kfold, math.ceil(least * protocol.kfold / (protocol.kfold - 1)))
    return least


class _Choice(NamedTuple):
    """Of each group of inner folds: dev accuracy in points, the L2 that reached it, mean epochs of its fits."""

    dev: list[float]
    l2: list[float]
    epochs: np.ndarray


def _choose(
    x: np.ndarray, y: np.ndarray, pairs: Sequence[tuple[np.ndarray, np.ndarray]], groups: int, protocol: Protocol
) -> _Choice:
    """The L2 best on average in each of `groups` equal runs of (train, dev) `pairs`."""
    strengths = np.asarray(protocol.l2)
    train, dev = (np.repeat(mask, len(strengths), axis=1) for mask in _masks(pairs, len(y)))
    fitted = fit(x, y, train, dev, np.tile(strengths, len(pairs)), protocol)
    scores, epochs = (part.reshape(groups, -1, len(strengths)).mean(1) for part in (fitted.dev, fitted.epochs))
    scores, best = _points(scores), _points(scores).argmax(1)
    group = np.arange(groups)
    return _Choice(scores[group, best].tolist(), strengths[best].tolist(), epochs[group, best])


def _last_fit(x: np.ndarray, y: np.ndarray, rows: list[np.ndarray], choice: _Choice, protocol: Protocol) -> Classifiers:
    """The classifiers to be tested, one for each group of training `rows`."""
    strengths = np.asarray(choice.l2)
    if protocol.last_fit == "held_out":
        return fit(x, y, *_masks([hold_out(group, protocol.seed) for group in rows], len(y)), strengths, protocol)
    nothing = np.zeros(0, dtype=np.int64)
    lengths = protocol.epoch_size * np.round(choice.epochs / protocol.epoch_size).astype(np.int64)
    return fit(x, y, *_masks([(group, nothing) for group in rows], len(y)), strengths, protocol, lengths)


def _result(choice: _Choice, scores: list[float], final: Classifiers, predicted: np.ndarray) -> Result:
    return Result(float(np.mean(scores)), float(np.mean(choice.dev)), choice.l2, scores, final.epochs.tolist(), predicted)


def _points(share: np.ndarray) -> np.ndarray:
    """In points with two decimals, in which the toolkit compares strengths; the first of equals, the weakest, wins."""
    return np.round(100 * share.astype(np.float64), 2)


def _masks(pairs: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, len(pairs)) of train and of dev."""
    train, dev = np.zeros((rows, len(pairs)), dtype=bool), np.zeros((rows, len(pairs)), dtype=bool)
    for column, (learn, stop) in enumerate(pairs):
        train[learn, column] = True
        dev[stop, column] = True
    return train, dev
