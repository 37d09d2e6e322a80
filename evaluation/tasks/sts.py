"""Semantic textual similarity: the cosine of two sentences against a human rating.

Two layouts on disk hold the seven sets:

* SentEval's ``downstream`` folder: tokenised, lower-cased text, one pair of files a subset;
* raw TSV (``STS12.raw.tsv``): cased text in one file a set, columns ``dataset subset row score sentence1 sentence2``,
  tab separated, never quoted.

`pair_task` makes a task of any other file of the same kind, such as a translation of STS-B or a SemEval track, and
`hub_pairs` of a Hugging Face dataset.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # whose parts load when they are used

from multicse.data.errors import DecodeError
from multicse.data.text_files import read_cells, read_lines, read_rows
from multicse.data.texts import text_of
from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up, unit

logger = logging.getLogger(__name__)

COLUMNS = ("score", "sentence1", "sentence2")  # what a pair file must have; subset is optional
SEMEVAL_INPUT = re.compile(r"STS\.input\.(.+)\.txt")

# The subsets of each year, as SimCSE's SentEval has them; STS13 is without SMT, whose licence forbids passing it on.
SUBSETS = {
    "sts12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "sts13": ("FNWN", "headlines", "OnWN"),
    "sts14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "sts15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "sts16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}

Rated = tuple[str, float | None, str, str]  # subset, rating if there is one, sentence, sentence

RAW_FILES = {
    **{name: f"{name.upper()}.raw.tsv" for name in SUBSETS},
    **{f"stsb-{split}": f"STSB.{split}.raw.tsv" for split in ("train", "dev", "test")},
    "sickr-train": "SICK.train.raw.tsv",
    "sickr-dev": "SICK.trial.raw.tsv",
    "sickr": "SICK.test.raw.tsv",
}

SENTEVAL_FILES = {
    **{name: f"STS/{name.upper()}-en-test" for name in SUBSETS},  # a folder of input and gold files
    **{f"stsb-{split}": f"STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")},
    "sickr-train": "SICK/SICK_train.txt",
    "sickr-dev": "SICK/SICK_trial.txt",
    "sickr": "SICK/SICK_test_annotated.txt",
}


FILES = {"raw": RAW_FILES, "senteval": SENTEVAL_FILES}


@dataclass(frozen=True)
class Pairs:
    """Rated sentence pairs; `skipped` counts those that came without a rating and were left out."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]
    subset: tuple[str, ...]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.gold)


class PairTask:
    """Spearman (headline) and Pearson of cosines with human ratings.

    ``spearman`` and ``pearson`` are over all subsets concatenated ("all", what SimCSE and its followers report),
    ``spearman_mean`` the plain mean over subsets and ``spearman_wmean`` the mean weighted by their sizes (what the
    original SentEval reports); of several subsets also ``pearson_mean`` and ``pearson_wmean``, which was the score of
    SemEval's own contests. All in points. A zero vector has cosine 0 with everything, as in SentEval.
    """

    primary = "spearman"

    def __init__(self, name: str, pairs: Pairs) -> None:
        self.name = name
        self.pairs = pairs
        self.gold = np.asarray(pairs.gold)

    @property
    def hash(self) -> str:
        """sha256 of the pairs and ratings. (SentEval's text is tokenised: the same set as raw text has another hash.)"""
        digest = hashlib.sha256()
        for row in zip(self.pairs.subset, self.gold, self.pairs.first, self.pairs.second, strict=True):
            digest.update(repr(tuple(map(str, row))).encode())
        return digest.hexdigest()

    def sentences(self) -> list[str]:
        """Distinct sentences in order of first appearance."""
        return list(dict.fromkeys(self.pairs.first + self.pairs.second))

    def similarities(self, encoder: Encoder) -> np.ndarray:
        """Cosine of every pair (N,), float64."""
        sides = look_up(encoder, self.pairs.first, self.pairs.second)
        return np.einsum("nd,nd->n", *(unit(vectors) for vectors in sides))

    def score(self, encoder: Encoder) -> Score:
        """The correlations, in points; counts of pairs and of those skipped, correlations of every subset."""
        similarities = self.similarities(encoder)
        metrics = correlations(self.name, similarities, self.gold)
        names = np.asarray(self.pairs.subset)
        parts = {
            name: _part(similarities[names == name], self.gold[names == name]) for name in dict.fromkeys(names.tolist())
        }
        for metric in list(metrics) if len(parts) > 1 else ["spearman"]:  # of one subset both are the whole
            defined = [part for part in parts.values() if part[metric] is not None]
            values = [part[metric] for part in defined] or [0.0]
            metrics[f"{metric}_mean"] = float(np.mean(values))
            metrics[f"{metric}_wmean"] = float(np.average(values, weights=[part["pairs"] for part in defined] or [1]))
        return Score(metrics, {"pairs": len(self.pairs), "skipped": self.pairs.skipped, "subsets": parts}, similarities)


def _part(x: np.ndarray, gold: np.ndarray) -> dict[str, Any]:
    """Correlations of a subset, None where they are undefined, and its size."""
    found = {"spearman": spearman(x, gold), "pearson": pearson(x, gold)}
    return {**{metric: None if math.isnan(value) else value for metric, value in found.items()}, "pairs": len(gold)}


def correlations(task: str, x: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """``spearman`` and ``pearson`` of x with ratings (N,), in points; 0, and a warning about the task, where one is
    undefined: the encoder has collapsed, so nothing is ranked."""
    found = {"spearman": spearman(x, gold), "pearson": pearson(x, gold)}
    for metric, value in found.items():
        if math.isnan(value):
            logger.warning("task %s: %s is undefined because all values are equal; counted as 0", task, metric)
            found[metric] = 0.0
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation of x, y (N,) in points; NaN where it is undefined (fewer than 2 values, or all equal)."""
    return 100 * float(scipy.stats.spearmanr(x, y).statistic) if _vary(x, y) else math.nan


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Linear correlation of x, y (N,) in points; NaN where it is undefined."""
    return 100 * float(scipy.stats.pearsonr(x, y).statistic) if _vary(x, y) else math.nan


def _vary(x: np.ndarray, y: np.ndarray) -> bool:
    return len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0


# ---------------------------------------------------------------------------------------------------------------- files


def read(name: str, folder: Path, layout: str) -> Pairs:
    """Pairs of the STS task `name` from a folder of the given layout, "raw" or "senteval"."""
    path = folder / FILES[layout][name]
    if layout == "raw":
        return _read_table(path, subsets=name in SUBSETS, quoted=False)  # STS-B's genres and sources are no subsets
    if name in SUBSETS:
        return _read_semeval(path, SUBSETS[name])
    if name.startswith("sickr"):
        columns = ("relatedness_score", "sentence_A", "sentence_B")
        return _read_table(path, columns, subsets=False, tokens=True, quoted=False)
    return collect(_stsb_rows(path), path)


def pair_task(path: Path) -> PairTask:
    """The task of any file or folder of rated pairs, in one of three forms, named after it.

    * ``.tsv`` or ``.csv``, optionally with ``.gz``: a header with at least ``score sentence1 sentence2``, in any order. A
      column ``subset`` is used for the means over subsets. A pair whose score is blank or "nan" is unrated: left out, and
      counted.
    * SemEval's ``STS.input.<subset>.txt``, with ``STS.gs.<subset>.txt`` beside it (2014 Spanish, the tracks of 2017); the
      name is that of the subset.
    * A folder of such SemEval files: all subsets in it, in the order of their names.

    Raises EvaluationError or DataError, with file and line, for what is missing, has another form, or rates nothing.
    """
    name = path.name.removesuffix(".gz").removesuffix(".tsv").removesuffix(".csv")
    if match := SEMEVAL_INPUT.fullmatch(path.name):
        name, pairs = match[1], _read_semeval(path.parent, (match[1],))
    elif path.is_dir():
        found = (SEMEVAL_INPUT.fullmatch(file.name) for file in sorted(path.iterdir()))
        subsets = tuple(match[1] for match in found if match)
        if not subsets:
            raise EvaluationError(f"no STS.input.<subset>.txt in the folder {path}; give such a folder, or one .tsv file")
        pairs = _read_semeval(path, subsets)
    else:
        pairs = _read_table(path)
    return PairTask(metric_name(name), pairs)


def metric_name(text: str) -> str:
    """A text with hyphens for the characters that names of metrics may not have."""
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", text)


def _read_table(
    path: Path,
    columns: tuple[str, ...] = COLUMNS,
    subsets: bool = True,
    tokens: bool = False,
    quoted: bool | None = None,
) -> Pairs:
    """Pairs of a table with the columns score, sentence, sentence under these names; `tokens` joins words by one blank."""
    rows = []
    for number, row in read_rows(path, columns, quoted=quoted):
        score, first, second = (row[column] for column in columns)
        if tokens:
            first, second = _tokens(first), _tokens(second)
        rows.append((row.get("subset", "all") if subsets else "all", rating(score, f"{path}, line {number}"), first, second))
    return collect(rows, path)


def _read_semeval(folder: Path, subsets: tuple[str, ...]) -> Pairs:
    """Pairs of one SemEval year: ``STS.input.<subset>.txt`` beside ``STS.gs.<subset>.txt``, line by line."""
    rows = []
    for subset in subsets:
        inputs, golds = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        texts, scores = list(read_lines(inputs, blank=True)), list(read_lines(golds, blank=True))
        if len(texts) != len(scores):
            raise EvaluationError(f"{inputs} has {len(texts)} lines but {golds} has {len(scores)}; they go in pairs")
        for (number, text), (_, score) in zip(texts, scores, strict=True):
            first, *others = text.split("\t")
            if not others:
                raise EvaluationError(f"{inputs}, line {number}: no tab; a line is sentence, tab, sentence")
            rows.append((subset, rating(score, f"{golds}, line {number}"), _tokens(first), _tokens(others[0])))
    return collect(rows, folder)


def _stsb_rows(path: Path) -> Iterator[Rated]:
    """Rows of SentEval's ``sts-<split>.csv``: no header, columns genre, file, year, id, score, sentence, sentence."""
    for number, fields in read_cells(path, 7, more=True):
        yield "all", rating(fields[4], f"{path}, line {number}"), _tokens(fields[5]), _tokens(fields[6])


def rating(text: str, place: str) -> float | None:
    """A rating; None where there is none: blank, or "nan" (SemEval 2015 and 2016 rate a part of the published pairs).

    Raises EvaluationError, with `place`, for what is not a finite number.
    """
    try:
        value = float(text) if text.strip() else math.nan
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise EvaluationError(f"{place}: the score {text!r} is not a number")
    return None if math.isnan(value) else value


def _tokens(text: str) -> str:
    return " ".join(text.split())


def collect(rows: Iterable[Rated], source: Path | str) -> Pairs:
    """Pairs of the rows of `source`; those without a rating are counted.

    Raises EvaluationError when fewer than two are rated, or all alike: no correlation is defined then.
    """
    rows = list(rows)
    rated = [row for row in rows if row[1] is not None]
    skipped = len(rows) - len(rated)
    if len({gold for _, gold, _, _ in rated}) < 2:
        raise EvaluationError(
            f"{source}: {len(rated):,} pairs are rated alike and {skipped:,} are not rated (some sets hide their ratings)"
        )
    subset, golds, first, second = zip(*rated, strict=True)
    return Pairs(first, second, golds, subset, skipped)


# ------------------------------------------------------------------------------------------------------- the Lee corpus

LEE_DEV = frozenset(number for number in range(50) if number % 5 in (0, 1))
LEE = {  # documents: 30 with 435 pairs, 20 with 190, 50 with 1,225
    "lee": sorted(set(range(50)) - LEE_DEV),
    "lee-dev": sorted(LEE_DEV),
    "lee-all": list(range(50)),
}


def lee(name: str) -> PairTask:
    """The task ``lee``, ``lee-dev`` or ``lee-all``: 50 short news documents, all 1,225 pairs rated by people (Lee, Pincombe
    and Welsh 2005). Ratings are the mean of the raters over 5, so 0.2 to 1.

    gensim carries the corpus, so it is there on a machine that downloads nothing. It is split by document, so that no
    document of the development pairs is seen in the test pairs.

    Raises EvaluationError when gensim or its test data is absent.
    """
    spec = importlib.util.find_spec("gensim")  # importing gensim costs a second; its files are all that is needed
    folder = Path(spec.origin or "").parent / "test" / "test_data" if spec else Path()
    corpus, ratings = folder / "lee.cor", folder / "similarities0-1.txt"
    if not corpus.is_file() or not ratings.is_file():
        raise EvaluationError("the Lee tasks read the corpus that gensim carries with its test data: pip install gensim")
    texts = corpus.read_text(encoding="latin-1").splitlines()
    gold = np.loadtxt(ratings)  # upper triangle; gold[i, j] for i < j
    pairs = [(i, j) for i in LEE[name] for j in LEE[name] if i < j]
    first, second = zip(*((texts[i], texts[j]) for i, j in pairs), strict=True)
    return PairTask(name, Pairs(first, second, tuple(float(gold[i, j]) for i, j in pairs), ("all",) * len(pairs)))


# -------------------------------------------------------------------------------------------------- Hugging Face datasets

# Names that datasets of rated pairs give to their columns, the usual one first. SICK's label is its entailment class
# and stands beside relatedness_score, so label comes last.
FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
SCORES = ("score", "similarity_score", "relatedness_score", "label")


def hub_pairs(spec: str) -> PairTask:
    """The task of ``NAME``, ``NAME:SPLIT`` or ``NAME:CONFIG:SPLIT``; the split is test when none is given.

    NAME is a dataset of the Hub or a folder of one on disk. The task is called after dataset, configuration and split. No
    code of a dataset is ever run.

    Raises EvaluationError when the library is absent, the dataset or split is not there, or it has no such columns.
    """
    name, *rest = spec.split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise EvaluationError(f"hub:{spec} is not NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, such as hub:mteb/sts12-sts")
    *config, split = rest or ["test"]
    title = metric_name("-".join([Path(name).name, *config, split]))
    return PairTask(title, collect(_dataset_rows(f"hub:{spec}", name, *config, split=split), f"hub:{spec}"))


def _dataset_rows(title: str, name: str, config: str | None = None, *, split: str) -> Iterator[Rated]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise EvaluationError("a dataset of the Hub is read by the library datasets: pip install datasets") from error
    folder = Path(name).expanduser()
    try:
        # A folder is read as it is now, without a copy in the cache.
        loaded = load_dataset(str(folder) if folder.is_dir() else name, config, split=split, streaming=folder.is_dir())
    except Exception as error:  # the library raises a dozen kinds: no network, no dataset, no split, a script, a bad file
        raise EvaluationError(
            f"{title}: the split {split} of {name} does not load: {str(error).rstrip('.')}. A copy on disk works too: `hf "
            f"download --repo-type dataset NAME --local-dir DIR`, then hub:DIR:{split}"
        ) from error
    rows = list(loaded)
    columns = list(loaded.column_names or (rows[0] if rows else ()))
    score, first, second = (next((c for c in known if c in columns), None) for known in (SCORES, FIRST, SECOND))
    if score is None or first is None or second is None:
        raise EvaluationError(
            f"{title} needs two columns of sentences, {' '.join((*FIRST, *SECOND))}, and one of ratings, "
            f"{' '.join(SCORES)}; it has {', '.join(columns) or 'none'}"
        )
    for i, row in enumerate(rows):
        place = f"{title}, row {i}"
        try:
            rated, *texts = (text_of(row[column], f"{place}, {column}") for column in (score, first, second))
        except DecodeError as error:
            raise EvaluationError(str(error)) from error
        if row[first] is None or row[second] is None:
            raise EvaluationError(f"{place}: {first} or {second} is missing")
        yield "all", rating(rated, place), texts[0], texts[1]
