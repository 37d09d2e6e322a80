"""Labelled sentences or pairs, in one part or several: what they must satisfy, and how they are read from a TSV.

A TSV has a header with the column ``label`` and one of sentences (``text``, ``sentence``, ...), or two for pairs
(``sentence1 sentence2``, ``premise hypothesis``, ``question sentence``), tab separated, never quoted, one row a line,
``.tsv`` or ``.tsv.gz``. Its parts are, in this order of preference: the files ``NAME.train.tsv``, ``NAME.dev.tsv`` and
``NAME.test.tsv``, given by any one of them; a column ``split`` with train, dev and test; else 80, 10 and 10 % of every
class, drawn by a seed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multicse.data.errors import did_you_mean
from multicse.data.text_files import read_rows
from multicse.evaluation.task import Encoder, EvaluationError, look_up

PARTS = ("train", "dev", "test")
TEXT = ("text", "sentence", "question", "premise", "hypothesis", "text1", "text2", "sentence1", "sentence2")
TENTHS = 10  # of a file that states no split: one is test, one dev


class Row(NamedTuple):
    """A labelled sentence, or a labelled pair (`second`); `place` names file and line."""

    text: str
    label: str
    place: str
    second: str = ""


class Labelled:
    """Rows by part ("all"; "train" and "test"; or "train", "dev" and "test") with classes numbered in sorted order.

    Raises EvaluationError for an empty part, a single class, and a class that train has no row of.
    """

    def __init__(self, source: str, parts: dict[str, list[Row]]) -> None:
        self.source = source
        self.parts = parts
        for part, rows in parts.items():
            if not rows:
                raise EvaluationError(f"{source}: the {part} part is empty")
        learned = parts.get("all", parts.get("train", []))
        self.counts = Counter(row.label for row in learned)
        self.classes = tuple(sorted(self.counts))
        if len(self.classes) < 2:
            raise EvaluationError(
                f"{source}: all {len(learned):,} rows to learn from have the label {self.classes[0]!r} (the first is "
                f"{learned[0].place}); a classifier needs at least two classes"
            )
        for part, rows in parts.items():
            for row in rows:
                if row.label not in self.counts:
                    raise EvaluationError(
                        f"{row.place}: the label {row.label!r} of the {part} part is not in the train part, so it cannot "
                        f"be learned.{did_you_mean(row.label, self.classes)}"
                    )

    @cached_property
    def y(self) -> dict[str, np.ndarray]:
        """Class numbers (N,) by part."""
        number = {label: i for i, label in enumerate(self.classes)}
        return {part: np.asarray([number[row.label] for row in rows]) for part, rows in self.parts.items()}

    @property
    def pairs(self) -> bool:
        """Whether the rows are pairs of sentences."""
        return any(row.second for rows in self.parts.values() for row in rows)

    @property
    def hash(self) -> str:
        """sha256 of parts, sentences and labels."""
        digest = hashlib.sha256()
        for part, rows in self.parts.items():
            for row in rows:
                digest.update(repr((part, row.text, row.second, row.label)).encode())
        return digest.hexdigest()

    @cached_property
    def sentences(self) -> list[str]:
        """Distinct sentences of all parts."""
        rows = [row for part in self.parts.values() for row in part]
        seconds = [row.second for row in rows] if self.pairs else []
        return list(dict.fromkeys([row.text for row in rows] + seconds))

    def features(self, encoder: Encoder) -> dict[str, np.ndarray]:
        """What a classifier is given, float32 by part: vectors (N, d), or the `pair_features` (N, 2d) of pairs."""
        sides = [[row.text for row in rows] for rows in self.parts.values()]
        if self.pairs:
            sides += [[row.second for row in rows] for rows in self.parts.values()]
        found = [vectors.astype(np.float32) for vectors in look_up(encoder, *sides)]
        made = map(pair_features, found[: len(self.parts)], found[len(self.parts) :]) if self.pairs else found
        return dict(zip(self.parts, made, strict=True))

    def check_folds(self, folds: int, least: int) -> None:
        """Raises EvaluationError when a class has fewer than `least` rows to learn from."""
        label, count = min(self.counts.items(), key=lambda item: item[1])
        if count < least:
            raise EvaluationError(
                f"{self.source}: the class {label!r} has {count} rows, too few for {folds} folds ({least} are needed); "
                "use fewer folds (kfold of the protocol) or leave the class out"
            )

    def check_measured(self) -> None:
        """Raises EvaluationError when the dev or the test part has one class: always the same answer would be perfect."""
        for part in ("dev", "test"):
            rows = self.parts.get(part, [])
            if rows and len({row.label for row in rows}) < 2:
                raise EvaluationError(
                    f"{self.source}: the {part} part has {len(rows):,} rows, all of the class {rows[0].label!r} (the first "
                    f"is {rows[0].place}); it needs at least 2 rows of 2 classes, so that there is something to tell apart"
                )


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """[|u - v|, u * v]: (N, 2d) of u, v (N, d)."""
    return np.concatenate([np.abs(u - v), u * v], axis=1)


class LabelledTask:
    """What the tasks on labelled sentences share: the name, the data, its hash and its sentences."""

    primary = "accuracy"

    def __init__(self, name: str, data: Labelled) -> None:
        self.name = name
        self.data = data

    @property
    def hash(self) -> str:
        """sha256 of parts, sentences and labels."""
        return self.data.hash

    def sentences(self) -> list[str]:
        """Distinct sentences of all parts."""
        return self.data.sentences


# ---------------------------------------------------------------------------------------------------------------- files


def read_labelled(path: str | Path, seed: int = 0) -> Labelled:
    """Train, dev and test of a labelled TSV; `seed` draws them where the file does not state them.

    Raises EvaluationError, with file and line, for a missing file or column, a bad row, and a part that is not there.
    """
    file = Path(path).expanduser()
    named = re.fullmatch(r"(.+)\.(train|dev|test)(\.tsv(?:\.gz)?)", file.name)
    if named:
        files = {part: file.with_name(f"{named[1]}.{part}{named[3]}") for part in PARTS}
        return Labelled(str(file), {part: [row for _, row in _rows(files[part])] for part in PARTS})
    rows = list(_rows(file))
    if any(part for part, _ in rows):
        return Labelled(str(file), {part: [row for own, row in rows if own == part] for part in PARTS})
    return Labelled(str(file), _tenths(file, [row for _, row in rows], seed))


def _tenths(file: Path, rows: list[Row], seed: int) -> dict[str, list[Row]]:
    from sklearn.model_selection import StratifiedKFold

    labels = [row.label for row in rows]
    label, count = min(Counter(labels).items(), key=lambda item: item[1], default=("", 0))
    if count < TENTHS:
        raise EvaluationError(
            f"{file}: the class {label!r} has {count} rows, too few to be split into tenths ({TENTHS} are needed); state "
            "the split in a column named split (train, dev, test), or leave the class out"
        )
    splitter = StratifiedKFold(TENTHS, shuffle=True, random_state=seed)
    tenths = [left_out for _, left_out in splitter.split(np.zeros(len(rows)), labels)]
    chosen = {"test": tenths[0], "dev": tenths[1], "train": np.sort(np.concatenate(tenths[2:]))}
    return {part: [rows[i] for i in chosen[part]] for part in PARTS}


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Rows of a TSV with the part each states ("" without a split column)."""
    for number, fields in read_rows(path, ("label",), TEXT):
        place = f"{path}, line {number}"
        texts = [" ".join(cell.split()) for column, cell in fields.items() if column in TEXT]
        label = fields["label"].strip()
        if len(texts) > 2:
            raise EvaluationError(f"{path}: {len(texts)} columns are sentences ({', '.join(TEXT)}); leave one or two")
        if not label or not all(texts):
            raise EvaluationError(f"{place}: the label or a sentence is empty")
        part = fields.get("split", "").strip()
        if "split" in fields and part not in PARTS:
            raise EvaluationError(f"{place}: the split {part!r} is none of {', '.join(PARTS)}.{did_you_mean(part, PARTS)}")
        yield part, Row(texts[0], label, place, *texts[1:])
