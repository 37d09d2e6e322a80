"""How good is an encoder: ``python pipelines/evaluate.py --model DIR --data DIR --tasks sts12 stsb-test --json OUT``."""

from __future__ import annotations

import json
import logging
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if __name__ == "__main__":
    # The repository instead of this folder: the rooms are found without installation, and this file is not taken for
    # the package `evaluate` that other libraries look for.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

if TYPE_CHECKING:
    from evaluation.encoders import FolderEncoder
    from evaluation.task import Task


@dataclass(frozen=True)
class Arguments:
    """Evaluate any Hugging Face or sentence-transformers folder.

    Correlations are in points: cosine of the two sentences against the human rating, all subsets of a set concatenated
    (spearman, the headline), and the mean over subsets, plain and weighted by size. Without --data the Lee corpus of
    gensim is used (lee, lee-dev, lee-all).

    Example: python pipelines/evaluate.py --model runs/demo/export --data SentEval/data/downstream --json scores.json
    """

    model: Path
    """Folder of the model."""
    data: Path | None = None
    """A SentEval downstream folder, or a folder of raw TSVs (STS12.raw.tsv, STSB.dev.raw.tsv, SICK.test.raw.tsv, ...)."""
    tasks: tuple[str, ...] = ()
    """sts12 ... sts16, stsb-dev, stsb-test, sickr-dev, sickr, lee, lee-dev, lee-all; with -geometry at the end: alignment
    and uniformity. Default: everything found."""
    pooling: str | None = None
    """cls, mean, max, ...: replaces the model's own. A folder that says nothing of pooling gets mean."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write the results, with what is needed to repeat them, to this file."""
    device: str | None = None
    """cpu, cuda, cuda:1, ... Default: the GPU if there is one."""
    batch_size: int = 128
    """In texts of 32 tokens: a batch holds 32 times as many tokens."""


def run(arguments: Arguments) -> dict[str, Any]:
    """Scores, details and provenance: what the JSON file holds.

    Raises ValueError for a missing folder or file, an unknown task or pooling, and bad lines or embeddings.
    """
    from evaluation import registry, tables
    from evaluation.encoders import load_encoder
    from evaluation.task import EvaluationError, encode_once

    names = list(arguments.tasks) or registry.available(arguments.data)
    if not names:
        raise EvaluationError(f"the data folder {arguments.data} holds no evaluation set; known: {', '.join(registry.STS)}")
    tasks = registry.make_tasks(names, arguments.data)
    encoder = load_encoder(arguments.model, arguments.pooling, arguments.device, arguments.batch_size)
    encoded = encode_once(tasks, encoder)
    scores = {task.name: task.score(encoded) for task in tasks}
    results = {name: {**score.metrics, **score.details} for name, score in scores.items()}
    report: dict[str, Any] = {"model": str(arguments.model), "results": results}
    if (average := tables.average(results)) is not None:
        report["average"] = average
    return {**report, "provenance": provenance(encoder, tasks)}


def provenance(encoder: FolderEncoder, tasks: list[Task]) -> dict[str, Any]:
    """What was measured, on what, by what."""
    packages = ("torch", "transformers", "sentence-transformers", "numpy", "scipy")
    return {
        "model_sha256": encoder.hash,
        "data_sha256": {task.name: getattr(task, "hash", None) for task in tasks},
        "protocol": {
            "similarity": "cosine",
            "spearman": "all subsets concatenated",
            "pooling": encoder.pooling,
            "max_tokens": encoder.limit,
            "texts_cut": encoder.cut,
            "device": str(encoder.device),
        },
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
    }


def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("evaluation").setLevel(logging.INFO)
    try:
        if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
            raise ValueError(f"--json {arguments.json}: no folder {arguments.json.absolute().parent}")
        quiet()
        report = run(arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from evaluation import tables

    print(tables.task_table(report["results"]))
    if "average" in report:
        print(f"average of the seven: {report['average']:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"written to {arguments.json}")
    return 0


def quiet() -> None:
    """Loading bars and hints of the libraries are not part of a table."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
