"""SentEval's regression for rated pairs: a model on pair features, fitted to training ratings.

The original SentEval reports this as "STS-B" and "SICK-R": Pearson's correlation of a regressor on frozen embeddings. SimCSE
and later papers report the correlation of the cosine under the same names; the two are not comparable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from multicse.evaluation.kind import Family
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up
from multicse.evaluation.tasks.classification import pair_features
from multicse.evaluation.tasks.sts import Pairs, PairTask, correlations, spearman
from multicse.reproduction.tasks.classifiers import Protocol, fit_module

SETS = {  # training, development and test pairs
    "stsb-regression": ("stsb-train", "stsb-dev", "stsb-test"),
    "sickr-regression": ("sickr-train", "sickr-dev", "sickr"),
}
CLASSES = 5
ROUNDS = Protocol(epoch_size=50, max_epochs=1000, tenacity=3)
ROUNDING = 1e-5  # float32 rounding error of a rating


class RelatednessTask:
    """Pearson (primary), Spearman and mean squared error of a regressor on pair features; correlations in points.

    Protocol of SentEval's toolkit: features [|u - v|, u * v], ratings as distributions over five classes, a linear layer
    with softmax, mean squared error, Adam (learning rate 1e-3, batch size 64), rounds of 50 epochs.

    Args:
        name: Name of the task.
        train: Training pairs.
        dev: Development pairs.
        test: Test pairs.
        seed: Seed of weights and order.
        hidden: Width of a layer with GELU before the linear layer; 0, as in the toolkit, for none.
    """

    primary = "pearson"

    def __init__(self, name: str, train: Pairs, dev: Pairs, test: Pairs, *, seed: int = 1111, hidden: int = 0) -> None:
        self.name = name
        self.seed, self.hidden = seed, hidden
        self.parts = {"train": train, "dev": dev, "test": test}
        for part, pairs in self.parts.items():
            if min(pairs.gold) < 0 or max(pairs.gold) > CLASSES:
                raise EvaluationError(
                    f"task {name}, {part}: ratings range from {min(pairs.gold):g} to {max(pairs.gold):g}, not within 0 to "
                    f"{CLASSES}; rescale the ratings"
                )

    @property
    def gold(self) -> np.ndarray:
        """Return the ratings (N,) of the test pairs."""
        return np.asarray(self.parts["test"].gold)

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the pairs and ratings of the three splits."""
        hashes = "".join(PairTask(part, pairs).hash for part, pairs in self.parts.items())
        return hashlib.sha256(hashes.encode()).hexdigest()

    def sentences(self) -> list[str]:
        """Return the distinct sentences of the three splits."""
        return list(dict.fromkeys(text for pairs in self.parts.values() for text in (*pairs.first, *pairs.second)))

    def score(self, encoder: Encoder) -> Score:
        """Return ``pearson``, ``spearman`` and ``mse`` on test, details, and the predicted ratings (N,)."""
        sides = [side for pairs in self.parts.values() for side in (pairs.first, pairs.second)]
        u = [vectors.astype(np.float32) for vectors in look_up(encoder, *sides)]
        features = {part: torch.from_numpy(pair_features(*u[2 * i : 2 * i + 2])) for i, part in enumerate(self.parts)}
        gold = {part: np.asarray(pairs.gold) for part, pairs in self.parts.items()}
        model, dev_spearman, epochs = fit(
            features["train"], gold["train"], features["dev"], gold["dev"], self.seed, self.hidden
        )
        guess = expected_rating(features["test"], model)
        if np.ptp(guess) < ROUNDING:  # constant predictions have no correlation
            guess = np.full_like(guess, guess.mean())
        metrics = correlations(self.name, guess, gold["test"])
        metrics["mse"] = float(np.mean((guess - gold["test"]) ** 2))
        details = {f"{part}_pairs": len(pairs) for part, pairs in self.parts.items()}
        details |= {"skipped": sum(pairs.skipped for pairs in self.parts.values()), "hidden": self.hidden}
        return Score(metrics, {"dev_spearman": dev_spearman, "epochs": epochs, **details}, guess)


def rating_distribution(ratings: np.ndarray) -> Tensor:
    """Convert ratings y (N,) to distributions (N, 5) over the classes 1 to 5.

    p[floor(y) + 1] = y - floor(y) and p[floor(y)] = floor(y) - y + 1, so that the mean of p is y. As in SentEval, a rating
    below 1 (STS-B) has only the part of class 1: its row sums to y, and no class represents 0.

    References:
        Tai, Socher and Manning 2015, section 5.2.
    """
    y = torch.as_tensor(ratings, dtype=torch.float64)
    low = y.floor()
    classes = torch.arange(1, CLASSES + 1)
    p = (classes == low[:, None]) * (low - y + 1)[:, None] + (classes == low[:, None] + 1) * (y - low)[:, None]
    return p.float()


@torch.no_grad()
def expected_rating(features: Tensor, model: nn.Module) -> np.ndarray:
    """Return the mean predicted ratings (N,) of pairs.

    Args:
        features: Pair features, (N, f).
        model: Model that returns logits (N, 5).
    """
    classes = torch.arange(1, CLASSES + 1, dtype=torch.float64)
    return (model(features).softmax(1).double() @ classes).numpy()


def fit(
    train: Tensor, ratings: np.ndarray, dev: Tensor, dev_ratings: np.ndarray, seed: int, hidden: int = 0
) -> tuple[nn.Module, float, int]:
    """Fit a regressor; Spearman's correlation on dev selects the round.

    Args:
        train: Training features, (N, f).
        ratings: Training ratings, (N,).
        dev: Development features, (M, f).
        dev_ratings: Development ratings, (M,).
        seed: Seed of weights and order.
        hidden: Width of the hidden layer; 0 for none.

    Returns:
        Model of the best round (returns logits), its Spearman correlation on dev, and the number of epochs.
    """

    def make() -> nn.Module:
        if not hidden:
            return nn.Linear(train.shape[1], CLASSES)
        return nn.Sequential(nn.Linear(train.shape[1], hidden), nn.GELU(), nn.Linear(hidden, CLASSES))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(logits.softmax(1), targets)

    def on_dev(model: nn.Module) -> float:
        value = spearman(expected_rating(dev, model), dev_ratings)
        return 0.0 if np.isnan(value) else value

    return fit_module(make, train, rating_distribution(ratings), loss, on_dev, ROUNDS.replace(seed=seed))


class Regression(Family):
    """SentEval's regression."""

    family: Literal["regression"] = "regression"
    names: ClassVar[tuple[str, ...]] = tuple(SETS)
    hidden: int = Field(0, ge=0)
    """Width of a layer before the linear layer; 0, as in the toolkit, for none."""

    @classmethod
    def found(cls, folder: Path, pairs: Sequence[str]) -> list[str]:
        """Return the tasks whose three sets of pairs exist."""
        return [name for name, parts in SETS.items() if all(part in pairs for part in parts)]

    def make(self, name: str, data: str | Path | None, pairs: Callable[[str], Any], seed: int) -> Task:
        """Return the task."""
        train, dev, test = (pairs(part).pairs for part in SETS[name])
        return RelatednessTask(name, train, dev, test, seed=seed, hidden=self.hidden)
