"""Trials of a sweep as plain records, and their files, which tables, figures and later drivers read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyarrow import fs

from multicse.data.remote import retry
from multicse.trainers.recipe import RecipeError

Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration of a sweep and its progress. Higher scores are better; they have the unit of the metric."""

    number: int
    """Index in order of creation, from 0."""
    trial_id: str
    """ID in Ray Tune, equal for every driver of the sweep."""
    changes: dict[str, Any]
    """Dotted path -> value of the changed settings; empty for the unchanged recipe."""
    status: Status = "running"
    """`running` also if its driver was interrupted; `stopped` if the scheduler stopped it early."""
    best: float | None = None
    """Best score so far; None before the first evaluation."""
    step: int = 0
    """Completed steps."""
    steps: int = 0
    """Steps of the whole trial."""
    curve: tuple[tuple[int, float], ...] = ()
    """(step, score) of every evaluation."""
    seeds: int = 1
    """Number of seeds whose scores are averaged."""
    error: str | None = None
    ended_at: float | None = None
    """Time of its end, in seconds since 1970."""

    @property
    def ended(self) -> bool:
        """True if the trial has finished, was stopped or failed."""
        return self.status != "running"

    @property
    def score(self) -> float | None:
        """Score for comparison; None if the trial failed or has no finite score."""
        known = self.status != "failed" and self.best is not None and math.isfinite(self.best)
        return self.best if known else None


class Records:
    """Records of a sweep's trials: one JSON file each, in a folder or behind a URL that pyarrow supports.

    A file is written under a temporary name and renamed, so a killed driver leaves a complete file or none.
    """

    def __init__(self, place: str) -> None:
        self._files, self._root = fs.LocalFileSystem(), place
        if "://" in place:
            self._files, self._root = fs.FileSystem.from_uri(place)

    def read(self, identity: str) -> dict[int, Trial]:
        """Return the trials of a sweep by number; raise RecipeError if a record is damaged."""
        listed = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        found = {}
        for info in listed:
            if info.base_name.startswith(f"{identity}_") and info.extension == "json":
                try:
                    trial = Trial(**json.loads(self._read(info.path)))
                except (ValueError, TypeError) as error:
                    raise RecipeError(f"trial record {info.path} is damaged ({error}); remove it") from error
                found[trial.number] = trial
        return dict(sorted(found.items()))

    def write(self, trial: Trial) -> None:
        """Write the record of a trial."""
        retry(lambda: self._write(f"{self._root}/{trial.trial_id}.json", json.dumps(asdict(trial)).encode()))

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        """Write another JSON file to the same place."""
        retry(lambda: self._write(f"{self._root}/{name}", json.dumps(content, indent=2).encode()))

    def kept(self, name: str) -> dict[str, Any]:
        """Return the content of a file that `keep` wrote; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads(retry(lambda: self._read(f"{self._root}/{name}")))
        except FileNotFoundError:
            return {}
        return found

    def _read(self, file: str) -> bytes:
        with self._files.open_input_stream(file) as source:
            return bytes(source.read())

    def _write(self, file: str, content: bytes) -> None:
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{file}.part") as target:
            target.write(content)
        self._files.move(f"{file}.part", file)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials with a score, best first; of equal scores the earlier trial.

    Trials with fewer seeds follow trials with more seeds, whatever their score: a mean is not comparable with one score.
    """
    scored = [trial for trial in trials if trial.score is not None]
    return sorted(scored, key=lambda trial: (-trial.seeds, -(trial.score or 0.0), trial.number))


def short_name(path: str) -> str:
    """Return the last two parts of a path: ``image.lr`` of ``optim.image.lr``."""
    return ".".join(path.split(".")[-2:])


def show(value: Any) -> str:
    """Return a short text for the value of a setting: ``3.1e-06``, ``True``, ``supcon``, ``(1, 2, 3)``."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(tuple(value)) if isinstance(value, list) else str(value)
