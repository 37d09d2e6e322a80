"""SentEval's seven transfer tasks: a classifier on frozen sentence embeddings (Conneau and Kiela 2018).

The data is SentEval's folder ``downstream``. Datasets without splits (MR, CR, SUBJ, MPQA) are evaluated by nested k-fold,
datasets with a training and test set (TREC, MRPC) by k-fold on the training set, and datasets with a dev set (SST-2) on the
given split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from multicse import plugins
from multicse.data.text_files import read_lines
from multicse.evaluation.kind import Family
from multicse.evaluation.registry import located
from multicse.evaluation.report import TRANSFER
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task
from multicse.evaluation.tasks.classification import Labelled, LabelledTask, Row
from multicse.reproduction.tasks import probe
from multicse.reproduction.tasks.classifiers import Protocol

Parts = dict[str, list[Row]]  # "all"; "train" and "test"; or "train", "dev" and "test"


class TransferTask(LabelledTask):
    """Accuracy (and F1 of class 1 for pairs) of a classifier on frozen embeddings, in points.

    With one split "all", the accuracy is the mean over the outer folds of nested k-fold.

    Args:
        name: Name of the task.
        parts: Rows by split.
        protocol: Protocol of the classifiers.
        source: Folder of the data, for errors.
    """

    def __init__(self, name: str, parts: Parts, protocol: Protocol = probe.TEST, source: str = "") -> None:
        # SentEval sorts before splitting, so the folds depend on this order.
        rows = {part: sorted(rows, key=_senteval_order) for part, rows in parts.items()}
        super().__init__(name, Labelled(f"task {name}" + (f" ({source})" if source else ""), rows))
        self.protocol = protocol
        if "dev" not in parts:
            self.data.check_folds(protocol.kfold, probe.fewest_rows(protocol, 2 if "all" in parts else 1))

    def score(self, encoder: Encoder) -> Score:
        """Return ``accuracy``, and ``f1`` of class 1 for pairs, with counts, L2 per fold and dev accuracy as details."""
        from sklearn.metrics import f1_score

        result = probe.run(self.data.features(encoder), self.data.y, self.protocol)
        metrics = {"accuracy": result.accuracy}
        if self.data.pairs:
            metrics["f1"] = 100 * float(f1_score(self.data.y["test"], result.predicted, zero_division=0))
        details: dict[str, Any] = {part: len(rows) for part, rows in self.data.parts.items()}
        details["blank"] = sum(row.text == BLANK for rows in self.data.parts.values() for row in rows)
        details |= result.details() | {"protocol": dataclasses.asdict(self.protocol)}
        gold = self.data.y["all" if "all" in self.data.y else "test"]
        return Score(metrics, details, result.predicted == gold)


def _senteval_order(row: Row) -> tuple[int, int, str]:
    return len(row.text.split()), len(row.second.split()), row.label


# ---------------------------------------------------------------------------------------------------------------- files

BLANK = "."  # replaces a blank line, as in SentEval; the published counts include 4 of CR and 3 of MPQA


class Form(NamedTuple):
    """Format of the lines of a file: number of fields, and the indices of the label and the sentences."""

    fields: int
    label: int
    text: int
    second: int | None = None
    classes: tuple[str, ...] = ("0", "1")
    header: bool = False
    split: Callable[[str], Sequence[str]] = lambda line: line.split("\t")


def _trec_fields(line: str) -> Sequence[str]:
    """Split ``CLASS:subclass question`` into class (the label), subclass and question."""
    target, _, question = line.strip().partition(" ")
    return *target.partition(":")[::2], question


SST = Form(2, label=1, text=0)  # the training set consists of phrases of parse trees (67,349)
TREC = Form(3, label=0, text=2, classes=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), split=_trec_fields)
MRPC = Form(5, label=0, text=3, second=4, header=True)  # quality, two IDs, two sentences; quotes are text


def _read(path: Path, form: Form) -> list[Row]:
    # SentEval reads some files as Latin-1 (TREC contains a byte that is invalid in UTF-8) and others as UTF-8.
    rows, lines = [], read_lines(path, latin=True)
    if form.header:
        next(lines, None)
    for number, line in lines:
        fields, place = form.split(line), f"{path}, line {number}"
        if len(fields) != form.fields:
            raise EvaluationError(f"{place}: {len(fields)} fields, but {form.fields} separated by tabs are expected")
        label = fields[form.label].strip()
        if label not in form.classes:
            raise EvaluationError(f"{place}: unknown label {label!r}; expected one of {' '.join(form.classes)}")
        second = "" if form.second is None else _tokens(fields[form.second])
        rows.append(Row(_tokens(fields[form.text]), label, place, second))
    return rows


def _read_binary(path: Path, label: str) -> list[Row]:
    """Read one sentence per line, all of one class."""
    return [Row(_tokens(line), label, f"{path}, line {n}") for n, line in read_lines(path, blank=True, latin=True)]


def _tokens(text: str) -> str:
    return " ".join(text.split()) or BLANK


# Folder of each dataset, and the files of class 1 and class 0, or the format and the file of each split.
SETS: dict[str, tuple[str, tuple[str, str] | tuple[Form, dict[str, str]]]] = {
    "mr": ("MR", ("rt-polarity.pos", "rt-polarity.neg")),
    "cr": ("CR", ("custrev.pos", "custrev.neg")),
    "subj": ("SUBJ", ("subj.objective", "subj.subjective")),
    "mpqa": ("MPQA", ("mpqa.pos", "mpqa.neg")),
    "sst2": ("SST/binary", (SST, {part: f"sentiment-{part}" for part in ("train", "dev", "test")})),
    "trec": ("TREC", (TREC, {"train": "train_5500.label", "test": "TREC_10.label"})),
    "mrpc": ("MRPC", (MRPC, {part: f"msr_paraphrase_{part}.txt" for part in ("train", "test")})),
}


def make(name: str, folder: Path, protocol: Protocol = probe.TEST) -> TransferTask:
    """Return a transfer task.

    Args:
        name: Key of `SETS`.
        folder: SentEval's folder ``downstream``.
        protocol: Protocol of the classifiers.
    """
    place, (form, files) = SETS[name]
    base = folder / place
    if not base.is_dir():
        raise EvaluationError(f"task {name}: {place} not found in {folder}; specify SentEval's folder downstream")
    if isinstance(form, Form):
        assert isinstance(files, dict)
        parts = {part: _read(base / file, form) for part, file in files.items()}
    else:
        parts = {"all": [*_read_binary(base / form, "1"), *_read_binary(base / str(files), "0")]}
    return TransferTask(name, parts, protocol, str(base))


class Transfer(probe.Probing, Family):
    """SentEval's transfer tasks."""

    family: Literal["transfer"] = "transfer"
    names: ClassVar[tuple[str, ...]] = TRANSFER

    @classmethod
    def found(cls, folder: Path, pairs: Sequence[str]) -> list[str]:
        """Return the tasks with data in SentEval's folder ``downstream``."""
        return [name for name, (place, _) in SETS.items() if (folder / place).is_dir()]

    def make(self, name: str, data: str | Path | None, pairs: Callable[[str], Any], seed: int) -> Task:
        """Return the task."""
        return make(name, located(name, data)[0], self.settings(seed))


plugins.add("group", "transfer", TRANSFER)
