"""Batched classifiers compared with single models, SentEval's folds with a plain loop, and the papers' heads."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.classification import ClassificationTask
from multicse.reproduction.tasks import probe
from multicse.reproduction.tasks.classifiers import Protocol
from multicse.reproduction.tasks.probe import TEST, three_layers
from tests.evaluation.evaluation_helpers import WORDS, Bag
from tests.evaluation.tasks.test_classification import examples, write

SHORT = Protocol(kfold=3, batch=16, tenacity=1, epoch_size=1, max_epochs=12, l2=(1e-4, 1e-1))


def synthetic(rows: int, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_classification(
        rows, 24, n_informative=8, n_redundant=4, n_classes=classes, class_sep=0.9, flip_y=0.05, random_state=seed
    )
    return x.astype(np.float32), y


def one_model(
    x: np.ndarray,
    y: np.ndarray,
    learn: np.ndarray,
    stop: np.ndarray,
    l2: float,
    size: int,
    rows: np.ndarray,
    protocol: Protocol,
    lengths: int | None = None,
) -> tuple[torch.Tensor, float, int]:
    """Train one model as in the toolkit, with a torch module, autograd and weight decay, on its rows of each minibatch."""
    generator = torch.Generator().manual_seed(protocol.seed)
    classes, width = int(y.max()) + 1, x.shape[1]
    layer, bound = torch.nn.Linear(width, classes), 1 / math.sqrt(width)
    drawn = torch.empty(width + 1, classes).uniform_(-bound, bound, generator=generator)
    layer.weight.data, layer.bias.data = drawn[:-1].T.contiguous(), drawn[-1].clone()
    optimizer = torch.optim.Adam(layer.parameters(), weight_decay=l2)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    own, dev = torch.zeros(len(y), dtype=torch.bool), torch.from_numpy(stop)
    own[torch.from_numpy(learn)] = True

    def weights() -> torch.Tensor:
        return torch.cat([layer.weight.T, layer.bias[None]]).detach().clone()

    best, misses, epochs, kept = -1.0, 0, 0, weights()
    while epochs <= protocol.max_epochs:
        for _ in range(protocol.epoch_size):
            order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
            for batch in order.split(size):
                mine = batch[own[batch]]
                loss = torch.nn.functional.cross_entropy(layer(inputs[mine]), labels[mine])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += protocol.epoch_size
        if lengths is not None:
            kept = weights()
            if epochs >= lengths:
                break
            continue
        with torch.no_grad():
            accuracy = (layer(inputs[dev]).argmax(1) == labels[dev]).double().mean().item()
        if accuracy > best:
            best, kept = accuracy, weights()
        else:
            if misses >= protocol.tenacity:
                break
            misses += 1
    return kept, best, epochs


def shared_size(train: list[np.ndarray], rows: int, protocol: Protocol) -> int:
    return round(protocol.batch * rows * len(train) / sum(map(len, train)))


def test_dev_selects_the_strength_that_is_tested() -> None:
    """With the first, weights stay at 0. Accuracies that are equal in two decimals are a tie, which the first one wins."""
    x, y = synthetic(150)
    parts = {part: slice(start, start + 50) for part, start in (("train", 0), ("dev", 50), ("test", 100))}
    xs, ys = ({part: values[rows] for part, rows in parts.items()} for values in (x, y))
    found = probe.run(xs, ys, SHORT.replace(l2=(1e3, 1e-4)))
    alone = probe.run(xs, ys, SHORT.replace(l2=(1e-4,)))
    assert found.l2 == [1e-4] and found.accuracy == alone.accuracy and found.dev == alone.dev
    np.testing.assert_array_equal(found.predicted, alone.predicted)
    assert probe.run(xs, ys, SHORT.replace(l2=(1e3,))).accuracy < found.accuracy
    points = probe._points(np.array([0.80001, 0.80004, 0.8001]))
    assert points.tolist() == [80.0, 80.0, 80.01]


@pytest.mark.parametrize("last_fit", ["all", "held_out"])
def test_nested_is_the_loop_of_the_toolkit(last_fit: str) -> None:
    x, y = synthetic(120)
    protocol = SHORT.replace(last_fit=last_fit, max_epochs=200, tenacity=12, batch=8, epoch_size=4)
    accuracies, chosen, lengths = [], [], []
    splitter = StratifiedKFold(3, shuffle=True, random_state=1111)
    outer = list(splitter.split(x, y))
    inner = [[(rest[a], rest[b]) for a, b in splitter.split(x[rest], y[rest])] for rest, _ in outer]
    size = shared_size([a for pairs in inner for a, _ in pairs], len(y), protocol)
    for pairs in inner:
        fits = [[one_model(x, y, a, b, l2, size, np.arange(120), protocol) for a, b in pairs] for l2 in protocol.l2]
        scores = [round(100 * float(np.mean([best for _, best, _ in group])), 2) for group in fits]
        at = int(np.argmax(scores))
        chosen.append(protocol.l2[at])
        lengths.append(4 * round(float(np.mean([epochs for _, _, epochs in fits[at]])) / 4))
    groups = []
    for rest, _ in outer:
        np.random.seed(protocol.seed)
        order = np.random.permutation(len(rest))
        cut = int(0.05 * len(rest)) if last_fit == "held_out" else 0
        groups.append((rest[order[cut:]], rest[order[:cut]]))
    used = np.unique(np.concatenate([a for a, _ in groups]))
    size = shared_size([a for a, _ in groups], len(used), protocol)
    for (a, b), (_, test), l2, length in zip(groups, outer, chosen, lengths, strict=True):
        stated = None if last_fit == "held_out" else length
        weights = one_model(x, y, a, b, l2, size, used, protocol, stated)[0].numpy()
        accuracies.append(100 * np.mean((x[test] @ weights[:-1] + weights[-1]).argmax(1) == y[test]))
    result = probe.run({"all": x}, {"all": y}, protocol)
    assert result.l2 == chosen
    assert min(accuracies) > 60, "nothing was learned, so nothing is compared"
    np.testing.assert_allclose(result.folds, accuracies)
    assert result.accuracy == pytest.approx(np.mean(accuracies))
    assert result.accuracy == pytest.approx(probe.accuracy(y, result.predicted))


def test_a_hidden_layer_is_as_good_as_sklearn() -> None:
    x, y = synthetic(3000)
    parts = dict(zip(("train", "dev", "test"), np.array_split(np.arange(3000), 3), strict=True))
    inputs, labels = ({part: values[rows] for part, rows in parts.items()} for values in (x, y))
    theirs = LogisticRegression().fit(x[parts["train"]], y[parts["train"]]).score(x[parts["test"]], y[parts["test"]])
    assert probe.run(inputs, labels, TEST.replace(nhid=50)).accuracy >= 100 * theirs - 1.0


@pytest.mark.parametrize("head", ["senteval", "three-layers"])
def test_scores(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe.PRESETS, "test", probe.TEST.replace(batch=8))
    path = write(tmp_path / "words.tsv", examples(420, tuple(WORDS[:7])))
    (task,) = make_tasks([f"classify:{path}?head={head}"], seed=3)
    metrics, details, _ = task.score(Bag(32))
    assert list(metrics) == ["accuracy", "precision", "recall", "f1", "matthews"]
    assert metrics["accuracy"] > 75
    assert 100 * np.trace(details["confusion"]) / 42 == pytest.approx(metrics["accuracy"])
    assert details["protocol"]["seed"] == 3 and details["head"] == head
    assert metrics == task.score(Bag(32)).metrics


def test_settings_that_the_default_head_does_not_have_are_refused(tmp_path: Path) -> None:
    plain = f"classify:{write(tmp_path / 'words.tsv', examples(40))}"
    for options in ("protocol=fast", "hidden=50"):
        with pytest.raises(EvaluationError, match=rf"words.*{options.partition('=')[0]}.* has no effect: .*head=senteval"):
            make_tasks([f"{plain}?{options}"])
    (task,) = make_tasks([f"{plain}?head=senteval&protocol=released&hidden=50"])
    assert isinstance(task, ClassificationTask) and isinstance(task.fit, partial)
    assert task.fit.keywords == {"protocol": probe.RELEASED.replace(nhid=50)}
    wrong_ones = {"protocol=quick": "fast", "hidden=-1": "0", "hidden=x": "x", "heat=x": "Did you mean 'head'"}
    for wrong, message in wrong_ones.items():
        with pytest.raises(EvaluationError, match=message):
            make_tasks([f"{plain}?head=senteval&{wrong}"])


def test_the_papers_head() -> None:
    shapes = [tuple(p.shape) for p in three_layers(768, 7).parameters() if p.ndim == 2]
    assert shapes == [(3072, 768), (768, 3072), (7, 768)]
