"""Rated pairs from a Hugging Face dataset: of the Hub, or a folder of parquet or JSON lines on disk."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evaluation.task import EvaluationError
from evaluation.tasks.sts import PairTask, collect, rating

# The seven sets and their dev and training splits as mteb publishes them: raw text, one concatenated split (so that the
# means over subsets, which the Hub's copies do not name, equal the number over all pairs).
SHORT = {
    **{f"sts{year}": f"mteb/sts{year}-sts:test" for year in range(12, 17)},
    "stsb-train": "mteb/stsbenchmark-sts:train",
    "stsb-dev": "mteb/stsbenchmark-sts:validation",
    "stsb-test": "mteb/stsbenchmark-sts:test",
    "sickr": "mteb/sickr-sts:test",
}

# Names that datasets of rated pairs give to their columns, the usual one first. SICK's label is its entailment class
# and stands beside relatedness_score, so label comes last.
SENTENCES = (("sentence1", "sentence2"), ("sentence_A", "sentence_B"))
SCORES = ("score", "similarity_score", "relatedness_score", "label")


def hub_pairs(spec: str) -> PairTask:
    """The task of ``NAME``, ``NAME:SPLIT`` or ``NAME:CONFIG:SPLIT``; the split is test when none is given.

    NAME is a dataset of the Hub, a folder of a dataset on disk, or one of the short names of `SHORT` (the task is then
    called so; else after dataset, configuration and split). No code of a dataset is ever run.

    Raises EvaluationError when the library is absent, the dataset or split is not there, or it has no such columns.
    """
    name, config, split = _parse(spec)
    columns, rows = _load(name, config, split)
    first, second = _sentences(columns, spec)
    score = next((column for column in SCORES if column in columns), None)
    if score is None:
        raise EvaluationError(f"hub:{spec} has no column of ratings; known are {', '.join(SCORES)}; found {_shown(columns)}")
    rated = [
        ("all", _gold(row[score], f"hub:{spec}, row {i}"), _text(row, first, spec, i), _text(row, second, spec, i))
        for i, row in enumerate(rows)
    ]
    parts = [Path(name).name, *([config] if config else []), split]
    title = spec if spec in SHORT else re.sub(r"[^\w.-]+", "-", "-".join(parts))
    return PairTask(title, collect(rated, f"hub:{spec}"))


def _parse(spec: str) -> tuple[str, str | None, str]:
    name, *rest = SHORT.get(spec, spec).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise EvaluationError(f"hub:{spec} is not NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; short names are {', '.join(SHORT)}")
    return name, rest[0] if len(rest) == 2 else None, rest[-1] if rest else "test"


def _load(name: str, config: str | None, split: str) -> tuple[list[str], Iterable[dict[str, Any]]]:
    """Column names and rows of one split."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise EvaluationError("a dataset of the Hub is read by the library datasets: pip install datasets") from error
    folder = Path(name).expanduser()
    try:
        # A folder is read as it is now, without a copy in the cache.
        loaded = load_dataset(str(folder) if folder.is_dir() else name, config, split=split, streaming=folder.is_dir())
    except Exception as error:  # the library raises a dozen kinds: no network, no dataset, no split, a script, a bad file
        copy = (
            ""
            if folder.is_dir()
            else (
                f". A copy on disk works too: `hf download --repo-type dataset {name} --local-dir DIR`, then hub:DIR:{split}"
            )
        )
        which = f"{name}{f', configuration {config}' if config else ''}, split {split}"
        raise EvaluationError(f"the dataset {which}, does not load: {str(error).rstrip('.')}{copy}") from error
    rows = list(loaded)
    return list(loaded.column_names or (rows[0] if rows else ())), rows


def _sentences(columns: list[str], spec: str) -> tuple[str, str]:
    for first, second in SENTENCES:
        if first in columns and second in columns:
            return first, second
    known = " or ".join(f"{first}, {second}" for first, second in SENTENCES)
    raise EvaluationError(f"hub:{spec} has no two columns of sentences; known are {known}; found {_shown(columns)}")


def _gold(value: Any, place: str) -> float | None:
    return rating("" if value is None else str(value), place)


def _text(row: dict[str, Any], column: str, spec: str, number: int) -> str:
    if not isinstance(row[column], str):
        raise EvaluationError(f"hub:{spec}, row {number}: {column} is {row[column]!r}, not a text")
    return row[column]


def _shown(columns: list[str]) -> str:
    return ", ".join(columns) or "none"
