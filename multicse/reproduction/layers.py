"""Evaluate every layer of a model with three poolings: ``python reproduction/layers.py --model DIR --data DIR``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands import evaluate, read_options
from multicse.data.errors import cli_errors
from multicse.evaluation import registry, report, tables
from multicse.evaluation.load import load_model, parse
from multicse.evaluation.task import EvaluationError
from multicse.reproduction.encoders.layers import layer_scores
from multicse.reproduction.figures import curves as drawn_curves


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

    arguments = read_options(Arguments, argv)
    outputs = evaluate.with_outputs(evaluate.Arguments(arguments.model, json=arguments.json, figures=arguments.figures))
    quiet()
    found = outcome(arguments)
    print(found.table)
    evaluate.write(outputs, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
