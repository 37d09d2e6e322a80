"""What is seen of a sweep while it runs: its trials as records, and their MLflow runs, which the driver ends."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from multicse.trainers.engine.tracking import FoundRun, Journal, RunHandle, drain, find_runs, rename
from multicse.trainers.tuning.searchers import number_of
from multicse.trainers.tuning.trial import Plan, changes, run_folder
from multicse.trainers.tuning.trials import Status, Trial, best_trial, short_names, show

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at the trials."""


class Watch(tune.Callback):
    """Tune's callback on the driver.

    A trial that a scheduler stops ends without a word, so its MLflow run is ended here: metrics that its journal still
    holds are sent, the run is named after the trial, and tagged with how it ended. `show` takes the records about once a
    second.
    """

    def __init__(self, plan: Plan, parent: RunHandle, show: Callable[[Sequence[Trial]], None]) -> None:
        self.plan, self.parent, self.show = plan, parent, show
        self._changes: dict[str, tuple[str, dict[str, Any]]] = {}
        self._ended: dict[str, float] = {}
        """Trial id -> when its end was seen, in seconds since 1970."""
        self._shown = 0.0

    def get_state(self) -> dict[str, Any]:
        return {"ended": self._ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self._ended = state["ended"]

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(trials, trial, "TERMINATED")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(trials, trial, "ERROR")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self._shown >= EVERY:
            self._shown = time.monotonic()
            self.show(self.records(trials))

    def records(self, trials: Sequence[Any]) -> list[Trial]:
        """Tune's trials as records, in the order in which they were made."""
        return [self._record(number, trial) for number, trial in enumerate(sorted(trials, key=number_of))]

    def _record(self, number: int, trial: Any) -> Trial:
        result = trial.last_result or {}
        pipeline, changed = self._changed(trial.trial_id, trial.config)
        return Trial(
            number=number,
            pipeline=pipeline,
            changes=changed,
            status=self._status(trial, result),
            best=result.get("best"),
            step=int(result.get("step", 0)),
            steps=int(result.get("steps", 0)),
            seeds=int(result.get("seeds", 1)),
            error=_last_line(trial),
            trial_id=trial.trial_id,
            run_id=result.get("mlflow_run_id"),
            ended_at=self._ended.get(trial.trial_id) or result.get("timestamp"),
        )

    def _status(self, trial: Any, result: Mapping[str, Any]) -> Status:
        # An interrupted sweep leaves its running trials TERMINATED as well, without having told of their end.
        # Tune marks the last result of what did end; what this callback knows may be older than the trials after a kill.
        cut = trial.status == "TERMINATED" and trial.trial_id not in self._ended and not result.get("done")
        return "waiting" if cut else status_of(trial.status, result)

    def _changed(self, trial_id: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        # PBT changes the config of a trial that goes on.
        key = f"{trial_id} {config['trial']}"
        if key not in self._changes:
            changed = changes(self.plan.base(config), self.plan.recipe(config))
            self._changes[key] = (config["trial"]["pipeline"], changed)
        return self._changes[key]

    def _end(self, trials: Sequence[Any], trial: Any, status: str) -> None:
        self._ended[trial.trial_id] = time.time()
        # Tune tells of the end before it sets the trial's status.
        ended_as = status_of(status, trial.last_result or {})
        records = [
            replace(record, status=ended_as) if record.trial_id == trial.trial_id else record
            for record in self.records(trials)
        ]
        self.end_runs(next(record for record in records if record.trial_id == trial.trial_id), trial.checkpoint)
        ended = sum(record.ended for record in records)
        if (best := best_trial(records)) is not None:
            with contextlib.suppress(Exception):  # the sweep does not depend on the server
                self.parent.log_metrics(best.metrics(self.plan.metric), ended)

    def end_runs(self, record: Trial, checkpoint: tune.Checkpoint | None = None) -> None:
        """End the MLflow runs of a trial that ended, whatever became of its process. Raises nothing.

        checkpoint: the trial's last one, which holds the journal of a trial on another node.
        """
        try:
            of_trial = {"mlflow.parentRunId": self.parent.run_id, "sweep.trial": record.trial_id}
            for run in find_runs(self.parent.uri, self.plan.experiment, of_trial):
                self._drain(record, run, checkpoint)
                tags = {f"changed.{path}": str(value) for path, value in record.changes.items()}
                tags |= {"sweep.number": str(record.number), "sweep.status": record.status, "sweep.step": str(record.step)}
                if record.error:
                    tags["sweep.error"] = record.error[:500]
                if record.best is not None:
                    tags["sweep.best"] = f"{record.best:.2f}"
                rename(self.parent.uri, run.run_id, title(record), tags)
                if run.status == "RUNNING":
                    self._handle(run).finish("FAILED" if record.status == "failed" else "FINISHED")
        except Exception as error:
            log.warning("the MLflow runs of %s could not be ended: %s", record.label, error)

    def _drain(self, record: Trial, run: FoundRun, checkpoint: tune.Checkpoint | None) -> None:
        """Send what the trial's process could not: from its journal here, or from the copy in its last checkpoint."""
        journal = run_folder(self.plan, record.trial_id, run.tags.get("sweep.seed", "")) / "journal.jsonl"
        if journal.exists():
            drain(journal, self.parent.uri, run.run_id, timeout=5)
        elif checkpoint is not None:
            with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as place:
                copy = Path(place) / "journal.jsonl"
                with checkpoint.filesystem.open_input_stream(f"{checkpoint.path}/journal.jsonl") as source:
                    copy.write_bytes(source.read())
                if (Journal(copy).header() or {}).get("run_id") == run.run_id:
                    drain(copy, self.parent.uri, run.run_id, timeout=5)

    def conclude(self, records: Sequence[Trial]) -> None:
        """End what is still RUNNING in MLflow: runs of trials whose end the server did not hear of, those of interrupted
        trials (KILLED, they go on with the same command), and those of trials that nobody knows of, because the driver was
        killed before they were written down (KILLED). Raises nothing.
        """
        known = {record.trial_id: record for record in records}
        try:
            every = find_runs(self.parent.uri, self.plan.experiment, {"mlflow.parentRunId": self.parent.run_id})
        except Exception as error:
            log.warning("the MLflow runs of the trials could not be looked through: %s", error)
            return
        for run in every:
            record = known.get(run.tags.get("sweep.trial", ""))
            if record is not None and record.ended:
                if run.status == "RUNNING" or run.tags.get("sweep.status") != record.status:
                    self.end_runs(record)
            elif run.status == "RUNNING":
                with contextlib.suppress(Exception):
                    if record is None:
                        rename(self.parent.uri, run.run_id, f"lost {run.tags['sweep.trial']}", {"sweep.status": "lost"})
                    self._handle(run).finish("KILLED")

    def _handle(self, run: FoundRun) -> RunHandle:
        return RunHandle(run.run_id, self.parent.uri, "", "")


def status_of(status: str, result: Mapping[str, Any]) -> Status:
    """Tune's status as ours: a trial that Tune terminated without its own last word was stopped early."""
    if status == "TERMINATED":
        return "finished" if result.get("finished") else "stopped"
    return {"RUNNING": "running", "ERROR": "failed"}.get(status, "waiting")  # type: ignore[return-value]  # each is a Status


def title(record: Trial) -> str:
    """``trial 4: lr 1e-05, weight 0.2``, short enough for a list."""
    if not record.changes:
        return f"{record.label}: {record.pipeline} as it stands"
    names = short_names(list(record.changes))
    text = f"{record.label}: {', '.join(f'{names[path]} {show(value)}' for path, value in record.changes.items())}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _last_line(trial: Any) -> str | None:
    with contextlib.suppress(Exception):  # it is read from the storage, which may be away
        if trial.status == "ERROR" and (error := trial.get_error()):
            return str(error).strip().splitlines()[-1].strip()
    return None
