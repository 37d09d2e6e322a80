"""SentEval's seven transfer tasks: a classifier on frozen sentence vectors (Conneau and Kiela 2018).

Files are those of SentEval's ``downstream`` folder. A task is scored by how its data is split: nested k-fold where there
is one set (MR, CR, SUBJ, MPQA), k-fold on the training set where there is also a test set (TREC, MRPC), the given split
where there is a dev set as well (SST-2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from multicse.data.text_files import read_lines
from multicse.evaluation.task import Encoder, EvaluationError, Score
from multicse.evaluation.tasks.classification import Labelled, LabelledTask, Row
from multicse.reproduction.tasks import probe
from multicse.reproduction.tasks.classifiers import Protocol

Parts = dict[str, list[Row]]  # "all"; "train" and "test"; or "train", "dev" and "test"


class TransferTask(LabelledTask):
    """Accuracy (and for pairs the F1 of class 1) of a classifier trained on frozen vectors, in points.

    With one part "all" the accuracy is the mean over the outer folds of nested k-fold; otherwise it is that of the test
    part. Pairs of vectors u, v become the features [|u - v|, u * v].
    """

    def __init__(self, name: str, parts: Parts, protocol: Protocol = probe.TEST, source: str = "") -> None:
        # SentEval sorts before it splits, so the folds depend on this order.
        rows = {part: sorted(rows, key=_senteval_order) for part, rows in parts.items()}
        super().__init__(name, Labelled(f"task {name}" + (f" ({source})" if source else ""), rows))
        self.protocol = protocol
        if "dev" not in parts:
            self.data.check_folds(protocol.kfold, probe.fewest_rows(protocol, 2 if "all" in parts else 1))

    def score(self, encoder: Encoder) -> Score:
        """``accuracy``, and ``f1`` of class 1 for pairs; in the details counts, the L2 of each fold, dev accuracy."""
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

BLANK = "."  # what stands for a blank line, as in SentEval's batchers: CR has 4 and MPQA 3 among their published counts


class Form(NamedTuple):
    """What a line of a file holds: how many fields `split` makes of it, and which of them are label and sentences."""

    fields: int
    label: int
    text: int
    second: int | None = None
    classes: tuple[str, ...] = ("0", "1")
    header: bool = False
    split: Callable[[str], Sequence[str]] = lambda line: line.split("\t")


def _trec_fields(line: str) -> Sequence[str]:
    """CLASS, subclass and question of ``CLASS:subclass question``; the class is learned."""
    target, _, question = line.strip().partition(" ")
    return *target.partition(":")[::2], question


SST = Form(2, label=1, text=0)  # the training part is phrases of the parse trees (67,349)
TREC = Form(3, label=0, text=2, classes=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), split=_trec_fields)
MRPC = Form(5, label=0, text=3, second=4, header=True)  # quality, two ids, two sentences; quotes are text


def _read(path: Path, form: Form) -> list[Row]:
    # SentEval reads some files as latin-1 (TREC holds a byte that is no UTF-8) and others as UTF-8.
    rows, lines = [], read_lines(path, latin=True)
    if form.header:
        next(lines, None)
    for number, line in lines:
        fields, place = form.split(line), f"{path}, line {number}"
        if len(fields) != form.fields:
            raise EvaluationError(f"{place}: {len(fields)} fields; {form.fields} are expected, parted by tabs")
        label = fields[form.label].strip()
        if label not in form.classes:
            raise EvaluationError(f"{place}: the label {label!r} is none of {' '.join(form.classes)}")
        second = "" if form.second is None else _tokens(fields[form.second])
        rows.append(Row(_tokens(fields[form.text]), label, place, second))
    return rows


def _read_binary(path: Path, label: str) -> list[Row]:
    """A sentence a line, all of one class."""
    return [Row(_tokens(line), label, f"{path}, line {n}") for n, line in read_lines(path, blank=True, latin=True)]


def _tokens(text: str) -> str:
    return " ".join(text.split()) or BLANK


# Folder of every set, and the files of class 1 and of class 0, or how the file of each part is read.
SETS: dict[str, tuple[str, tuple[str, str] | tuple[Form, dict[str, str]]]] = {
    "mr": ("MR", ("rt-polarity.pos", "rt-polarity.neg")),
    "cr": ("CR", ("custrev.pos", "custrev.neg")),
    "subj": ("SUBJ", ("subj.objective", "subj.subjective")),
    "mpqa": ("MPQA", ("mpqa.pos", "mpqa.neg")),
    "sst2": ("SST/binary", (SST, {part: f"sentiment-{part}" for part in ("train", "dev", "test")})),
    "trec": ("TREC", (TREC, {"train": "train_5500.label", "test": "TREC_10.label"})),
    "mrpc": ("MRPC", (MRPC, {part: f"msr_paraphrase_{part}.txt" for part in ("train", "test")})),
}
TRANSFER = tuple(SETS)  # in the papers' column order


def available(folder: Path) -> list[str]:
    """The transfer tasks whose data is in `folder`, SentEval's ``downstream``."""
    return [name for name, (place, _) in SETS.items() if (folder / place).is_dir()]


def make(name: str, folder: Path, protocol: Protocol = probe.TEST) -> TransferTask:
    """A transfer task by its name in `SETS`, from SentEval's ``downstream`` folder.

    Raises EvaluationError or DataError for a missing folder or file, and bad lines.
    """
    place, (form, files) = SETS[name]
    base = folder / place
    if not base.is_dir():
        raise EvaluationError(f"task {name}: no folder {place} in {folder}; give SentEval's downstream folder")
    if isinstance(form, Form):
        assert isinstance(files, dict)
        parts = {part: _read(base / file, form) for part, file in files.items()}
    else:
        parts = {"all": [*_read_binary(base / form, "1"), *_read_binary(base / str(files), "0")]}
    return TransferTask(name, parts, protocol, str(base))
