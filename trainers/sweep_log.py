"""What is seen of a sweep while it runs: its trials as records, and their MLflow runs, which the driver ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from evaluation.trials import Status, Trial, best_trial
from trainers.tracking import RunHandle, drain, find_runs, rename
from trainers.trial import Plan, changes

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at the trials."""

_watch: Watch | None = None


class Watch(tune.Callback):
    """Tune's callback on the driver.

    A trial that a scheduler stops ends without a word, so its MLflow run is ended here: metrics that its journal still
    holds are sent, the run is named after the trial, and tagged with how it ended.

    Args:
        plan: what the trials share.
        parent: the sweep's run.
        show: takes the records about once a second.
    """

    def __init__(self, plan: Plan, parent: RunHandle, show: Callable[[Sequence[Trial]], None]) -> None:
        self.plan, self.parent, self.show = plan, parent, show
        self._curves: dict[str, dict[int, float]] = {}
        self._changes: dict[str, tuple[str, dict[str, Any]]] = {}
        self._ended: dict[str, float] = {}
        self._shown = 0.0

    def begin(self) -> None:
        """Make this the watch of this process: Tune pickles its callbacks, and a restored sweep gets this one."""
        global _watch
        _watch = self

    def __reduce__(self) -> tuple[Callable[[], Watch], tuple[()]]:
        return current, ()

    # ------------------------------------------------------------------------------------------------------ from Tune

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        if "score" in result:
            self._curves.setdefault(trial.trial_id, {})[int(result["step"])] = float(result["score"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(trials, trial, "TERMINATED")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(trials, trial, "ERROR")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self._shown >= EVERY:
            self._shown = time.monotonic()
            self.show(self.records(trials))

    # -------------------------------------------------------------------------------------------------------- records

    def records(self, trials: Sequence[Any]) -> list[Trial]:
        """Tune's trials as records, in the order in which they were made."""
        return [self._record(number, trial) for number, trial in enumerate(sorted(trials, key=_made))]

    def _record(self, number: int, trial: Any) -> Trial:
        result = trial.last_result or {}
        pipeline, changed = self._changed(trial.trial_id, trial.config)
        return Trial(
            number=number,
            pipeline=pipeline,
            changes=changed,
            status=status_of(trial.status, result),
            best=result.get("best"),
            step=int(result.get("step", 0)),
            steps=int(result.get("steps", 0)),
            curve=tuple(sorted(self._curves.get(trial.trial_id, {}).items())),
            seeds=int(result.get("seeds", 1)),
            error=_last_line(trial),
            trial_id=trial.trial_id,
            run_id=result.get("mlflow_run_id"),
            ended_at=self._ended.get(trial.trial_id) or result.get("timestamp"),
        )

    def _changed(self, trial_id: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        # PBT changes the config of a trial that goes on.
        key = f"{trial_id} {config['trial']}"
        if key not in self._changes:
            changed = changes(self.plan.base(config), self.plan.recipe(config))
            self._changes[key] = (config["trial"]["pipeline"], changed)
        return self._changes[key]

    # --------------------------------------------------------------------------------------------------------- MLflow

    def _end(self, trials: Sequence[Any], trial: Any, status: str) -> None:
        self._ended[trial.trial_id] = time.time()
        # Tune tells of the end before it sets the trial's status.
        ended_as = status_of(status, trial.last_result or {})
        records = [
            replace(record, status=ended_as) if record.trial_id == trial.trial_id else record
            for record in self.records(trials)
        ]
        self.end_runs(next(record for record in records if record.trial_id == trial.trial_id))
        ended = sum(record.ended for record in records)
        if (best := best_trial(records)) is not None:
            with contextlib.suppress(Exception):  # the sweep does not depend on the server
                self.parent.log_metrics({"sweep/best": best.score}, ended)

    def end_runs(self, record: Trial) -> None:
        """End the MLflow runs of a trial that ended, whatever became of its process. Raises nothing."""
        try:
            for run in find_runs(
                self.parent.uri, self.plan.experiment, {"mlflow.parentRunId": self.parent.run_id} | own(record)
            ):
                journal = (
                    Path(self.plan.folder)
                    / "trials"
                    / record.trial_id
                    / f"seed-{run.tags.get('sweep.seed')}"
                    / "journal.jsonl"
                )
                if journal.exists():
                    drain(journal, self.parent.uri, run.run_id, timeout=30)
                tags = {"sweep.number": str(record.number), "sweep.status": record.status, "sweep.step": str(record.step)}
                if record.error:
                    tags["sweep.error"] = record.error[:500]
                if record.best is not None:
                    tags["sweep.best"] = f"{record.best:.2f}"
                rename(self.parent.uri, run.run_id, title(record), tags)
                if run.status == "RUNNING" or record.status == "failed":
                    handle = RunHandle(run.run_id, self.parent.uri, "", "")
                    handle.finish("FAILED" if record.status == "failed" else "FINISHED")
        except Exception as error:
            log.warning("the MLflow runs of %s could not be ended: %s", record.label, error)

    def end_orphans(self, records: Sequence[Trial]) -> int:
        """End runs of trials that nobody knows of: the driver was killed before they were recorded. Returns how many."""
        known = {record.trial_id for record in records}
        runs = find_runs(self.parent.uri, self.plan.experiment, {"mlflow.parentRunId": self.parent.run_id})
        lost = [run for run in runs if run.tags.get("sweep.trial") not in known]
        for run in lost:
            rename(self.parent.uri, run.run_id, f"lost trial {run.tags.get('sweep.trial')}", {"sweep.status": "lost"})
            if run.status == "RUNNING":
                RunHandle(run.run_id, self.parent.uri, "", "").finish("KILLED")
        return len(lost)


def current() -> Watch:
    """The watch of this process."""
    assert _watch is not None, "a sweep is restored by trainers.sweep.run"
    return _watch


def _made(trial: Any) -> int:
    """Where a trial is in the order in which they were made, which Tune's own list loses when it is restored."""
    return int(trial.experiment_tag.partition("_")[0])


def own(record: Trial) -> dict[str, str]:
    """The tag that names a trial's runs."""
    return {"sweep.trial": record.trial_id}


def status_of(status: str, result: Mapping[str, Any]) -> Status:
    """Tune's status as ours: a trial that Tune terminated without its own last word was stopped early."""
    if status == "TERMINATED":
        return "finished" if result.get("finished") else "stopped"
    return {"RUNNING": "running", "ERROR": "failed"}.get(status, "waiting")  # type: ignore[return-value]


def title(record: Trial) -> str:
    """``trial 4: lr 1e-05, weight 0.2``, short enough for a list."""
    if not record.changes:
        return f"{record.label}: {record.pipeline} as it stands"
    parts = [
        f"{_short(path)} {value:.3g}" if isinstance(value, float) else f"{_short(path)} {value}"
        for path, value in record.changes.items()
    ]
    text = f"{record.label}: {', '.join(parts)}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _short(path: str) -> str:
    return ".".join(path.split(".")[-2:])


def _last_line(trial: Any) -> str | None:
    if not trial.error_file and trial.status != "ERROR":
        return None
    with contextlib.suppress(Exception):
        error = trial.get_error()
        if error is not None:
            lines = [line for line in str(error).strip().splitlines() if line.strip()]
            return lines[-1].strip() if lines else type(error).__name__
    return None
