"""Task names: which there are, which a folder has data for, and how a name becomes a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from evaluation import lee, sts
from evaluation.geometry import GeometryTask
from evaluation.sts import PairTask
from evaluation.task import EvaluationError, Task, did_you_mean

# The seven numbers of the papers' STS tables, in their order.
SEVEN = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr")
STS = (*SEVEN[:5], "stsb-train", "stsb-dev", "stsb-test", "sickr-train", "sickr-dev", "sickr")
GEOMETRY = "-geometry"

# Ratings above which a pair counts as positive for alignment: 4 of 5 (SimCSE); for Lee, whose raters seldom went that
# high, the middle of the scale.
THRESHOLDS = {"lee": 0.5}


def known() -> tuple[str, ...]:
    """Every task name."""
    pairs = (*STS, *lee.PARTS)
    return (*pairs, *(name + GEOMETRY for name in pairs))


def available(data: str | Path | None = None) -> list[str]:
    """Names of the evaluation sets found: those of the folder `data`, or the Lee corpus when none is given.

    Training splits and geometry are left out; they are there when asked for by name.
    """
    if data is None:
        return list(lee.PARTS)
    folder, layout = locate(data)
    files = sts.RAW_FILES if layout == "raw" else sts.SENTEVAL_FILES
    return [name for name in STS if not name.endswith("-train") and (folder / files[name]).exists()]


def locate(data: str | Path) -> tuple[Path, str]:
    """The folder that holds the files and its layout, "raw" or "senteval" (`data` may be the folder above downstream)."""
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise EvaluationError(f"no data folder {folder}")
    if any((folder / file).is_file() for file in sts.RAW_FILES.values()):
        return folder, "raw"
    for candidate in (folder, folder / "downstream"):
        if (candidate / "STS").is_dir() or (candidate / "SICK").is_dir():
            return candidate, "senteval"
    raise EvaluationError(
        f"the data folder {folder} is neither a SentEval downstream folder (no STS/ or SICK/ in it) nor a folder of raw "
        "TSVs (no STS12.raw.tsv, STSB.dev.raw.tsv, SICK.test.raw.tsv, ... in it)"
    )


def make_tasks(names: Sequence[str], data: str | Path | None = None) -> list[Task]:
    """Tasks by name, in order. The Lee tasks need no `data`; ``<name>-geometry`` is alignment and uniformity on it.

    Raises EvaluationError for an unknown name (with the nearest known one), a missing folder or file, and bad lines.
    """
    loaded: dict[str, PairTask] = {}

    def pairs(name: str) -> PairTask:
        if name not in loaded:
            loaded[name] = lee.lee(name) if name in lee.PARTS else _sts(name, data)
        return loaded[name]

    return [_make(name, pairs) for name in dict.fromkeys(names)]


def _make(name: str, pairs: Callable[[str], PairTask]) -> Task:
    if name not in known():
        shown = ", ".join((*STS, *lee.PARTS))
        raise EvaluationError(
            f"unknown task {name!r}{did_you_mean(name, known())} Tasks are {shown}; each with {GEOMETRY} at the end is "
            "alignment and uniformity on it"
        )
    base = name.removesuffix(GEOMETRY)
    if name == base:
        return pairs(base)
    return GeometryTask(pairs(base), THRESHOLDS.get(base.split("-")[0], 4.0))


def _sts(name: str, data: str | Path | None) -> PairTask:
    if data is None:
        raise EvaluationError(
            f"task {name} needs data: give a SentEval downstream folder or a folder of raw TSVs (--data DIR); "
            f"without data there are {', '.join(lee.PARTS)}"
        )
    folder, layout = locate(data)
    try:
        return PairTask(name, sts.read(name, folder, layout))
    except EvaluationError as error:
        raise EvaluationError(f"task {name}: {error}") from error
