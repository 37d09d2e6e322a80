"""Reports of evaluated models: scores with provenance, values for significance tests, and figures."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicse import plugins
from multicse.data.text_files import read_text
from multicse.evaluation import tables
from multicse.evaluation.task import Encoded, EvaluationError, Task, encode_once
from multicse.evaluation.tasks.geometry import GeometryTask
from multicse.evaluation.tasks.sts import PairTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multicse.evaluation.load import Model

logger = logging.getLogger(__name__)

EXAMPLES = "task:"
"""Prefix of tasks in the .npz file: a task may have the name of a parameter of numpy, such as ``file``."""
PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Measured:
    """One model on some tasks."""

    report: dict[str, Any]
    """Content of the JSON file."""
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    """Values (N,) of each task for a paired test of two single runs."""
    encoded: Encoded | None = None
    """Embeddings of the tasks' sentences."""


@dataclass
class Outcome:
    """Output of a command: a table, the JSON report, metrics for MLflow, and figures."""

    table: str
    report: dict[str, Any]
    metrics: dict[str, float]
    figures: dict[str, Figure]
    measured: Measured | None = None


def measure(spec: str, model: Model, tasks: Sequence[Task]) -> Measured:
    """Score a model on every task, encoding each distinct text once; `spec` names the model in the report."""
    encoded = encode_once(tasks, model)
    scores = {task.name: task.score(encoded) for task in tasks}
    results = {name: {**score.metrics, **score.details} for name, score in scores.items()}
    report: dict[str, Any] = {"model": spec, "results": results}
    if averages := tables.averages(results):
        report["averages"] = averages
    report["provenance"] = provenance(model, tasks)
    examples = {name: score.examples for name, score in scores.items() if score.examples is not None}
    return Measured(report, examples, encoded)


def provenance(model: Model, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return hashes of model and data, the protocol, and versions of libraries."""
    similarity = {"similarity": "cosine", "spearman": "all subsets concatenated"}
    return {
        "model_sha256": model.hash,
        "data_sha256": {task.name: getattr(task, "hash", None) for task in tasks},
        "protocol": {**similarity, **model.protocol},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    }


def check_comparable(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise EvaluationError if two reports, by label, used different data, or different protocols of a classifier."""
    first: dict[tuple[str, str], tuple[Any, str]] = {}
    for label, report in ((label, report) for label, several in reports.items() for report in several):
        hashes = report.get("provenance", {}).get("data_sha256", {})
        values = {(task, "data"): digest for task, digest in hashes.items() if task in report["results"]}
        values |= {(task, "protocol"): scores.get("protocol") for task, scores in report["results"].items()}
        for (task, what), value in values.items():
            known, other = first.setdefault((task, what), (value, label)) if value is not None else (None, "")
            if known != value:
                raise EvaluationError(f"{other} and {label} cannot be compared: {task} was measured with different {what}")


def local(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return a report without scores, for `check_comparable`: the hashes of the data of these tasks."""
    hashes = {task.name: digest for task in tasks if (digest := getattr(task, "hash", None)) is not None}
    return {"results": {name: {} for name in hashes}, "provenance": {"data_sha256": hashes}}


def read_report(file: Path, tasks: Sequence[Task]) -> Measured:
    """Read the results of these tasks from a report of one model, and the examples from the .npz file next to it."""
    names = [task.name for task in tasks]
    try:
        report = json.loads(read_text(file))
        report["results"] = {name: found for name, found in report["results"].items() if name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{file} is not a report of a single model ({error!r}); --model ... --json writes one"
        ) from None
    if not report["results"]:
        raise EvaluationError(f"{file} contains none of the tasks {', '.join(names)}")
    examples: dict[str, np.ndarray] = {}
    if (arrays := file.with_suffix(".npz")).is_file():
        with np.load(arrays, allow_pickle=False) as saved:
            found = {name.removeprefix(EXAMPLES): name for name in saved.files}
            examples = {name: saved[found[name]] for name in names if name in found}
    return Measured(report, examples)


def write_examples(file: Path, examples: Mapping[str, np.ndarray]) -> None:
    """Write the examples of a report to the .npz file next to it.

    Args:
        file: File of the report.
        examples: Array (N, ...) of every task.
    """
    arrays: Any = {f"{EXAMPLES}{name}": array for name, array in examples.items()}
    np.savez_compressed(file.with_suffix(".npz"), **arrays)


def figures(encoded: Encoded, tasks: Sequence[Task], seed: int = 0) -> Iterator[tuple[str, Figure]]:
    """Draw similarity by rating for sets of pairs, and the figures of plugins, and yield name and figure.

    A figure that cannot be drawn (a collapsed encoder has no t-SNE) is skipped with a warning.

    Args:
        encoded: Embeddings of the tasks' sentences.
        tasks: Tasks to draw.
        seed: Seed of figures with random choices.
    """
    from multicse.evaluation.figures.basic import similarity_by_gold_figure

    drawings: list[Drawing] = [
        (
            f"similarity_{task.name}",
            partial(similarity_by_gold_figure, task.similarities(encoded), task.gold, gold_is=task.gold_is),
        )
        for task in tasks
        if isinstance(task, PairTask)
    ]
    for name, draw in chain(drawings, *(drawn(encoded, tasks, seed) for drawn in plugins.every("figure").values())):
        try:
            figure = draw()
            figure.suptitle(f"{getattr(encoded.encoder, 'name', '')}   {name}".strip(), fontsize="small", parse_math=False)
            yield name, figure
        except ValueError as error:
            logger.warning("figure %s is skipped: %s", name, error)


Drawing = tuple[str, Callable[[], "Figure"]]
"""Name of a figure and the function that draws it, or raises ValueError."""
Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""Results of each model's runs, by label."""


def scatter(runs: Runs, tasks: Sequence[Task]) -> Iterator[tuple[str, Figure]]:
    """Draw several models, with their runs' reports by label, on each task, and yield name and figure.

    For the geometry of pairs, the figure shows alignment against uniformity of the first runs, coloured by the score on the
    pairs if all models have one. Plugins draw figures of other tasks.
    """
    from multicse.evaluation.figures.basic import alignment_uniformity_scatter

    for task in tasks:
        measured = {
            label: [run["results"] for run in several if task.name in run["results"]] for label, several in runs.items()
        }
        results = {label: found for label, found in measured.items() if found}
        if not results:
            continue
        for drawn in plugins.every("scatter").values():
            yield from drawn(task, results)
        if isinstance(task, GeometryTask):
            first = {label: found[0] for label, found in results.items()}
            places = {label: (run[task.name]["alignment"], run[task.name]["uniformity"]) for label, run in first.items()}
            scores = {label: run[task.pairs.name]["spearman"] for label, run in first.items() if task.pairs.name in run}
            label = f"Spearman x 100 on {task.pairs.name}"
            yield task.name, alignment_uniformity_scatter(places, scores if len(scores) == len(places) else None, label)
