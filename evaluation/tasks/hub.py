"""Rated pairs from a Hugging Face dataset: of the Hub, or a folder of parquet or JSON lines on disk."""

from __future__ import annotations

import re
from pathlib import Path

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.sts import PairTask, Rated, collect, rating

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
FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
SCORES = ("score", "similarity_score", "relatedness_score", "label")


def hub_pairs(spec: str) -> PairTask:
    """The task of ``NAME``, ``NAME:SPLIT`` or ``NAME:CONFIG:SPLIT``; the split is test when none is given.

    NAME is a dataset of the Hub, a folder of a dataset on disk, or one of the short names of `SHORT` (the task is then
    called so; else after dataset, configuration and split). No code of a dataset is ever run.

    Raises EvaluationError when the library is absent, the dataset or split is not there, or it has no such columns.
    """
    name, *rest = SHORT.get(spec, spec).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise EvaluationError(f"hub:{spec} is not NAME, NAME:SPLIT or NAME:CONFIG:SPLIT; short names are {', '.join(SHORT)}")
    split = rest[-1] if rest else "test"
    rated = _read(spec, name, rest[0] if len(rest) == 2 else None, split)
    title = spec if spec in SHORT else re.sub(r"[^\w.-]+", "-", "-".join([Path(name).name, *(rest or [split])]))
    return PairTask(title, collect(rated, f"hub:{spec}"))


def _read(spec: str, name: str, config: str | None, split: str) -> list[Rated]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise EvaluationError("a dataset of the Hub is read by the library datasets: pip install datasets") from error
    folder = Path(name).expanduser()
    try:
        # A folder is read as it is now, without a copy in the cache.
        loaded = load_dataset(str(folder) if folder.is_dir() else name, config, split=split, streaming=folder.is_dir())
    except Exception as error:  # the library raises a dozen kinds: no network, no dataset, no split, a script, a bad file
        which = f"{name}{f', configuration {config}' if config else ''}, split {split}"
        copy = f". A copy on disk works too: `hf download --repo-type dataset {name} --local-dir DIR`, then hub:DIR:{split}"
        raise EvaluationError(
            f"the dataset {which}, does not load: {str(error).rstrip('.')}{'' if folder.is_dir() else copy}"
        ) from error
    rows = list(loaded)
    columns = list(loaded.column_names or (rows[0] if rows else ()))
    score, first, second = (next((c for c in known if c in columns), None) for known in (SCORES, FIRST, SECOND))
    if score is None or first is None or second is None:
        raise EvaluationError(
            f"hub:{spec} needs two columns of sentences, {' '.join((*FIRST, *SECOND))}, and one of ratings, "
            f"{' '.join(SCORES)}; it has {', '.join(columns) or 'none'}"
        )
    rated: list[Rated] = []
    for i, row in enumerate(rows):
        place = f"hub:{spec}, row {i}"
        if not isinstance(row[first], str) or not isinstance(row[second], str):
            raise EvaluationError(f"{place}: {first} or {second} is no text")
        rated.append(("all", rating("" if row[score] is None else str(row[score]), place), row[first], row[second]))
    return rated
