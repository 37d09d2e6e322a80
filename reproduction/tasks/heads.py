"""Heads of `classify:` and `finetune:` that papers have: SentEval's protocol for a given split, and MoCoUTRL's classifier.

MoCoUTRL's Web of Science set is made by ``python reproduction/prepare.py wos``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from multicse.evaluation.task import Probing
from multicse.evaluation.tasks.classification import Fitted, Parts
from multicse.reproduction.tasks import probe
from multicse.reproduction.tasks.classifiers import OPTIMIZERS, Protocol, best_round
from multicse.reproduction.tasks.probe import Result


def three_layers(width: int, classes: int) -> nn.Module:
    """MoCoUTRL's classifier, 768-3072-768-C with GELU for vectors of 768."""
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU(), nn.Linear(width, classes)
    )


MODULES: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "three-layers": three_layers}
"""Heads that are trained with an encoder."""


def senteval(x: Parts, y: Parts, probing: Probing) -> Fitted:
    """Logistic regression, or one hidden layer, by SentEval's protocol: dev chooses the L2 and when to stop."""
    return _fitted(probe.split, x, y, probing)


def three_layers_probe(x: Parts, y: Parts, probing: Probing) -> Fitted:
    """MoCoUTRL's classifier on frozen vectors, trained by the same loop without L2."""
    return _fitted(fit_head, x, y, probing)


def _fitted(fit: Callable[[Parts, Parts, Protocol], Result], x: Parts, y: Parts, probing: Probing) -> Fitted:
    protocol = probe.protocol_of(probing)
    result = fit(x, y, protocol)
    return Fitted(result.predicted, {**result.details(), "protocol": dataclasses.asdict(protocol)})


def fit_head(x: Parts, y: Parts, protocol: Protocol) -> Result:
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
