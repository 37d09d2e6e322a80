"""Rated pairs as SentEval and the SemEval contests distribute them: tokenised, lower-cased text in several forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from multicse import plugins
from multicse.data.text_files import read_cells, read_lines
from multicse.evaluation.task import EvaluationError, Task, metric_name
from multicse.evaluation.tasks import sts
from multicse.evaluation.tasks.sts import Layout, Pairs, PairTask, collect, joined, rating, read_table
from multicse.reproduction.tasks.transfer import SETS

SEMEVAL_INPUT = re.compile(r"STS\.input\.(.+)\.txt")

# The subsets of each year in SimCSE's SentEval; STS13 lacks SMT, which may not be redistributed.
SUBSETS = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
FILES = {
    **{name: f"STS/{name.upper()}-en-test" for name in SUBSETS},  # a folder of input and gold files
    **{f"stsb-{split}": f"STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")},
    "sickr-train": "SICK/SICK_train.txt",
    "sickr-dev": "SICK/SICK_trial.txt",
    "sickr": "SICK/SICK_test_annotated.txt",
}
SICK = ("relatedness_score", "sentence_A", "sentence_B")


def root(folder: Path) -> Path | None:
    """Return SentEval's folder ``downstream``, which is the folder itself or in it, or None."""
    there = ("STS", "SICK", *(place for place, _ in SETS.values()))
    return next((one for one in (folder, folder / "downstream") if any((one / name).is_dir() for name in there)), None)


def read(name: str, path: Path) -> Pairs:
    """Read the pairs of a set; `path` is its file or folder."""
    if name in SUBSETS:
        return read_semeval(path, SUBSETS[name])
    if name.startswith("sickr"):
        return read_table(path, SICK, subsets=False, tokens=True, quoted=False)
    rows = [  # genre, file, year, id, score, sentence, sentence
        ("all", rating(fields[4], place := f"{path}, line {number}"), joined(fields[5]), joined(fields[6]), place)
        for number, fields in read_cells(path, 7, more=True)
    ]
    return collect(rows, path)


def read_semeval(folder: Path, subsets: tuple[str, ...]) -> Pairs:
    """Read a SemEval year: ``STS.input.<subset>.txt`` and ``STS.gs.<subset>.txt``, line by line."""
    rows = []
    for subset in subsets:
        inputs, golds = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        texts, scores = list(read_lines(inputs, blank=True)), list(read_lines(golds, blank=True))
        if len(texts) != len(scores):
            raise EvaluationError(
                f"{inputs} has {len(texts)} lines but {golds} has {len(scores)}; every line needs one score"
            )
        for (number, text), (_, score) in zip(texts, scores, strict=True):
            first, *others = text.split("\t")
            if not others:
                raise EvaluationError(f"{inputs}, line {number}: no tab found; expected sentence, tab, sentence")
            place = f"{inputs}, line {number}"
            rows.append((subset, rating(score, f"{golds}, line {number}"), joined(first), joined(others[0]), place))
    return collect(rows, folder)


class Rated(sts.Rated):
    """Rated sentence pairs in a TSV with the columns sentence1 sentence2 score, or a SemEval STS.input.X.txt.

    ``STS.gs.X.txt`` is next to SemEval's file (2014 Spanish, the tracks of 2017), and the task is named after the subset X.
    A folder of such files has all subsets, sorted by name.
    """

    kind: Literal["pairs"] = "pairs"

    def make(self, seed: int) -> Task:
        """Return the task."""
        path = Path(self.place).expanduser()
        if match := SEMEVAL_INPUT.fullmatch(path.name):
            return PairTask(metric_name(match[1]), read_semeval(path.parent, (match[1],)), self.gold)
        if not path.is_dir():
            return super().make(seed)
        found = (SEMEVAL_INPUT.fullmatch(file.name) for file in sorted(path.iterdir()))
        subsets = tuple(match[1] for match in found if match)
        if not subsets:
            raise EvaluationError(
                f"the folder {path} contains no STS.input.<subset>.txt; pass such a folder, or a .tsv file"
            )
        return PairTask(metric_name(path.name), read_semeval(path, subsets), self.gold)


plugins.add("layout", "senteval", Layout("a SentEval downstream folder (STS/, SICK/, MR/, ...)", root, FILES, read))
