"""The trials of a sweep as plain records, and the files that keep them: what tables, figures and the next driver know."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pyarrow import fs

from multicse.data.remote import retry
from multicse.trainers.recipe import RecipeError

Status = Literal["running", "finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration of a sweep and how far it came. Scores are higher when better, in the unit of the metric."""

    number: int
    """In the order in which they were made, from 0."""
    trial_id: str
    """Of Tune, the same for every driver of the sweep."""
    changes: dict[str, Any]
    """Dotted path -> value, where it differs from the recipe; empty for the recipe as it stands."""
    status: Status = "running"
    """`running` also if its driver was interrupted; `stopped`: early, by the scheduler."""
    best: float | None = None
    """The best score so far; None before the first evaluation."""
    step: int = 0
    steps: int = 0
    """Steps made, and steps of a trial that runs to its end."""
    curve: tuple[tuple[int, float], ...] = ()
    """(step, score then), one for each evaluation."""
    seeds: int = 1
    """Runs with different seeds whose scores are averaged."""
    error: str | None = None
    ended_at: float | None = None
    """When it ended, in seconds since 1970."""

    @property
    def ended(self) -> bool:
        """Whether it finished, was stopped or failed."""
        return self.status != "running"

    @property
    def score(self) -> float | None:
        """The score to compare; None for a trial that failed or has no finite one."""
        known = self.status != "failed" and self.best is not None and math.isfinite(self.best)
        return self.best if known else None


class Records:
    """The records of a sweep's trials, a JSON file for each, in a folder or behind a URL that pyarrow takes.

    A file is written under another name and renamed, so that a driver that is killed leaves a complete one or none.
    """

    def __init__(self, place: str) -> None:
        self._files, self._root = fs.LocalFileSystem(), place
        if "://" in place:
            self._files, self._root = fs.FileSystem.from_uri(place)

    def read(self, identity: str) -> dict[int, Trial]:
        """Return the trials of the sweep with this identity, by number. Raises RecipeError for a damaged record."""
        listed = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        found = {}
        for info in listed:
            if info.base_name.startswith(f"{identity}_") and info.extension == "json":
                with self._files.open_input_stream(info.path) as source:
                    content = source.read()
                try:
                    trial = Trial(**json.loads(content))
                except (ValueError, TypeError) as error:
                    raise RecipeError(f"the record of a trial, {info.path}, is damaged ({error}): remove it") from error
                found[trial.number] = trial
        return dict(sorted(found.items()))

    def write(self, trial: Trial) -> None:
        """Write down how a trial stands."""
        retry(lambda: self._write(f"{self._root}/{trial.trial_id}.json", json.dumps(asdict(trial)).encode()))

    def _write(self, file: str, content: bytes) -> None:
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{file}.part") as target:
            target.write(content)
        self._files.move(f"{file}.part", file)


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The trials with a score, best first; of equal ones the earlier.

    Those of fewer seeds follow those of more, whatever their score: the mean of three is not one of one.
    """
    scored = [trial for trial in trials if trial.score is not None]
    return sorted(scored, key=lambda trial: (-trial.seeds, -(trial.score or 0.0), trial.number))


def short_name(path: str) -> str:
    """The last two parts of a path: ``image.lr`` of ``optim.image.lr``."""
    return ".".join(path.split(".")[-2:])


def show(value: Any) -> str:
    """A value of a setting, short: ``3.1e-06``, ``True``, ``supcon``, ``(1, 2, 3)``."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(tuple(value)) if isinstance(value, list) else str(value)
