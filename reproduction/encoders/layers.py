"""Scores of every layer by cls, mean and max, from one forward pass a sentence (SG-BERT, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from multicse.evaluation import report, tables
from multicse.evaluation.encoders.baselines import SINGLE, States
from multicse.evaluation.encoders.encoder import FolderEncoder, load_encoder
from multicse.evaluation.load import load_model, parse
from multicse.evaluation.task import Encoded, Task, encode_once
from multicse.models.pooling import pool
from multicse.reproduction.figures import curves as drawn_curves

Scores = dict[str, dict[str, float]]  # metrics by task


def every_layer(states: States, mask: Tensor) -> Tensor:
    """All single layers, each by cls, mean and max over the tokens that the mask keeps, [CLS] and [SEP] too:
    (B, (l + 1) * 3 * d), to be reshaped to (B, l + 1, 3, d)."""
    return torch.cat([pool(state, (), mask, how) for state in states for how in SINGLE], dim=1)


def layer_scores(
    folder: str | Path, tasks: Sequence[Task], device: str | None = None, batch_size: int = 128
) -> dict[str, list[Scores]]:
    """By pooling (cls, mean, max), a list over layers 0 (embedding output) to l of the metrics of every task.

    Every sentence of a task passes the model once. Layer 0 by cls is the embedding of [CLS], the same vector for every
    sentence: correlations are 0 there, and tasks warn of a collapsed encoder.

    Raises EvaluationError when the folder holds no transformer.
    """
    one = load_encoder(folder, "layer0-mean", device, batch_size)
    # All layers side by side: (N, (l + 1) * 3 * d).
    encoder = FolderEncoder(one.model, one.path, "every layer", batch_size, every_layer)
    config = encoder.model[0].auto_model.config
    layers, width = config.num_hidden_layers + 1, config.hidden_size
    curves: dict[str, list[Scores]] = {how: [{} for _ in range(layers)] for how in SINGLE}
    for task in tasks:  # the vectors of several at once would be gigabytes
        encoded = encode_once([task], encoder)
        for number, (how, layer) in enumerate(product(SINGLE, range(layers))):
            start = (layer * len(SINGLE) + number // layers) * width
            curves[how][layer][task.name] = task.score(OneLayer(encoded, slice(start, start + width))).metrics
    return curves


def layer_outcome(model: str, tasks: list[Task], device: str | None, batch_size: int) -> report.Outcome:
    """What ``evaluate.py --layers`` shows: `layer_scores` as a table and as curves."""
    curves = layer_scores(parse(model).place, tasks, device, batch_size)
    scores = pd.DataFrame(
        {(t.name, how): [layer[t.name][t.primary] for layer in curve] for t in tasks for how, curve in curves.items()}
    )
    rows = [[str(layer), *(f"{value:.2f}" for value in values)] for layer, *values in scores.itertuples()]
    figures = {
        f"layers_{task.name}": drawn_curves(
            scores.rename(index=str)[task.name].to_dict(), "layer (0: embeddings)", f"{task.primary} on {task.name}"
        )
        for task in tasks
    }
    metrics = {f"{t}/{how}/layer{i}": value for (t, how), curve in scores.items() for i, value in enumerate(curve)}
    made = report.provenance(load_model(model, device=device), tasks)
    made["protocol"]["pooling"] = "every layer by cls, mean and max"
    content = {"model": model, "layers": curves, "provenance": made}
    return report.Outcome(tables.layout([["layer", *map(" ".join, scores)], *rows]), content, metrics, figures)


class OneLayer:
    """Columns of an encoder's vectors, as an encoder."""

    def __init__(self, encoded: Encoded, columns: slice) -> None:
        self.encoded, self.columns = encoded, columns

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Vectors (N, d) of N texts."""
        return self.encoded.encode(items, modality)[:, self.columns]
