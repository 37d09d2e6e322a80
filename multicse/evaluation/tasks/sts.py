"""Semantic textual similarity: correlation of the cosine of two sentences with ratings, of humans in the named sets.

The seven sets are read from a folder of raw TSVs (``STS12.raw.tsv``): cased text in one file per set, with the columns
``dataset subset row score sentence1 sentence2``, separated by tabs, without quoting. Plugins may read other layouts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy  # its subpackages are imported lazily

from multicse import plugins
from multicse.data.shard_urls import file_name
from multicse.data.text_files import read_rows, text_of
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, look_up, metric_name, unit

logger = logging.getLogger(__name__)

COLUMNS = ("score", "sentence1", "sentence2")  # required columns; subset is optional
HUMAN, RATINGS = "human ratings", "ratings"  # what the scores of the named sets are, and of a set of the user's own
YEARS = ("sts12", "sts13", "sts14", "sts15", "sts16")  # sets with subsets

Row = tuple[str, float | None, str, str, str]  # subset, rating if there is one, sentence, sentence, place for messages

FILES = {
    **{name: f"{name.upper()}.raw.tsv" for name in YEARS},
    **{f"stsb-{split}": f"STSB.{split}.raw.tsv" for split in ("train", "dev", "test")},
    "sickr-train": "SICK.train.raw.tsv",
    "sickr-dev": "SICK.trial.raw.tsv",
    "sickr": "SICK.test.raw.tsv",
}


@dataclass(frozen=True)
class Pairs:
    """Rated sentence pairs; `skipped` is the number of pairs without a rating, which are not included."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]
    subset: tuple[str, ...]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.gold)


class PairTask:
    """Spearman (main metric) and Pearson correlation of cosines with ratings, in points.

    ``spearman`` and ``pearson`` are computed over all subsets concatenated (setting "all", as reported by SimCSE and its
    successors), ``spearman_mean`` is the mean over subsets, and ``spearman_wmean`` the mean weighted by their sizes (as in
    the original SentEval). Sets with several subsets also have ``pearson_mean`` and ``pearson_wmean``, the score of the
    SemEval contests.

    Args:
        name: Name of the task.
        pairs: Rated pairs.
        gold_is: What the ratings are, in the plural, for figures and model cards.
    """

    primary = "spearman"

    def __init__(self, name: str, pairs: Pairs, gold_is: str = HUMAN) -> None:
        self.name = name
        self.pairs = pairs
        self.gold = np.asarray(pairs.gold)
        self.gold_is = gold_is

    @property
    def hash(self) -> str:
        """SHA-256 of pairs and ratings. SentEval's tokenised text and raw text of one set have different hashes."""
        rows = zip(self.pairs.subset, self.gold, self.pairs.first, self.pairs.second, strict=True)
        return hashlib.sha256("".join(repr(tuple(map(str, row))) for row in rows).encode()).hexdigest()

    def sentences(self) -> list[str]:
        """Return the distinct sentences in order of first appearance."""
        return list(dict.fromkeys(self.pairs.first + self.pairs.second))

    def similarities(self, encoder: Encoder) -> np.ndarray:
        """Return the cosine of every pair, (N,), float64."""
        sides = look_up(encoder, self.pairs.first, self.pairs.second)
        return np.einsum("nd,nd->n", *(unit(vectors) for vectors in sides))

    def score(self, encoder: Encoder) -> Score:
        """Return the correlations in points; details are the numbers of pairs and skipped pairs, and results per subset."""
        similarities = self.similarities(encoder)
        metrics = correlations(self.name, similarities, self.gold)
        names = np.asarray(self.pairs.subset)
        parts: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys(names.tolist()):
            found = _correlations(similarities[names == name], self.gold[names == name])
            defined = {metric: None if math.isnan(value) else value for metric, value in found.items()}
            parts[name] = {**defined, "pairs": int((names == name).sum())}
        for metric in list(metrics) if len(parts) > 1 else ["spearman"]:  # for one subset all means are equal
            of = [(part[metric], part["pairs"]) for part in parts.values() if part[metric] is not None]
            values, sizes = zip(*of or [(0.0, 1)], strict=True)
            metrics[f"{metric}_mean"] = float(np.mean(values))
            metrics[f"{metric}_wmean"] = float(np.average(values, weights=sizes))
        return Score(metrics, {"pairs": len(self.pairs), "skipped": self.pairs.skipped, "subsets": parts}, similarities)


def correlations(task: str, x: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Compute ``spearman`` and ``pearson``; an undefined correlation (a collapsed encoder) counts as 0 and is logged.

    Args:
        task: Name of the task, for the warning.
        x: Cosines, (N,).
        gold: Human ratings, (N,).
    """
    found = _correlations(x, gold)
    for metric, value in found.items():
        if math.isnan(value):
            logger.warning("task %s: %s is undefined because all values are equal; counted as 0", task, metric)
            found[metric] = 0.0
    return found


def _correlations(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return both correlations in points; NaN if undefined (fewer than 2 values, or constant values)."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return {"spearman": math.nan, "pearson": math.nan}
    found = {"spearman": scipy.stats.spearmanr(x, y), "pearson": scipy.stats.pearsonr(x, y)}
    return {metric: 100 * float(value.statistic) for metric, value in found.items()}


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Compute Spearman's rank correlation in points; NaN if undefined.

    Args:
        x: Values, (N,).
        y: Values, (N,).
    """
    return _correlations(x, y)["spearman"]


# ---------------------------------------------------------------------------------------------------------------- files


class Layout(NamedTuple):
    """Form of a data folder; plugins register others."""

    about: str
    """Description for messages."""
    root: Callable[[Path], Path | None]
    """Function of the data folder that returns the folder of the files, or None if it has another layout."""
    files: Mapping[str, str]
    """File or folder of each set below the root."""
    read: Callable[[str, Path], Pairs]
    """Function of the name of a set and its file."""


def _raw_root(folder: Path) -> Path | None:
    return folder if any((folder / file).is_file() for file in FILES.values()) else None


def _read_raw(name: str, path: Path) -> Pairs:
    return read_table(path, subsets=name in YEARS, quoted=False)  # STS-B's genres and sources are no subsets


plugins.add("layout", "raw", Layout("one of raw TSVs (STS12.raw.tsv, STSB.dev.raw.tsv, ...)", _raw_root, FILES, _read_raw))


class Rated(Kind):
    """Rated sentence pairs in a TSV or CSV with the columns sentence1 sentence2 score, and optionally subset.

    The header contains the columns in any order. A column ``subset`` is used for the means over subsets. Pairs with a blank
    or "nan" score are skipped and counted.
    """

    kind: Literal["pairs"] = "pairs"
    gold: str = RATINGS
    """What the ratings are, for figures and model cards."""

    def make(self, seed: int) -> Task:
        """Return the task, named after the file."""
        path = Path(self.place).expanduser()
        name = file_name(path.name).removesuffix(".gz").removesuffix(".tsv").removesuffix(".csv")
        return PairTask(metric_name(name), read_table(path), self.gold)


def read_table(
    path: Path,
    columns: tuple[str, ...] = COLUMNS,
    subsets: bool = True,
    tokens: bool = False,
    quoted: bool | None = None,
) -> Pairs:
    """Read a table whose columns of score and sentences have these names; `tokens` joins words by single spaces."""
    rows = []
    for number, row in read_rows(path, columns, quoted=quoted):
        score, first, second = (row[column] for column in columns)
        if tokens:
            first, second = joined(first), joined(second)
        subset, place = row.get("subset", "all") if subsets else "all", f"{path}, line {number}"
        rows.append((subset, rating(score, place), first, second, place))
    return collect(rows, path)


def rating(text: str, place: str) -> float | None:
    """Parse a rating; None if it is blank or "nan" (SemEval 2015 and 2016 rated only some of the published pairs)."""
    try:
        value = float(text) if text.strip() else math.nan
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise EvaluationError(f"{place}: the score {text!r} is not a number")
    return None if math.isnan(value) else value


def joined(text: str) -> str:
    """Return a text with single spaces between its words."""
    return " ".join(text.split())


def collect(rows: Iterable[Row], source: Path | str) -> Pairs:
    """Collect rated pairs and count the others.

    Raises:
        EvaluationError: If a sentence of a rated pair is missing, or there are no two different ratings.
    """
    rows = list(rows)
    rated = [row for row in rows if row[1] is not None]
    for _, _, *texts, place in rated:
        if not all(text.strip() for text in texts):
            raise EvaluationError(f"{place}: a sentence is empty; remove the row or its score")
    skipped = len(rows) - len(rated)
    if len({gold for _, gold, *_ in rated}) < 2:
        raise EvaluationError(
            f"{source}: {len(rated):,} pairs have equal ratings, {skipped:,} have none (some sets hide their ratings)"
        )
    subset, golds, first, second, _ = zip(*rated, strict=True)
    return Pairs(first, second, golds, subset, skipped)


# ------------------------------------------------------------------------------------------------------- the Lee corpus

LEE_DEV = frozenset(number for number in range(50) if number % 5 in (0, 1))
LEE = {  # documents: 30 with 435 pairs, 20 with 190, 50 with 1,225
    "lee": sorted(set(range(50)) - LEE_DEV),
    "lee-dev": sorted(LEE_DEV),
    "lee-all": list(range(50)),
}


def lee(name: str) -> PairTask:
    """Return the task ``lee``, ``lee-dev`` or ``lee-all``: 50 short news documents with human ratings of all 1,225 pairs.

    gensim includes the corpus (Lee, Pincombe and Welsh, CogSci 2005), so no download is needed. It is split by document: no
    document of the development pairs occurs in the test pairs. Ratings are from 0.2 to 1.
    """
    spec = importlib.util.find_spec("gensim")  # importing gensim takes a second; only its files are needed
    folder = Path(spec.origin or "").parent / "test" / "test_data" if spec else Path()
    corpus, ratings = folder / "lee.cor", folder / "similarities0-1.txt"
    if not corpus.is_file() or not ratings.is_file():
        raise EvaluationError("the Lee tasks need the corpus in gensim's test data: pip install gensim")
    texts = corpus.read_text(encoding="latin-1").splitlines()
    gold = np.loadtxt(ratings)  # upper triangle; gold[i, j] for i < j
    pairs = [(i, j) for i in LEE[name] for j in LEE[name] if i < j]
    first, second = zip(*((texts[i], texts[j]) for i, j in pairs), strict=True)
    return PairTask(name, Pairs(first, second, tuple(float(gold[i, j]) for i, j in pairs), ("all",) * len(pairs)))


# -------------------------------------------------------------------------------------------------- Hugging Face datasets

# Names of columns in data sets of rated pairs, the most common one first. SICK has an entailment class "label" in addition
# to relatedness_score, so label is last.
FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
SCORES = ("score", "similarity_score", "relatedness_score", "label")


class HubRated(Kind):
    """Rated sentence pairs of a Hugging Face dataset, NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, or of its folder.

    The default split is test. Code of a data set is never executed.
    """

    kind: Literal["hub"] = "hub"
    place: str
    gold: str = RATINGS
    """What the ratings are, for figures and model cards."""

    @classmethod
    def may_be_development(cls, place: str) -> bool:
        """Return whether a split is named, since test is the default."""
        return ":" in place

    def make(self, seed: int) -> Task:
        """Return the task, named after data set, configuration and split."""
        name, *rest = self.place.split(":")
        if not name or len(rest) > 2 or not all(rest):
            raise EvaluationError(
                f"hub:{self.place}: expected NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, such as hub:mteb/sts12-sts"
            )
        *config, split = rest or ["test"]
        title = metric_name("-".join([Path(name).name, *config, split]))
        pairs = collect(_dataset_rows(f"hub:{self.place}", name, *config, split=split), f"hub:{self.place}")
        return PairTask(title, pairs, self.gold)


def _dataset_rows(title: str, name: str, config: str | None = None, *, split: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise EvaluationError("data sets of the Hub need the library datasets: pip install datasets") from error
    folder = Path(name).expanduser()
    try:
        # Streaming reads a folder without a copy in the cache.
        loaded = load_dataset(str(folder) if folder.is_dir() else name, config, split=split, streaming=folder.is_dir())
        rows = list(loaded)  # reads a folder
    except Exception as error:  # the library raises a dozen kinds: no network, no dataset, no split, a script, a bad file
        raise EvaluationError(
            f"{title}: cannot load the split {split} of {name}: {str(error).rstrip('.')}. A local copy works too: `hf "
            f"download --repo-type dataset NAME --local-dir DIR`, then hub:DIR:{split}"
        ) from error
    columns = list(loaded.column_names or (rows[0] if rows else ()))
    score, first, second = (next((c for c in known if c in columns), None) for known in (SCORES, FIRST, SECOND))
    if score is None or first is None or second is None:
        raise EvaluationError(
            f"{title} needs two columns of sentences, {' '.join((*FIRST, *SECOND))}, and one of ratings, "
            f"{' '.join(SCORES)}; it has {', '.join(columns) or 'none'}"
        )
    for i, row in enumerate(rows):
        place = f"{title}, row {i}"
        rated, *texts = (text_of(row[column], f"{place}, {column}") for column in (score, first, second))
        yield "all", rating(rated, place), texts[0], texts[1], place
