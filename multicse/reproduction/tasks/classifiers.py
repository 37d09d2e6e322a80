"""Classifiers on frozen embeddings as in SentEval (Conneau and Kiela 2018), trained simultaneously.

Nested 10-fold cross-validation with four L2 strengths trains 400 small models, which differ only in training rows and L2.
They are columns of one weight matrix: a step is one matrix product, and a mask selects the rows of the minibatch for each
model. A model that stops early is removed from the matrix.

Two differences to the toolkit change scores by no more than a different seed: all models share shuffled minibatches in which
the expected number of rows of a model is `Protocol.batch`, and the random number generator differs. A third difference, the
default, does change scores: see `Protocol.last_fit`. Classifiers with a hidden layer (SG-BERT's Table 4) use scikit-learn
with the same protocol.
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
from torch import Tensor, nn

from multicse.evaluation.task import EvaluationError

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {  # torch's defaults, as in SentEval
    "adam": lambda weights: torch.optim.Adam(weights, fused=True),
    "rmsprop": torch.optim.RMSprop,
}
LOGITS = 2**21  # computed at a time; more do not fit in the cache
_Model = TypeVar("_Model")


@dataclass(frozen=True)
class Protocol:
    """Training of a classifier and selection of its L2; the defaults are SentEval's setting for published numbers."""

    kfold: int = 10
    optimizer: str = "adam"
    batch: int = 64
    tenacity: int = 5
    """Rounds without improvement, counted over the whole fit; the fit ends at the next one, and the best round is kept."""
    epoch_size: int = 4
    """Epochs per round; dev accuracy is computed after each round."""
    nhid: int = 0
    """Hidden units (Linear-Sigmoid-Linear, with Adam); 0 is logistic regression."""
    max_epochs: int = 200
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    seed: int = 1111
    last_fit: Literal["all", "held_out"] = "all"
    """Training of the tested classifier after k-fold has selected L2.

    all: on all training rows, for the mean number of epochs of the inner fits with this L2. held_out, as in the toolkit:
    early stopping on 5 % of the rows (170 of CR). An accuracy over so few rows fluctuates, so the best round is often an
    early one, which costs 0.3 to 0.8 points on MR, CR, SUBJ and MPQA, and several points on smaller sets.
    """

    def __post_init__(self) -> None:
        if self.nhid < 0 or (self.nhid and self.optimizer != "adam"):
            raise EvaluationError(
                f"nhid={self.nhid} with optimizer={self.optimizer!r} is invalid: use nhid=0, or at least 1 unit with adam"
            )

    def replace(self, **changes: Any) -> Protocol:
        """Return the protocol with other values, for example ``nhid=50`` for SG-BERT's Table 4."""
        return dataclasses.replace(self, **changes)


class Classifiers(NamedTuple):
    """M trained classifiers."""

    predict: Callable[[np.ndarray], np.ndarray]
    """Function from features (N, d) to classes (N, M)."""
    dev: np.ndarray
    """Best accuracy (M,) on the dev rows of each classifier, from 0 to 1."""
    epochs: np.ndarray
    """Number of epochs (M,) of each classifier."""


def fit(
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    dev: np.ndarray,
    l2: np.ndarray,
    protocol: Protocol,
    epochs: np.ndarray | None = None,
) -> Classifiers:
    """Train M classifiers simultaneously.

    Args:
        x: Features, (N, d).
        y: Classes 0, 1, ..., (N,).
        train: Training rows of each classifier, (N, M) booleans. Rows of no classifier are in no minibatch.
        dev: Dev rows for early stopping of each classifier, (N, M) booleans.
        l2: L2 strengths, (M,).
        protocol: Protocol of training.
        epochs: Numbers of epochs, (M,), without early stopping. If None, `dev` stops each classifier.
    """
    if protocol.nhid:
        return _fit_hidden(x, y, train, dev, l2, protocol, epochs)
    inputs, labels = _with_bias(x), torch.from_numpy(np.asarray(y, dtype=np.int64))
    used = np.flatnonzero(train.any(1))
    size = max(1, round(protocol.batch / train[used].mean()))
    strengths = torch.from_numpy(np.asarray(l2, dtype=np.float32))
    run = _Fit(inputs, labels, torch.from_numpy(train), torch.from_numpy(dev), strengths, protocol)
    lengths = None if epochs is None else torch.from_numpy(epochs)
    weight, accuracies, trained = run.run(torch.from_numpy(used), size, lengths)

    def predict(x: np.ndarray) -> np.ndarray:
        rows = _with_bias(x).split(max(1, LOGITS // weight[0].numel()))
        return torch.cat([_logits(weight, block).max(1)[1] for block in rows]).numpy()

    return Classifiers(predict, accuracies, trained)


class _Fit:
    """Models in training; weights (d + 1, C, M), masks and optimizer states of stopped models are dropped."""

    def __init__(self, x: Tensor, y: Tensor, train: Tensor, dev: Tensor, l2: Tensor, protocol: Protocol) -> None:
        classes = int(y.max()) + 1
        self.x, self.y, self.train, self.dev, self.l2, self.protocol = x, y, train, dev, l2, protocol
        self.onehot = torch.eye(classes)
        self.random = torch.Generator().manual_seed(protocol.seed)
        bound = 1 / math.sqrt(x.shape[1] - 1)  # initialisation of nn.Linear, equal for all models
        weight = torch.empty(x.shape[1], classes).uniform_(-bound, bound, generator=self.random)
        self.weight = weight[:, :, None].repeat(1, 1, len(l2))
        self.optimizer = OPTIMIZERS[protocol.optimizer]([self.weight])

    @torch.no_grad()
    def run(self, rows: Tensor, size: int, lengths: Tensor | None) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Train on minibatches of `rows` until every model has stopped, by dev accuracy or after `lengths` (M,) epochs.

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
        """Update the weights on the rows `batch` (B,), with the gradient in closed form."""
        x = self.x[batch]
        share = self.train[batch].float()
        share /= share.sum(0).clamp(min=1)  # mean over the rows of a model; a small last batch may have none
        logits = _logits(self.weight, x)
        error = logits.softmax(1).sub_(self.onehot[self.y[batch]][:, :, None]).mul_(share[:, None])  # (B, C, M)
        self.weight.grad = (x.T @ error.flatten(1)).view_as(self.weight).addcmul_(self.weight, self.l2)
        self.optimizer.step()

    def _correct(self) -> Tensor:
        """Return the number of correct dev rows of each model (M,)."""
        rows = self.dev.any(1).nonzero().flatten()
        counts = torch.zeros(self.dev.shape[1], dtype=torch.long)
        for block in rows.split(max(1, LOGITS // self.weight[0].numel())):
            predicted = _logits(self.weight, self.x[block]).max(1)[1]
            counts += ((predicted == self.y[block][:, None]) & self.dev[block]).sum(0)
        return counts

    def _keep(self, models: Tensor) -> None:
        """Drop all models except `models`, (M,) booleans."""
        self.train, self.dev, self.l2 = self.train[:, models], self.dev[:, models], self.l2[models]
        old, self.weight = self.weight, self.weight[..., models].contiguous()
        state = self.optimizer.state.pop(old)
        self.optimizer.state[self.weight] = {
            name: value[..., models].contiguous() if value.shape == old.shape else value for name, value in state.items()
        }
        self.optimizer.param_groups[0]["params"] = [self.weight]


def _logits(weight: Tensor, x: Tensor) -> Tensor:
    """Return logits (B, C, M) of x (B, d + 1) with weights (d + 1, C, M)."""
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
    """Train classifiers with a hidden layer one after the other, with scikit-learn; arguments as `fit`."""
    from threadpoolctl import threadpool_limits

    lengths = [None] * len(l2) if epochs is None else epochs.tolist()
    jobs = zip(train.T, dev.T, l2.tolist(), lengths, strict=True)
    with threadpool_limits(1):  # threads slow down products this small
        models, scores, trained = zip(*(_train_hidden(x, y, *job, protocol) for job in jobs), strict=True)
    return Classifiers(lambda x: np.stack([m.predict(x) for m in models], 1), np.asarray(scores), np.asarray(trained))


def _train_hidden(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, dev: np.ndarray, l2: float, length: int | None, protocol: Protocol
) -> tuple[MLPClassifier, float, int]:
    """Return the model of the best round, or after `length` epochs, with its dev accuracy and number of epochs."""
    from sklearn.neural_network import MLPClassifier

    # scikit-learn divides the penalty by the size of the minibatch
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
    """Train a model with early stopping.

    Args:
        model: Model that `epoch` trains.
        epoch: Function that trains for one epoch.
        dev: Function that returns the dev score, called after every round.
        protocol: Length of rounds and limits.

    Returns:
        Model of the best round, its dev score, and the number of epochs.
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


def fit_module(
    make: Callable[[], nn.Module],
    x: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    dev: Callable[[nn.Module], float],
    protocol: Protocol,
) -> tuple[nn.Module, float, int]:
    """Train a module by `best_round`, with its optimizer, on shuffled minibatches; without L2.

    Args:
        make: Function that returns the module with new weights.
        x: Features, (N, d).
        targets: Targets, (N, ...).
        loss: Function of outputs and targets of a minibatch.
        dev: Function of the module that returns the dev score.
        protocol: Protocol of training; its seed determines weights and order.
    """
    order = torch.Generator().manual_seed(protocol.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(protocol.seed)
        model = make()
    optimizer = OPTIMIZERS[protocol.optimizer](list(model.parameters()))

    def epoch() -> None:
        for rows in torch.randperm(len(x), generator=order).split(protocol.batch):
            optimizer.zero_grad()
            loss(model(x[rows]), targets[rows]).backward()
            optimizer.step()

    return best_round(model, epoch, lambda: dev(model), protocol)
