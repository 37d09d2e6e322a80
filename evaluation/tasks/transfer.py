"""SentEval's seven transfer tasks: a classifier on frozen sentence vectors (Conneau and Kiela 2018).

Files are those of SentEval's ``downstream`` folder. A task is scored by how its data is split: nested k-fold where there
is one set (MR, CR, SUBJ, MPQA), k-fold on the training set where there is also a test set (TREC, MRPC), the given split
where there is a dev set as well (SST-2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.task import Encoder, EvaluationError, Score, did_you_mean
from evaluation.tasks import probe
from evaluation.tasks.labelled_texts import Labelled, LabelledTask, Row
from evaluation.tasks.probe import Protocol
from evaluation.tasks.text_files import read_lines

TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


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

    def features(self, encoder: Encoder) -> dict[str, np.ndarray]:
        """Features (N, d) of every part, or (N, 2d) of pairs."""
        vectors = self.data.vectors(encoder)
        return {part: pair_features(*sides) if self.data.pairs else sides[0] for part, sides in vectors.items()}

    def score(self, encoder: Encoder) -> Score:
        """``accuracy``, and ``f1`` for pairs; in the details the counts, the L2 chosen in each fold, the dev accuracy."""
        result = probe.run(self.features(encoder), self.data.y, self.protocol)
        metrics = {"accuracy": result.accuracy}
        if self.data.pairs:
            metrics["f1"] = f1(self.data.y["test"], result.predicted)
        details: dict[str, Any] = {part: len(rows) for part, rows in self.data.parts.items()}
        details["blank"] = sum(row.text == BLANK for rows in self.data.parts.values() for row in rows)
        details |= result.details() | {"protocol": dataclasses.asdict(self.protocol)}
        gold = self.data.y["all" if "all" in self.data.y else "test"]
        return Score(metrics, details, result.predicted == gold)


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """[|u - v|, u * v]: (N, 2d) of u, v (N, d)."""
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1, in points, of labels (N,)."""
    from sklearn.metrics import f1_score

    return 100 * float(f1_score(gold, predicted, zero_division=0))


def _senteval_order(row: Row) -> tuple[int, int, str]:
    return len(row.text.split()), len(row.second.split()), row.label


# ---------------------------------------------------------------------------------------------------------------- files

BLANK = "."  # what stands for a blank line, as in SentEval's batchers: CR has 4 and MPQA 3 among their published counts


def _binary(positive: str, negative: str) -> Callable[[Path], Parts]:
    """Reader of two files, one sentence a line."""

    def read(folder: Path) -> Parts:
        rows = []
        for path, label in ((folder / positive, "1"), (folder / negative, "0")):
            rows += [Row(_tokens(line), label, f"{path}, line {n}") for n, line in _lines(path, blank=True)]
        return {"all": rows}

    return read


def _sst2(folder: Path) -> Parts:
    """``sentiment-<part>``: sentence, tab, 0 or 1. The training part is phrases of the parse trees (67,349)."""

    def part(name: str) -> list[Row]:
        path, rows = folder / f"sentiment-{name}", []
        for number, line in _lines(path):
            fields = line.split("\t")
            if len(fields) != 2:
                raise EvaluationError(
                    f"{path}, line {number}: {len(fields)} tab-separated fields; sentence and label expected"
                )
            rows.append(Row(_tokens(fields[0]), *_binary_label(fields[1], path, number)))
        return rows

    return {name: part(name) for name in ("train", "dev", "test")}


def _trec(folder: Path) -> Parts:
    """A line is ``CLASS:subclass question``; the class is learned."""

    def part(file: str) -> list[Row]:
        path, rows = folder / file, []
        for number, line in _lines(path):
            target, _, question = line.strip().partition(" ")
            coarse = target.partition(":")[0]
            if coarse not in TREC_CLASSES:
                raise EvaluationError(
                    f"{path}, line {number}: unknown class {coarse!r}; a line is CLASS:subclass, blank, question, with "
                    f"one of the classes {' '.join(TREC_CLASSES)}"
                )
            rows.append(Row(_tokens(question), coarse, f"{path}, line {number}"))
        return rows

    return {"train": part("train_5500.label"), "test": part("TREC_10.label")}


def _mrpc(folder: Path) -> Parts:
    """``msr_paraphrase_<part>.txt``: a header, then quality, two ids, two sentences; quotes are text."""

    def part(name: str) -> list[Row]:
        path, rows = folder / f"msr_paraphrase_{name}.txt", []
        lines = _lines(path)
        next(lines, None)
        for number, line in lines:
            fields = line.split("\t")
            if len(fields) != 5:
                raise EvaluationError(
                    f"{path}, line {number}: {len(fields)} tab-separated fields; quality, two ids and two sentences expected"
                )
            rows.append(Row(_tokens(fields[3]), *_binary_label(fields[0], path, number), _tokens(fields[4])))
        return rows

    return {name: part(name) for name in ("train", "test")}


READERS: dict[str, tuple[str, Callable[[Path], Parts]]] = {
    "mr": ("MR", _binary("rt-polarity.pos", "rt-polarity.neg")),
    "cr": ("CR", _binary("custrev.pos", "custrev.neg")),
    "subj": ("SUBJ", _binary("subj.objective", "subj.subjective")),
    "mpqa": ("MPQA", _binary("mpqa.pos", "mpqa.neg")),
    "sst2": ("SST/binary", _sst2),
    "trec": ("TREC", _trec),
    "mrpc": ("MRPC", _mrpc),
}
TRANSFER = tuple(READERS)  # in the papers' column order


def available(folder: str | Path) -> list[str]:
    """The transfer tasks whose data is in `folder`, SentEval's ``downstream`` or the folder above it."""
    return [name for name, (place, _) in READERS.items() if any((base / place).is_dir() for base in _bases(folder))]


def make(name: str, folder: str | Path, protocol: Protocol = probe.TEST) -> TransferTask:
    """A transfer task by name, from SentEval's ``downstream`` folder or the folder above it.

    Raises EvaluationError for an unknown name, a missing folder or file, and bad lines.
    """
    if name not in READERS:
        raise EvaluationError(f"unknown transfer task {name!r}{did_you_mean(name, READERS)} Tasks are {', '.join(READERS)}")
    place, read = READERS[name]
    found = [base / place for base in _bases(folder) if (base / place).is_dir()]
    if not found:
        raise EvaluationError(f"task {name}: no folder {place} in {folder}; give SentEval's downstream folder")
    return TransferTask(name, read(found[0]), protocol, str(found[0]))


def _bases(folder: str | Path) -> tuple[Path, Path]:
    base = Path(folder).expanduser()
    if not base.is_dir():
        raise EvaluationError(f"no data folder {base}")
    return base, base / "downstream"


def _lines(path: Path, blank: bool = False) -> Iterator[tuple[int, str]]:
    """SentEval reads some files as latin-1 (TREC holds a byte that is no UTF-8) and others as UTF-8."""
    return read_lines(path, blank=blank, latin=True)


def _tokens(text: str) -> str:
    return " ".join(text.split()) or BLANK


def _binary_label(text: str, path: Path, number: int) -> tuple[str, str]:
    """The label, 0 or 1, and its place."""
    if text.strip() not in ("0", "1"):
        raise EvaluationError(f"{path}, line {number}: the label {text!r} is neither 0 nor 1")
    return text.strip(), f"{path}, line {number}"
