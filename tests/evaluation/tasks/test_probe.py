"""The batched classifiers against one model at a time, against scikit-learn, and SentEval's folds by a plain loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from evaluation.task import EvaluationError
from evaluation.tasks import probe
from evaluation.tasks.probe import FAST, GCLSR, RELEASED, TEST, Protocol

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
) -> tuple[list[torch.Tensor], float, int]:
    """The toolkit's loop with a torch module, autograd and weight decay; minibatches of `rows`, of which it sees its own."""
    generator = torch.Generator().manual_seed(protocol.seed)
    classes, width = int(y.max()) + 1, x.shape[1]
    sizes = [(width, protocol.nhid), (protocol.nhid, classes)] if protocol.nhid else [(width, classes)]
    layers = [torch.nn.Linear(*shape) for shape in sizes]
    for layer in layers:
        bound = 1 / math.sqrt(layer.in_features)
        drawn = torch.empty(layer.in_features + 1, layer.out_features).uniform_(-bound, bound, generator=generator)
        layer.weight.data, layer.bias.data = drawn[:-1].T.contiguous(), drawn[-1].clone()
    parameters = [p for layer in layers for p in layer.parameters()]
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[protocol.optimizer]
    optimizer = kind(parameters, weight_decay=l2)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    own, dev = torch.zeros(len(y), dtype=torch.bool), torch.from_numpy(stop)
    own[torch.from_numpy(learn)] = True

    def logits(at: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        if not protocol.nhid:
            return layers[0](inputs[at])
        hidden = layers[0](inputs[at])
        return layers[1](torch.sigmoid(hidden if keep is None else hidden * keep / (1 - protocol.dropout)))

    def weights() -> list[torch.Tensor]:
        return [torch.cat([layer.weight.T, layer.bias[None]]).detach().clone() for layer in layers]

    best, misses, epochs, kept = -1.0, 0, 0, weights()
    while epochs <= protocol.max_epochs:
        for _ in range(protocol.epoch_size):
            order = torch.from_numpy(rows)[torch.randperm(len(rows), generator=generator)]
            for batch in order.split(size):
                keep = None
                if protocol.nhid and protocol.dropout:
                    keep = torch.rand((len(batch), protocol.nhid, 1), generator=generator) >= protocol.dropout
                    keep = keep[own[batch]][:, :, 0].float()
                mine = batch[own[batch]]
                loss = torch.nn.functional.cross_entropy(logits(mine, keep), labels[mine])
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
            accuracy = (logits(dev).argmax(1) == labels[dev]).double().mean().item()
        if accuracy > best:
            best, kept = accuracy, weights()
        else:
            if misses >= protocol.tenacity:
                break
            misses += 1
    return kept, best, epochs


def shared_size(train: list[np.ndarray], rows: int, protocol: Protocol) -> int:
    return round(protocol.batch * rows * len(train) / sum(map(len, train)))


@pytest.mark.parametrize(
    ("classes", "changes"),
    [
        (2, {}),
        (5, {"tenacity": 0}),
        (3, {"optimizer": "rmsprop", "epoch_size": 2}),
        (2, {"nhid": 7}),
        (4, {"nhid": 5, "dropout": 0.3, "optimizer": "rmsprop"}),
    ],
)
@pytest.mark.parametrize("at_once", [2**20, 200])
def test_equals_one_model_at_a_time(
    classes: int, changes: dict[str, Any], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "WEIGHTS", at_once)  # 200 weights: one or two models at a time
    x, y = synthetic(150, classes)
    protocol = SHORT.replace(**changes)
    pairs = [pair for seed in (0, 1) for pair in probe.folds(y, 3, seed)]
    l2 = np.tile([1e-4, 1e-1], 3)
    train, dev = probe._masks(pairs, len(y))
    fitted = probe.fit(x, y, train, dev, l2, protocol)
    size = shared_size([learn for learn, _ in pairs], len(y), protocol)
    naive = [
        one_model(x, y, learn, stop, strength, size, np.arange(len(y)), protocol)
        for (learn, stop), strength in zip(pairs, l2, strict=True)
    ]
    assert len({epochs for _, _, epochs in naive}) > 1, "all models stopped together: the mask of the living is not tested"
    assert fitted.epochs.tolist() == [epochs for _, _, epochs in naive]
    np.testing.assert_allclose(fitted.dev, [best for _, best, _ in naive], atol=1e-12)
    for layer, matrix in enumerate(fitted.weights):
        expected = torch.stack([weights[layer] for weights, _, _ in naive], -1)
        torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-4)


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
        weights = one_model(x, y, a, b, l2, size, used, protocol, stated)[0][0].numpy()
        accuracies.append(100 * np.mean((x[test] @ weights[:-1] + weights[-1]).argmax(1) == y[test]))
    result = probe.run({"all": x}, {"all": y}, protocol)
    assert result.l2 == chosen
    assert min(accuracies) > 60, "nothing was learned, so nothing is compared"
    np.testing.assert_allclose(result.folds, accuracies)
    assert result.accuracy == pytest.approx(np.mean(accuracies))
    assert result.accuracy == pytest.approx(probe.accuracy(y, result.predicted))


@pytest.mark.parametrize(
    ("parts", "protocol"),
    [
        (["all"], TEST.replace(kfold=5)),
        (["all"], FAST),
        (["train", "test"], TEST),
        (["train", "test"], RELEASED),
        (["train", "dev", "test"], TEST),
        (["train", "dev", "test"], TEST.replace(nhid=50)),
    ],
)
@pytest.mark.parametrize("classes", [2, 4])
def test_as_good_as_sklearn(parts: list[str], protocol: Protocol, classes: int) -> None:
    x, y = synthetic(3000, classes)
    rows = np.array_split(np.arange(3000), len(parts))
    split_x = {part: x[at] for part, at in zip(parts, rows, strict=True)}
    split_y = {part: y[at] for part, at in zip(parts, rows, strict=True)}
    ours = probe.run(split_x, split_y, protocol).accuracy
    if parts == ["all"]:
        folds = probe.folds(y, 5, 1111)
        theirs = float(np.mean([LogisticRegression().fit(x[a], y[a]).score(x[b], y[b]) for a, b in folds]))
    else:
        theirs = LogisticRegression().fit(split_x["train"], split_y["train"]).score(split_x["test"], split_y["test"])
    assert ours >= 100 * theirs - 1.0
    if not protocol.nhid:
        assert ours == pytest.approx(100 * theirs, abs=1.0)


def narrow_cone(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, 192) as a BERT gives them: an offset common to all, four times as long as what tells them apart."""
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((rows, 192)) * np.exp(rng.normal(0, 0.5, 192)) * 0.23
    signal = own @ rng.standard_normal(192)
    common = rng.standard_normal(192) * np.exp(rng.normal(0, 1, 192))
    y = (signal / signal.std() + 0.9 * rng.standard_normal(rows) > -0.55).astype(np.int64)
    return (own + 13 * common / np.linalg.norm(common)).astype(np.float32), y


@pytest.mark.parametrize(
    ("protocol", "near", "seed"), [*((FAST, 6.0, seed) for seed in range(6)), (TEST.replace(kfold=3), 3.0, 5)]
)
def test_correlated_features_do_not_ruin_the_last_fit(protocol: Protocol, near: float, seed: int) -> None:
    """RMSprop, trained for a fixed number of epochs, ends below the majority class for some of these seeds."""
    x, y = narrow_cone(5000, seed)
    split_x, split_y = {"train": x[:4000], "test": x[4000:]}, {"train": y[:4000], "test": y[4000:]}
    ours = probe.run(split_x, split_y, protocol).accuracy
    theirs = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[:4000], y[:4000]).score(x[4000:], y[4000:])
    assert ours > 100 * split_y["test"].mean() > 60, "no better than always the same class"
    assert ours > 100 * theirs - near


def test_the_seed_decides_all() -> None:
    x, y = synthetic(200)
    pair = (np.arange(150), np.arange(150, 200))

    def weights(seed: int) -> torch.Tensor:
        torch.rand(1)  # the global generator is not used
        return probe.fit(x, y, *probe._masks([pair], 200), np.array([1e-4]), SHORT.replace(seed=seed)).weights[0]

    assert torch.equal(weights(1), weights(1))
    assert not torch.allclose(weights(1), weights(2), atol=1e-3)


def test_rows_of_other_models_do_not_leak() -> None:
    """What a model may not learn from must not move it, whoever else learns from it."""
    x, y = synthetic(150)
    pairs = list(probe.folds(y, 3, 0))
    train, dev = probe._masks(pairs, len(y))
    spoiled = x.copy()
    spoiled[pairs[0][1]] += 5  # rows that model 0 leaves out
    lengths, l2 = np.array([4, 4, 4]), np.full(3, 1e-3)
    before, after = (probe.fit(data, y, train, dev, l2, SHORT, lengths).weights[0] for data in (x, spoiled))
    torch.testing.assert_close(before[..., 0], after[..., 0], rtol=0, atol=1e-5)
    assert not torch.allclose(before[..., 1], after[..., 1], atol=1e-2)


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_fewest_rows_is_what_the_splitter_needs(folds: int) -> None:
    least = probe.fewest_rows(TEST.replace(kfold=folds), 2)

    def rows_left(count: int) -> int:
        y = np.repeat([0, 1], [count, 60])
        return min(int((y[rest] == 0).sum()) for rest, _ in probe.folds(y, folds, 0))

    assert rows_left(least) >= folds
    assert least == folds or rows_left(least - 1) < folds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"kfold": 1}, "kfold is 1; it must be at least 2"),
        ({"nhid": -1}, "nhid is -1"),
        ({"l2": ()}, "at least one strength"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"last_fit": "some"}, "one of all, held_out"),
    ],
)
def test_bad_protocols(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        TEST.replace(**changes)


def test_presets() -> None:
    assert (TEST.kfold, TEST.optimizer, TEST.batch, TEST.tenacity, TEST.epoch_size, TEST.nhid) == (10, "adam", 64, 5, 4, 0)
    assert (FAST.kfold, FAST.optimizer, FAST.batch, FAST.tenacity, FAST.epoch_size) == (5, "rmsprop", 128, 3, 2)
    assert TEST.replace(last_fit="held_out") == RELEASED
    assert (FAST.last_fit, GCLSR.last_fit) == ("held_out", "held_out")  # the toolkit's, as their settings are
    assert (GCLSR.kfold, GCLSR.epoch_size, GCLSR.optimizer) == (2, 10, "adam")


def test_strengths_are_compared_with_two_decimals() -> None:
    """As in the toolkit: of strengths that differ by less, the weakest is taken."""
    assert probe._points(np.array([0.81231, 0.81234, 0.8122])).argmax() == 0
    assert probe._points(np.array([0.8123, 0.8125, 0.8122])).argmax() == 1
