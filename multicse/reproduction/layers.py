"""Evaluate every layer of a model with three poolings: ``python reproduction/layers.py --model DIR --data DIR``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import tyro
from torch import Tensor

if not __package__:  # run as a file
    import _clone  # noqa: F401

from multicse.data.errors import cli_errors
from multicse.evaluation import registry, report, tables
from multicse.evaluation.encoders.baselines import SINGLE, States
from multicse.evaluation.encoders.encoder import FolderEncoder, load_encoder
from multicse.evaluation.load import load_model, parse
from multicse.evaluation.task import Encoded, EvaluationError, Task, encode_once
from multicse.models.pooling import pool
from multicse.pipelines import RULES, evaluate
from multicse.reproduction.figures import curves as drawn_curves

Scores = dict[str, dict[str, float]]  # metrics by task


def every_layer(states: States, mask: Tensor) -> Tensor:
    """Pool every layer by cls, mean and max.

    Args:
        states: Hidden states of the layers 0 to l, each (B, T, d).
        mask: (B, T), attention mask; [CLS] and [SEP] are included.

    Returns:
        (B, (l + 1) * 3 * d), which reshapes to (B, l + 1, 3, d).
    """
    return torch.cat([pool(state, (), mask, how) for state in states for how in SINGLE], dim=1)


def layer_scores(
    folder: str | Path, tasks: Sequence[Task], device: str | None = None, batch_size: int = 128
) -> dict[str, list[Scores]]:
    """Evaluate every layer with cls, mean and max pooling, with one forward pass per sentence of a task.

    Layer 0 with cls pooling is the embedding of [CLS], which is equal for all sentences: correlations are 0, and tasks warn
    of a collapsed encoder.

    Args:
        folder: Folder of the model.
        tasks: Tasks to evaluate.
        device: Device. If None, a GPU if available.
        batch_size: Batch size in sentences.

    Returns:
        Metrics of all tasks by pooling, in a list over the layers 0 (embedding output) to l.
    """
    one = load_encoder(folder, "layer0-mean", device, batch_size)
    # All layers concatenated: (N, (l + 1) * 3 * d).
    encoder = FolderEncoder(one.model, one.path, "every layer", batch_size, every_layer)
    config = encoder.model[0].auto_model.config
    layers, width = config.num_hidden_layers + 1, config.hidden_size
    curves: dict[str, list[Scores]] = {how: [{} for _ in range(layers)] for how in SINGLE}
    for task in tasks:  # the embeddings of several tasks at once would take gigabytes
        encoded = encode_once([task], encoder)
        for number, (how, layer) in enumerate(product(SINGLE, range(layers))):
            start = (layer * len(SINGLE) + number // layers) * width
            curves[how][layer][task.name] = task.score(_OneLayer(encoded, slice(start, start + width))).metrics
    return curves


@dataclass(frozen=True)
class Arguments:
    """Evaluate every layer of a transformer with cls, mean and max pooling (SG-BERT, Figure 1).

    There is one forward pass per sentence. Layer 0 with cls is one vector for all sentences.

    Example: python reproduction/layers.py --model bert-base-uncased --data SentEval/data/downstream --tasks stsb-test
    """

    model: str
    """Folder of a model, or model ID, without pooling and post-processing."""
    data: Path | None = None
    """Data folder, as for `evaluate`."""
    tasks: tuple[str, ...] = ()
    """Tasks to evaluate, as for `evaluate`."""
    json: Path | None = None
    """Write the results to this file."""
    figures: Path | None = None
    """Write the curves to this folder."""
    device: str | None = None
    """Device of the model. Default: the GPU if one is available, otherwise the CPU."""
    batch_size: int = 128
    """Batch size in texts of 32 tokens."""


def outcome(arguments: Arguments) -> report.Outcome:
    """Return `layer_scores` as a table and as curves."""
    model, device = arguments.model, arguments.device
    spec = parse(model)
    if spec.pooling or spec.post:
        raise EvaluationError("layers needs a plain model: leave out @POOLING and +whitening")
    tasks = registry.choose(arguments.tasks, arguments.data)
    curves = layer_scores(spec.place, tasks, device, arguments.batch_size)
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


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    from multicse.trainers.engine.cluster import quiet

    arguments = tyro.cli(Arguments, args=argv, registry=RULES)
    outputs = evaluate.with_outputs(evaluate.Arguments(arguments.model, json=arguments.json, figures=arguments.figures))
    quiet()
    found = outcome(arguments)
    print(found.table)
    evaluate.write(outputs, found)
    return 0


class _OneLayer:
    """Encoder of a slice of the dimensions of another encoder."""

    def __init__(self, encoded: Encoded, columns: slice) -> None:
        self.encoded, self.columns = encoded, columns

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Return embeddings (N, d) of N texts."""
        return self.encoded.encode(items, modality)[:, self.columns]


if __name__ == "__main__":
    sys.exit(main())
