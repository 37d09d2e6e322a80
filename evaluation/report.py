"""A model measured: its scores with provenance, what significance tests need, and figures."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicse.evaluation import tables
from multicse.evaluation.task import Encoded, Encoder, EvaluationError, Task, encode_once
from multicse.evaluation.tasks.geometry import GeometryTask, PairedGeometryTask
from multicse.evaluation.tasks.sts import PairTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multicse.evaluation.encoders.word_vectors import WordVectors
    from multicse.evaluation.load import Model

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
DRAWN_PAIRS = 20  # of each kind in a t-SNE figure (SG-BERT, Figure 5)
DRAWN_SENTENCES = 8  # in a figure of words
DRAWN_VECTORS = 2000  # in a figure of densities, whose cost grows with the square
DRAWN_TOKENS = 5  # of each text (MoCoUTRL, Figure 2)


@dataclass(frozen=True)
class Measured:
    """One model on some tasks. `report` is what the JSON file holds, `examples` what a test of two single runs needs."""

    report: dict[str, Any]
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    encoded: Encoded | None = None


def measure(spec: str, model: Model, tasks: Sequence[Task]) -> Measured:
    """Score every task; each distinct text is encoded once."""
    encoded = encode_once(tasks, model)
    scores = {task.name: task.score(encoded) for task in tasks}
    results = {name: {**score.metrics, **score.details} for name, score in scores.items()}
    report: dict[str, Any] = {"model": spec, "results": results}
    if (average := tables.average(results)) is not None:
        report["average"] = average
    if (average := tables.average(results, tables.TRANSFER, "accuracy")) is not None:
        report["transfer_average"] = average
    report["provenance"] = provenance(model, tasks)
    examples = {name: score.examples for name, score in scores.items() if score.examples is not None}
    return Measured(report, examples, encoded)


def provenance(model: Model, tasks: Sequence[Task]) -> dict[str, Any]:
    """What was measured, on what, by what."""
    similarity = {"similarity": "cosine", "spearman": "all subsets concatenated"}
    return {
        "model_sha256": model.hash,
        "data_sha256": {task.name: getattr(task, "hash", None) for task in tasks},
        "protocol": {**similarity, **model.protocol},
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
    }


def check_comparable(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raises EvaluationError when two reports were measured on other data, or by other protocols of a classifier."""
    first: dict[tuple[str, str], tuple[Any, str]] = {}
    for label, report in ((label, report) for label, several in reports.items() for report in several):
        hashes = report.get("provenance", {}).get("data_sha256", {})
        for task, scores in report["results"].items():
            for what, value in (("data", hashes.get(task)), ("protocol", scores.get("protocol"))):
                if value is not None:
                    known, other = first.setdefault((task, what), (value, label))
                    if known != value:
                        raise EvaluationError(
                            f"{other} and {label} cannot stand in one column: {task} was measured with other {what} "
                            "(raw text is not tokenised text, and --protocol fast not test); measure both the same way"
                        )


def read_report(file: Path, tasks: Sequence[Task]) -> Measured:
    """A report that was written before, for these tasks, with its examples if they are beside it.

    Raises EvaluationError for a file that is no report of one model, or holds none of the tasks.
    """
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
        results = report["results"]
        if not isinstance(results, dict):
            raise TypeError("results")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f"{file} is no report of a single model ({error!r}); --model ... --json writes one") from None
    names = [task.name for task in tasks]
    report["results"] = {name: results[name] for name in names if name in results}
    if not report["results"]:
        raise EvaluationError(f"{file} holds none of the tasks {', '.join(names)}; it has {', '.join(results)}")
    if missing := [name for name in names if name not in results]:
        logger.warning("%s does not hold %s", file, ", ".join(missing))
    examples: dict[str, np.ndarray] = {}
    if (arrays := file.with_suffix(".npz")).is_file():
        with np.load(arrays, allow_pickle=False) as saved:
            examples = {name: saved[name] for name in saved.files if name in names}
    return Measured(report, examples)


def figures(encoded: Encoded, tasks: Sequence[Task], seed: int = 0) -> Iterator[tuple[str, Figure]]:
    """Name and figure: for pair sets similarity by rating, t-SNE of pairs, angles; for labelled texts angles by class.

    What cannot be drawn (a collapsed encoder has no t-SNE) is left out with a warning.
    """
    for name, draw in _drawings(encoded, tasks, seed):
        try:
            figure = draw()
            figure.suptitle(f"{getattr(encoded.encoder, 'name', '')}   {name}".strip(), fontsize="small", parse_math=False)
            yield name, figure
        except ValueError as error:
            logger.warning("figure %s is left out: %s", name, error)


def _drawings(encoded: Encoded, tasks: Sequence[Task], seed: int) -> Iterator[tuple[str, Callable[[], Figure]]]:
    from multicse.evaluation.encoders.word_vectors import WordVectors
    from multicse.evaluation.figures.basic import COLOURS, similarity_by_gold_figure
    from multicse.evaluation.figures.vectors import angle_kde
    from multicse.evaluation.tasks.classification import ClassificationTask

    for task in tasks:
        if isinstance(encoded.encoder, WordVectors) and task.sentences():
            yield f"importance_{task.name}", partial(_importance, encoded.encoder, task.sentences())
        if isinstance(task, PairTask):
            yield f"similarity_{task.name}", partial(similarity_by_gold_figure, task.similarities(encoded), task.gold)
            yield f"tsne_{task.name}", partial(extreme_pairs, encoded, task, seed)
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode(_some(task.sentences(), seed)))
        elif isinstance(task, ClassificationTask):
            rows = _some([row for part in task.data.parts.values() for row in part], seed)
            texts, labels = [row.text for row in rows], [row.label for row in rows]
            few = len(set(labels)) <= len(COLOURS)  # more could not be told apart
            tokens = token_states(encoded.encoder, texts, seed)
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode(texts), labels if few else None, tokens)


def token_states(model: Encoder, texts: list[str], seed: int = 0) -> np.ndarray | None:
    """States (N, 5, d) behind the last layer of five random tokens of each text, of which one may be drawn twice; None where
    the encoder is no transformer."""
    from multicse.evaluation.encoders.encoder import FolderEncoder

    if not isinstance(model, FolderEncoder) or not hasattr(model.model[0], "auto_model"):
        return None
    rng = np.random.default_rng(seed)
    drawn: list[np.ndarray] = []
    for start in range(0, len(texts), 64):  # the states of all tokens of all texts would be gigabytes
        states = model.model.encode(texts[start : start + 64], output_value="token_embeddings", show_progress_bar=False)
        drawn += [one[rng.integers(len(one), size=DRAWN_TOKENS)].float().cpu().numpy() for one in states]
    return np.stack(drawn)


def _importance(words: WordVectors, sentences: Sequence[str]) -> Figure:
    """Parameter-free attention over the words of the first sentences (GCLSR, Figure 3)."""
    from multicse.evaluation.figures.words import attention_importance, word_importance

    looked_up = (words.known_words(sentence) for sentence in sentences)
    drawn = ((known, attention_importance(vectors)) for known, vectors in looked_up if known)
    return word_importance(list(islice(drawn, DRAWN_SENTENCES)))


def extreme_pairs(encoded: Encoded, task: PairTask, seed: int = 0) -> Figure:
    """t-SNE of 20 pairs with the highest rating and 20 with the lowest (SG-BERT, Figure 5), fewer of a small set.

    Where fewer than 20 are rated exactly so, those with the next ratings follow.
    """
    from multicse.evaluation.figures.vectors import pairs_tsne

    ties = np.random.default_rng(seed).permutation(len(task.gold))  # which of equally rated pairs are drawn
    order = ties[np.argsort(task.gold[ties], kind="stable")]
    size = min(DRAWN_PAIRS, len(order) // 2)
    rows = np.concatenate([order[len(order) - size :], order[:size]])
    first, second = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
    return pairs_tsne(encoded.encode(first), encoded.encode(second), np.arange(len(rows)) < size, seed)


def scatter(runs: Mapping[str, Sequence[Mapping[str, Any]]], tasks: Sequence[Task]) -> Iterator[tuple[str, Figure]]:
    """Several models, label -> the reports of its runs, on each task of geometry.

    Of a pair set alignment against uniformity of the first runs, coloured by the score of that set if it is there; of items
    with captions alignment against text uniformity, and item against text uniformity (Zhao et al. 2023, Figures 2 and 3).
    """
    from multicse.evaluation.figures.basic import alignment_uniformity_scatter
    from multicse.evaluation.figures.pairs import alignment_text_uniformity, text_item_uniformity

    for task in tasks:
        measured = {
            label: [run["results"] for run in several if task.name in run["results"]] for label, several in runs.items()
        }
        results = {label: found for label, found in measured.items() if found}
        if not results:
            continue
        if isinstance(task, PairedGeometryTask):
            models = {label: [run[task.name] for run in found] for label, found in results.items()}
            yield f"alignment_{task.name}", alignment_text_uniformity(models)
            yield f"uniformity_{task.name}", text_item_uniformity(models)
        elif isinstance(task, GeometryTask):
            first = {label: found[0] for label, found in results.items()}
            places = {label: (run[task.name]["alignment"], run[task.name]["uniformity"]) for label, run in first.items()}
            scores = {label: run[task.pairs.name]["spearman"] for label, run in first.items() if task.pairs.name in run}
            label = f"Spearman x 100 on {task.pairs.name}"
            yield task.name, alignment_uniformity_scatter(places, scores if len(scores) == len(places) else None, label)


def _some(items: list[Any], seed: int) -> list[Any]:
    if len(items) <= DRAWN_VECTORS:
        return items
    return [items[i] for i in np.random.default_rng(seed).choice(len(items), DRAWN_VECTORS, replace=False)]
