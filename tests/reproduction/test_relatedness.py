"""SentEval's regression for rated pairs: encoding of ratings, protocol and hidden layer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import spearmanr

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import evaluate
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.sts import Pairs
from multicse.reproduction.tasks.relatedness import RelatednessTask, expected_rating, fit, rating_distribution
from tests.evaluation.evaluation_helpers import Bag, rated, write_raw


def test_targets_are_the_definition_of_the_paper() -> None:
    ratings = np.array([1.0, 1.5, 2.2, 3.0, 4.99, 5.0])
    got = rating_distribution(ratings).numpy()
    want = np.zeros((6, 5))
    for row, y in enumerate(ratings):
        for label in range(1, 6):
            if label == math.floor(y) + 1:
                want[row, label - 1] = y - math.floor(y)
            if label == math.floor(y):
                want[row, label - 1] = math.floor(y) - y + 1
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_allclose(got.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(got @ np.arange(1, 6), ratings, atol=1e-5)  # the mean of the distribution is the rating


def by_hand(
    train: np.ndarray, ratings: np.ndarray, dev: np.ndarray, dev_ratings: np.ndarray, seed: int
) -> tuple[np.ndarray, int]:
    """Fit with Adam, the gradient of the loss and early stopping in NumPy, with equal random numbers."""
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(train.shape[1])
    drawn = [torch.empty(*shape).uniform_(-bound, bound, generator=generator) for shape in ((5, train.shape[1]), (5, 1))]
    w = torch.cat(drawn, dim=1).double().numpy()
    generator = torch.Generator().manual_seed(seed)
    x, targets = np.c_[train, np.ones(len(train))], rating_distribution(ratings).double().numpy()
    m, v, step, epoch, bad = np.zeros_like(w), np.zeros_like(w), 0, 0, 0
    best, chosen = -1.0, w
    while True:
        for _ in range(50):
            order = torch.randperm(len(x), generator=generator).numpy()
            for start in range(0, len(x), 64):
                rows = order[start : start + 64]
                p = softmax(x[rows] @ w.T, axis=1)
                outer = 2 * (p - targets[rows]) / p.size
                gradient = (p * (outer - (outer * p).sum(1, keepdims=True))).T @ x[rows]
                step += 1
                m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
                w = w - 0.001 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        epoch += 50
        value = spearmanr(softmax(np.c_[dev, np.ones(len(dev))] @ w.T, axis=1) @ np.arange(1, 6), dev_ratings).statistic
        if value > best:
            best, chosen = value, w
        else:
            bad += 1
        if bad == 4 or epoch > 1000:
            return chosen, epoch


def test_agrees_with_a_naive_implementation() -> None:
    rng = np.random.default_rng(0)
    train, dev = rng.standard_normal((150, 6)).astype(np.float32), rng.standard_normal((40, 6)).astype(np.float32)
    truth = rng.standard_normal(6)
    rate = [np.clip(3 + x @ truth + rng.standard_normal(len(x)), 0, 5) for x in (train, dev)]
    model, _, ran = fit(torch.from_numpy(train), rate[0], torch.from_numpy(dev), rate[1], seed=3)
    weights, epochs = by_hand(train, rate[0], dev, rate[1], seed=3)
    assert ran == epochs
    weight, bias = (part.detach().numpy() for part in model.parameters())
    np.testing.assert_allclose(weight, weights[:, :-1], atol=1e-3)
    np.testing.assert_allclose(bias, weights[:, -1], atol=1e-3)
    again, *_ = fit(torch.from_numpy(train), rate[0], torch.from_numpy(dev), rate[1], seed=4)
    assert not torch.allclose(next(again.parameters()), next(model.parameters()), atol=1e-3)  # the seed has an effect


def test_a_hidden_layer_learns_a_nonlinear_rating() -> None:
    """The rating is high if two features have equal signs."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    ratings = np.where((x[:, 0] > 0) == (x[:, 1] > 0), 5.0, 1.0)
    linear, deep = (fit(x[:300], ratings[:300], x[300:], ratings[300:], seed=0, hidden=hidden) for hidden in (0, 16))
    assert [tuple(part.shape) for part in deep[0].parameters()] == [(16, 2), (16,), (5, 16), (5,)]
    assert abs(linear[1]) < 40 < 75 < deep[1]


def test_by_name_from_a_folder(tmp_path: Path) -> None:
    files: tuple[str, ...] = ("STSB.train.raw.tsv", "STSB.dev.raw.tsv", "STSB.test.raw.tsv")
    files = (*files, "SICK.train.raw.tsv", "SICK.trial.raw.tsv", "SICK.test.raw.tsv")
    for size, file in enumerate(files, 10):
        write_raw(tmp_path / file, rated(size, seed=size))
    tasks = make_tasks(["stsb-regression?hidden=7", "sickr-regression?hidden=7"], tmp_path)
    sizes = [[len(pairs) for pairs in task.parts.values()] for task in tasks if isinstance(task, RelatednessTask)]
    assert sizes == [[10, 11, 12], [13, 14, 15]]
    bag = Bag()
    scores = evaluate(tasks, bag)
    assert bag.calls == 1
    assert all(set(metrics) == {"pearson", "spearman", "mse"} for metrics in scores.values())
    assert tasks[0].score(bag).details["hidden"] == 7


def test_ratings_beyond_the_classes() -> None:
    good, bad = (Pairs(("a", "c"), ("b", "d"), (1.0, highest), ("all",) * 2) for highest in (2.0, 7.5))
    with pytest.raises(EvaluationError, match="dev"):
        RelatednessTask("toy", good, bad, good)


def test_a_certain_model_predicts_the_classes() -> None:
    np.testing.assert_allclose(expected_rating(50 * torch.eye(5), torch.nn.Identity()), [1, 2, 3, 4, 5])
