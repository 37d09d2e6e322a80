"""Classifiers on frozen vectors, many of them at once, as SentEval trains them (Conneau and Kiela 2018).

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.task import EvaluationError

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {  # torch's defaults, as in SentEval
    "adam": lambda weights: torch.optim.Adam(weights, fused=True),
    "rmsprop": torch.optim.RMSprop,
}
LOGITS = 2**21  # of rows that are scored at a time: more leave the cache
_Model = TypeVar("_Model")


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
        """The same protocol with other values; ``nhid=50`` is that of SG-BERT's Table 4."""
        return dataclasses.replace(self, **changes)


class Classifiers(NamedTuple):
    """M trained classifiers: `predict` takes x (N, d) to classes (N, M); `dev` (M,) is the best accuracy on the rows that
    stopped each, in 0..1, and `epochs` (M,) how long each was trained."""

    predict: Callable[[np.ndarray], np.ndarray]
    dev: np.ndarray
    epochs: np.ndarray


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
    masks = [torch.from_numpy(mask) for mask in (train, dev)]
    strengths = torch.from_numpy(np.asarray(l2, dtype=np.float32))
    run = _Fit(inputs, labels, masks[0], masks[1], strengths, int(labels.max()) + 1, protocol)
    lengths = None if epochs is None else torch.from_numpy(epochs)
    weight, accuracies, trained = run.run(torch.from_numpy(used), size, lengths)

    def predict(x: np.ndarray) -> np.ndarray:
        rows = _with_bias(x).split(max(1, LOGITS // weight[0].numel()))
        return torch.cat([_logits(weight, block).max(1)[1] for block in rows]).numpy()

    return Classifiers(predict, accuracies, trained)


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
        for block in rows.split(max(1, LOGITS // self.weight[0].numel())):
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

    def epoch() -> None:
        model.partial_fit(x[train], y[train], classes=np.unique(y))

    if length is None:
        return best_round(model, epoch, lambda: float(model.score(x[dev], y[dev])), protocol)
    length = max(length, protocol.epoch_size)
    for _ in range(length):
        epoch()
    return model, -1.0, length


def best_round(
    model: _Model, epoch: Callable[[], None], dev: Callable[[], float], protocol: Protocol
) -> tuple[_Model, float, int]:
    """Train `model` by calls of `epoch`, and look at `dev` after every round of them, until the protocol says stop.

    Returns the model of the best round, its score on dev, and how many epochs were run.
    """
    best, score, misses, epochs = model, -math.inf, 0, 0
    while epochs <= protocol.max_epochs:
        for _ in range(protocol.epoch_size):
            epoch()
        epochs += protocol.epoch_size
        if (now := dev()) > score:
            best, score = copy.deepcopy(model), now
        elif misses >= protocol.tenacity:
            break
        else:
            misses += 1
    return best, score, epochs
