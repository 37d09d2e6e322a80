"""SentEval's trained mode for rated pairs: a model on pair features, fitted to the training ratings.

This is what "STS-B" and "SICK-R" mean in the original SentEval: not the cosine's correlation (which is what SimCSE and
its followers report under the same names), but Pearson of a regressor on top of frozen vectors. Never mix the two.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up
from multicse.evaluation.tasks.classification import pair_features
from multicse.evaluation.tasks.sts import Pairs, PairTask, correlations, spearman
from multicse.reproduction.tasks.classifiers import Protocol, best_round

CLASSES = 5
BATCH = 64
ROUNDS = Protocol(epoch_size=50, max_epochs=1000, tenacity=3)
RATE = 1e-3
ROUNDING = 1e-5  # what float32 may add to a rating


class RelatednessTask:
    """Pearson (headline), Spearman and mean squared error on `test` of a model fitted to `train`, stopped by `dev`.

    The protocol of SentEval's toolkit: features [|u - v|, u * v], ratings as distributions over five classes, a linear
    layer with softmax fitted by mean squared error and Adam (rate 1e-3, batches of 64); after every 50 epochs Spearman
    on dev, the best round is kept, the fourth round without a gain ends it. Correlations in points.

    `hidden` is the width of a layer with GELU before the linear one (0: none, as in the toolkit).
    """

    primary = "pearson"

    def __init__(self, name: str, train: Pairs, dev: Pairs, test: Pairs, *, seed: int = 1111, hidden: int = 0) -> None:
        self.name = name
        self.seed, self.hidden = seed, hidden
        self.parts = {"train": train, "dev": dev, "test": test}
        for part, pairs in self.parts.items():
            if min(pairs.gold) < 0 or max(pairs.gold) > CLASSES:
                raise EvaluationError(
                    f"task {name}, {part}: ratings are {min(pairs.gold):g} to {max(pairs.gold):g}, but the regression's "
                    f"classes are 1 to {CLASSES}; rescale the ratings"
                )

    @property
    def gold(self) -> np.ndarray:
        """Ratings (N,) of the test part."""
        return np.asarray(self.parts["test"].gold)

    @property
    def hash(self) -> str:
        """sha256 of the pairs and ratings of the three parts."""
        hashes = "".join(PairTask(part, pairs).hash for part, pairs in self.parts.items())
        return hashlib.sha256(hashes.encode()).hexdigest()

    def sentences(self) -> list[str]:
        """Distinct sentences of the three parts."""
        return list(dict.fromkeys(text for pairs in self.parts.values() for text in (*pairs.first, *pairs.second)))

    def score(self, encoder: Encoder) -> Score:
        """``pearson``, ``spearman`` and ``mse`` on test; Spearman on dev, epochs and sizes; the predicted ratings (N,)."""
        sides = [side for pairs in self.parts.values() for side in (pairs.first, pairs.second)]
        u = [vectors.astype(np.float32) for vectors in look_up(encoder, *sides)]
        features = {part: torch.from_numpy(pair_features(*u[2 * i : 2 * i + 2])) for i, part in enumerate(self.parts)}
        gold = {part: np.asarray(pairs.gold) for part, pairs in self.parts.items()}
        model, dev_spearman, epochs = fit(
            features["train"], gold["train"], features["dev"], gold["dev"], self.seed, self.hidden
        )
        guess = expected_rating(features["test"], model)
        if np.ptp(guess) < ROUNDING:  # one and the same guess, which has no correlation
            guess = np.full_like(guess, guess.mean())
        metrics = correlations(self.name, guess, gold["test"])
        metrics["mse"] = float(np.mean((guess - gold["test"]) ** 2))
        details = {f"{part}_pairs": len(pairs) for part, pairs in self.parts.items()}
        details |= {"skipped": sum(pairs.skipped for pairs in self.parts.values()), "hidden": self.hidden}
        return Score(metrics, {"dev_spearman": dev_spearman, "epochs": epochs, **details}, guess)


def rating_distribution(ratings: np.ndarray) -> Tensor:
    """Ratings y (N,) as distributions (N, 5) over the classes 1 to 5 (Tai, Socher and Manning 2015, section 5.2).

    p[floor(y) + 1] = y - floor(y) and p[floor(y)] = floor(y) - y + 1, so that the mean of p is y. A rating below 1, as
    STS-B has them, keeps only what falls on class 1, as in SentEval: its row sums to y, and no class stands for 0.
    """
    y = torch.as_tensor(ratings, dtype=torch.float64)
    low = y.floor()
    classes = torch.arange(1, CLASSES + 1)
    p = (classes == low[:, None]) * (low - y + 1)[:, None] + (classes == low[:, None] + 1) * (y - low)[:, None]
    return p.float()


@torch.no_grad()
def expected_rating(features: Tensor, model: nn.Module) -> np.ndarray:
    """The mean rating (N,) that a model gives to features (N, f)."""
    classes = torch.arange(1, CLASSES + 1, dtype=torch.float64)
    return (model(features).softmax(1).double() @ classes).numpy()


def fit(
    train: Tensor, ratings: np.ndarray, dev: Tensor, dev_ratings: np.ndarray, seed: int, hidden: int = 0
) -> tuple[nn.Module, float, int]:
    """Fit a model to train (N, f) and ratings (N,); rounds are chosen by Spearman on dev (M, f).

    Returns the model of the best round, which gives logits of the classes, its Spearman on dev, and the epochs run.
    """
    generator = torch.Generator().manual_seed(seed)
    targets = rating_distribution(ratings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = nn.Linear(train.shape[1], CLASSES)
        if hidden:
            model = nn.Sequential(nn.Linear(train.shape[1], hidden), nn.GELU(), nn.Linear(hidden, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def epoch() -> None:
        order = torch.randperm(len(train), generator=generator)
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            F.mse_loss(model(train[rows]).softmax(1), targets[rows]).backward()
            optimizer.step()

    def on_dev() -> float:
        value = spearman(expected_rating(dev, model), dev_ratings)
        return 0.0 if np.isnan(value) else value

    return best_round(model, epoch, on_dev, ROUNDS)
