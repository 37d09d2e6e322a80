"""Report: the scores of an encoder on some tasks, which training, `evaluate` and model cards share; and its figures."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from multicse import plugins
from multicse.data.text_files import read_text
from multicse.evaluation import statistics
from multicse.evaluation.task import Encoded, Encoder, EvaluationError, Score, Task, encode_once
from multicse.evaluation.tasks.geometry import GeometryTask
from multicse.evaluation.tasks.sts import PairTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multicse.evaluation.load import Model

logger = logging.getLogger(__name__)

Results = Mapping[str, Mapping[str, Any]]  # task -> metric or detail -> value
SEVEN = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
EXAMPLES = "task:"
"""Prefix of tasks in the .npz file: a task may have the name of a parameter of numpy, such as ``file``."""
COUNTS = ("pairs", "items")
"""Details with the number of examples of a task whose examples are not kept."""
PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, eq=False)
class Report(Mapping[str, dict[str, float]]):
    """Scores of one encoder: the metrics of every task, ``report["lee"]["spearman"]``, and where they come from.

    Its JSON (`content`) is a file of ``evaluate --json``; the examples are in an .npz file next to it.
    """

    scores: Mapping[str, Score] = field(default_factory=dict)
    """Metrics, details and examples by task."""
    model: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """See `provenance`."""

    @classmethod
    def of(cls, results: Results, examples: Mapping[str, np.ndarray] | None = None, **fields: Any) -> Self:
        """Return the report with stored results, whose metrics are the values of type float.

        Args:
            results: Metrics and details by task.
            examples: Values (N,) by task; see `Score`.
            fields: Further fields of the report.
        """
        scores = {}
        for task, found in results.items():
            metrics = {name: value for name, value in found.items() if isinstance(value, float)}
            details = {name: value for name, value in found.items() if name not in metrics}
            scores[task] = Score(metrics, details, (examples or {}).get(task))
        return cls(scores, **fields)

    @classmethod
    def read(cls, file: Path, tasks: Sequence[Task]) -> Self:
        """Read the results of these tasks from a JSON file. Raises EvaluationError if it has none of them."""
        names = [task.name for task in tasks]
        try:
            content = json.loads(read_text(file))
            results = {name: {**found} for name, found in content["results"].items() if name in names}
            model, source = content.get("model", ""), content.get("provenance", {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EvaluationError(
                f"{file} is not a report of a single model ({error!r}); --model ... --json writes one"
            ) from None
        if not results:
            raise EvaluationError(f"{file} contains none of the tasks {', '.join(names)}")
        examples: dict[str, np.ndarray] = {}
        if (arrays := file.with_suffix(".npz")).is_file():
            with np.load(arrays, allow_pickle=False) as saved:
                examples = {name.removeprefix(EXAMPLES): saved[name] for name in saved.files}
        return cls.of(results, examples, model=model, provenance=source)

    def write_examples(self, file: Path) -> None:
        """Write the examples to the .npz file next to the JSON file; without any, one of an earlier report is removed."""
        arrays: Any = {f"{EXAMPLES}{name}": array for name, array in self.examples.items()}
        if arrays:
            np.savez_compressed(file.with_suffix(".npz"), **arrays)
        else:
            file.with_suffix(".npz").unlink(missing_ok=True)

    @property
    def content(self) -> dict[str, Any]:
        """Content of the JSON file."""
        means = averages(self.results)
        return {
            "model": self.model,
            "results": self.results,
            **({"averages": means} if means else {}),
            "provenance": self.provenance,
        }

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Metrics and details by task."""
        return {task: {**score.metrics, **score.details} for task, score in self.scores.items()}

    @property
    def examples(self) -> dict[str, np.ndarray]:
        """Values (N,) by task for a paired test; see `Score`."""
        return {task: score.examples for task, score in self.scores.items() if score.examples is not None}

    @property
    def fitted(self) -> str | None:
        """What the encoder's post-processing, such as a whitening, was fitted on; None without any."""
        found = self.provenance.get("protocol", {}).get("fitted_on")
        return found and f"fitted on {found['sentences']:,} sentences: {found['source']}"

    @property
    def flat(self) -> dict[str, float]:
        """Metrics by ``TASK/METRIC``."""
        return {f"{task}/{name}": value for task, metrics in self.items() for name, value in metrics.items()}

    def with_averages(self, metric: str | None = None) -> Report:
        """Return the report with the averages of its tasks as tasks; see `averages`."""
        means = {task: Score(found) for task, found in averages(self.results, metric).items()}
        return replace(self, scores={**self.scores, **means})

    def count(self, task: str) -> int | None:
        """Return the number of pairs or other examples of a task, or None if it is not known."""
        _, details, examples = self.scores[task]
        return next((details[name] for name in COUNTS if name in details), None if examples is None else len(examples))

    def test(self, other: Report, task: str, metric: str, gold: Mapping[str, np.ndarray]) -> statistics.Test | None:
        """Test the difference of another report from this one on a task; None without the values that a test needs.

        Args:
            other: Report of another encoder.
            task: Task that both have.
            metric: Accuracy, or a correlation.
            gold: Ratings (N,) by task, see `gold_of`.
        """
        first, second = self.examples.get(task), other.examples.get(task)
        if first is None or second is None:
            return None
        if metric == "accuracy":
            return statistics.sign_test(first, second)
        if metric in ("spearman", "pearson") and task in gold:
            return statistics.paired_bootstrap(first, second, gold[task], metric)
        return None

    def changes(self, after: Report, tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
        """Return by task the main metric, the number of examples, and if it can be tested p and interval of the change.

        Args:
            after: Report of the encoder after training; this one is before it.
            tasks: The tasks of both.
        """
        found, gold = {}, gold_of(tasks)
        for task in tasks:
            tested = self.test(after, task.name, task.primary, gold)
            count = after.count(task.name)
            found[task.name] = {
                "metric": task.primary,
                **({} if count is None else {"n": count}),
                **({} if tested is None else tested._asdict()),
            }
        return found

    def __getitem__(self, task: str) -> dict[str, float]:
        return self.scores[task].metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)


def evaluate(tasks: Sequence[Task], encoder: Encoder) -> Report:
    """Score an encoder on tasks with distinct names; each distinct sentence is encoded once."""
    encoded = encoder if isinstance(encoder, Encoded) else encode_once(tasks, encoder)
    return Report({task.name: task.score(encoded) for task in tasks})


def measure(spec: str, model: Model, tasks: Sequence[Task], encoded: Encoded | None = None) -> Report:
    """Score a model, with the provenance of the scores.

    Args:
        spec: Name of the model in the report.
        model: The model.
        tasks: Tasks with distinct names.
        encoded: The model with the embeddings of the tasks' sentences, if they are known.
    """
    return replace(evaluate(tasks, encoded or model), model=spec, provenance=provenance(model, tasks))


def gold_of(tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Return the ratings (N,) of the tasks that have ratings."""
    return {task.name: found for task in tasks if isinstance(found := getattr(task, "gold", None), np.ndarray)}


def averages(results: Results, metric: str | None = None) -> dict[str, dict[str, float]]:
    """Average the STS tasks and the transfer tasks, as the papers do: each score is rounded to 2 decimals first.

    Args:
        results: Results of one run.
        metric: Metric to average. Default: Spearman for STS, accuracy for transfer.

    Returns:
        Averages as tasks, such as ``average of 7``, for groups with at least two results.
    """
    found = {}
    for title, group, headline in (("average", SEVEN, "spearman"), ("transfer average", TRANSFER, "accuracy")):
        values = [results.get(task, {}).get(metric or headline) for task in group]
        rounded = [round(value, 2) for value in values if isinstance(value, float)]
        if len(rounded) > 1:
            found[f"{title} of {len(rounded)}"] = {metric or headline: sum(rounded) / len(rounded)}
    return found


def provenance(model: Model, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return hashes of model and data, the protocol, and versions of libraries."""
    similarity = {"similarity": "cosine", "spearman": "all subsets concatenated"}
    return {
        "model_sha256": model.hash,
        "data_sha256": {task.name: getattr(task, "hash", None) for task in tasks},
        "protocol": {**similarity, **model.protocol},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    }


@dataclass
class Outcome:
    """Output of a command: a table, the content of the JSON file, metrics for MLflow, and figures."""

    table: str
    content: dict[str, Any]
    metrics: dict[str, float]
    figures: dict[str, Figure]
    report: Report | None = None
    """Report of a single model."""


Runs = Mapping[str, Sequence[Report]]
"""Reports of each model's runs, by label."""


def check_comparable(runs: Runs, tasks: Sequence[Task]) -> None:
    """Raise EvaluationError if reports, or these tasks, have different data or a classifier with different protocols.

    Args:
        runs: Reports by label.
        tasks: Tasks whose data is here.
    """
    here = {task.name: getattr(task, "hash", None) for task in tasks}
    labelled = [(label, report) for label, several in runs.items() for report in several]
    data = Report(dict.fromkeys(here, Score({})), provenance={"data_sha256": here})
    first: dict[tuple[str, str], tuple[Any, str]] = {}
    for label, report in [*labelled, ("--data", data)]:
        hashes = report.provenance.get("data_sha256", {})
        values = {(task, "data"): digest for task, digest in hashes.items() if task in report}
        values |= {(task, "protocol"): score.details.get("protocol") for task, score in report.scores.items()}
        for (task, what), value in values.items():
            known, other = first.setdefault((task, what), (value, label)) if value is not None else (None, "")
            if known != value:
                raise EvaluationError(f"{other} and {label} cannot be compared: {task} was measured with different {what}")


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
            partial(similarity_by_gold_figure, {"": task.similarities(encoded)}, task.gold, gold_is=task.gold_is),
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


def scatter(runs: Runs, tasks: Sequence[Task]) -> Iterator[tuple[str, Figure]]:
    """Draw several models, by label, on each task, and yield name and figure.

    For rated pairs, the figure shows the cosines of the first runs by rating. For the geometry of pairs, it shows alignment
    against uniformity of the first runs, coloured by the score on the pairs if all models have one. Plugins draw figures of
    other tasks.
    """
    from multicse.evaluation.figures.basic import alignment_uniformity_scatter, similarity_by_gold_figure

    for task in tasks:
        if isinstance(task, PairTask):
            firsts = {label: several[0].scores[task.name] for label, several in runs.items() if task.name in several[0]}
            cosines = {
                f"{label}: Spearman {score.metrics['spearman']:.1f}": score.examples
                for label, score in firsts.items()
                if score.examples is not None
            }
            if cosines:
                yield f"similarity_{task.name}", similarity_by_gold_figure(cosines, task.gold, gold_is=task.gold_is)
        measured = {label: [run.results for run in several if task.name in run] for label, several in runs.items()}
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
