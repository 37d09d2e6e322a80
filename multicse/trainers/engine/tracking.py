"""Metrics of a run and its MLflow run. Everything is in the run's folder first, and every effect outside can be repeated."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from multicse.data.errors import command, public
from multicse.trainers.engine import record
from multicse.trainers.engine.journal import Journal, new_metrics, retire
from multicse.trainers.engine.mlflow_server import (
    NoSuchRun,
    TrackingError,
    brief,
    connect,
    data_set,
    environment_tags,
    import_mlflow,
    metric_name,
    open_experiment,
    upload_run,
    uri_errors,
)

log = logging.getLogger(__name__)

BATCH = 1000
"""Metrics per request, MLflow's limit."""
SEND_EVERY = 1.0
"""Seconds between two requests if the server responds."""
LONGEST_PAUSE = 30.0
"""Maximum of the seconds between two attempts if it does not."""
MOST_RUNS = 50_000
"""MLflow's limit of the runs of one search."""


class Sender:
    """Sender of a journal's metrics to MLflow.

    A new sender starts at the first line and skips the steps that the server has, so everything can be sent again at any
    time. Repeated requests have the same time stamps, and MLflow stores equal metrics once.
    """

    def __init__(self, journal: Journal, uri: str, run_id: str) -> None:
        self.journal, self.uri, self.run_id = journal, uri, run_id
        self._start = 0
        self._known: dict[str, int] | None = None
        """Latest step of every metric on the server; None if it has to be queried."""

    def send(self) -> None:
        """Send the new lines of the file. Errors of MLflow are passed on."""
        from mlflow.entities import Metric

        start, batch = self._start, list[Metric]()
        if next(self.journal.lines(start), None) is None:
            return
        client = connect(self.uri)
        if (known := self._known) is None:
            known = {metric.key: metric.step for metric in client.get_run(self.run_id).data.to_proto().metrics}
        self._known = None  # unknown after a failed request
        for end, line in self.journal.lines(self._start):
            start, fresh = end, new_metrics(line, known)
            batch += [Metric(key, value, line["time"], line["step"]) for key, value in fresh.items()]
            if len(batch) >= BATCH:
                client.log_batch(self.run_id, metrics=batch)
                batch = []
        client.log_batch(self.run_id, metrics=batch)
        self._start, self._known = start, known


class Tracker:
    """Metrics of one run from rank 0: `log` writes a line and returns, and a thread sends it to MLflow.

    Args:
        journal_path: Journal, in a folder that the driver can read. The journal of another run is renamed.
        uri: Tracking URI. If empty, nothing is sent, and MLflow is not imported.
        run_id: MLflow run, opened by the driver.
        show: Displays the progress line.
    """

    def __init__(
        self,
        journal_path: Path | str,
        uri: str,
        run_id: str,
        show: Callable[[dict[str, Any]], object] = lambda line: None,
    ) -> None:
        self.path = Path(journal_path)
        self.uri, self.run_id, self.progress = uri, run_id, show
        retire(self.path, run_id)
        self._journal = Journal(self.path, run_id, uri)
        self._last = dict[str, int]()
        self._started = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True, name="tracker-send")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step by name. A metric that already has a value at this or a later step keeps it."""
        if not self._started:
            self._start()
        values = {metric_name(name): float(value) for name, value in metrics.items()}
        line: dict[str, Any] = {"step": int(step), "time": int(time.time() * 1000), "metrics": values}
        line["metrics"] = new_metrics(line, self._last)
        if line["metrics"]:
            self._journal.append(line)

    def _start(self) -> None:
        """Read the steps of the journal and start the thread."""
        for _, line in self._journal.lines():
            new_metrics(line, self._last)
        if self.uri:
            import_mlflow()  # in the main thread, since other threads import too, and after the first step
            self._thread.start()
        self._started = True

    def resume(self, checkpoint: Path) -> None:
        """Continue the journal in a checkpoint's folder if it is longer than the journal of this machine."""
        self._journal.take(checkpoint / "journal.jsonl")

    def store(self, checkpoint: Path) -> None:
        """Copy the journal to a checkpoint's folder."""
        if self.path.exists():
            shutil.copy(self.path, checkpoint / "journal.jsonl")

    def close(self, timeout: float = 30.0) -> None:
        """Send the rest, for at most `timeout` seconds, and stop."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._journal.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(3.0 if kind else 30.0)  # a stopped run does not wait long

    def _send(self) -> None:
        sender, pause, ending = Sender(self._journal, self.uri, self.run_id), SEND_EVERY, False
        while not ending:
            ending = self._ending.wait(pause)
            try:
                sender.send()
                if pause > SEND_EVERY:
                    log.warning("The tracking server %s responds again; all metrics have been sent", self.uri)
                pause = SEND_EVERY
            except Exception as error:
                if pause == SEND_EVERY:
                    text = "The tracking server %s does not respond (%s). Training continues; metrics are kept in %s"
                    log.warning(text, self.uri, brief(error), self.path)
                pause = min(2 * pause, LONGEST_PAUSE)


def drain(
    journal: Path,
    uri: str | None = None,
    run_id: str | None = None,
    timeout: float = 60.0,
    status: str = "",
    ended: float | None = None,
) -> bool:
    """Send the metrics of a journal that MLflow does not have, and optionally end the run.

    Args:
        journal: Journal of the run, which does not have to exist if `uri` and `run_id` are given.
        uri: Tracking URI. If None, it is read from the journal, as is `run_id`.
        run_id: MLflow run.
        timeout: Seconds to keep trying.
        status: End the run as FINISHED, with the artifacts of its folder (see `upload_run`), as FAILED or as KILLED.
        ended: End of the run in seconds since 1970. If None, now.

    Returns:
        True if the server has everything. Otherwise the reason is logged.

    Raises:
        TrackingError: If the file is not a journal, or of a run with ``run.report_to=none``.
    """
    book, ended = Journal(journal), ended or time.time()
    header = {"uri": uri, "run_id": run_id} if uri and run_id else book.header()
    if header is None:
        raise TrackingError(
            f"{journal} is not a journal: its first line does not name a run. Journals are named journal.jsonl"
        )
    if not header["uri"]:
        raise TrackingError(
            f"{journal} belongs to a run that MLflow does not know (run.report_to none). Run its command again with "
            "--run.report_to mlflow to send it"
        )
    uri, run_id = uri or str(header["uri"]), run_id or str(header["run_id"])
    sender, end, pause = Sender(book, uri, run_id), time.monotonic() + timeout, 0.5
    while True:
        try:
            sender.send()
            if status == "FINISHED":
                upload_run(book.path.absolute().parent, uri, run_id)
            if status:
                connect(uri).set_terminated(run_id, status, int(ended * 1000))
            return True
        except Exception as error:
            left = end - time.monotonic()
            if left <= 0:
                text = "Could not send everything to %s (%s). Nothing is lost: it is kept in %s. To send it later: %s"
                log.error(
                    text, uri, brief(error), book.path.parent, f"{command('track')} sync {shlex.quote(str(book.path))}"
                )
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def sync(journal: Path, uri: str | None = None, timeout: float = 60.0) -> bool:
    """Send everything of a run that MLflow does not have: metrics, and artifacts if the run is finished.

    A renamed journal (`retire`) belongs to an earlier run in the folder; only its metrics are left.

    Args:
        journal: Journal of the run.
        uri: As for `drain`, also the return value and error.
        timeout: Seconds to keep trying.
    """
    ended = record.read(journal.parent).get("ended")
    if ended is None or journal.name != record.JOURNAL:
        return drain(journal, uri, timeout=timeout)
    return drain(journal, uri, timeout=timeout, status="FINISHED", ended=ended)


def open_run(
    uri: str | None,
    experiment: str,
    run_name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    run_id: str | None = None,
    journal: Path | None = None,
    data: Sequence[Mapping[str, Any]] = (),
) -> RunHandle:
    """Start an MLflow run, or continue the run `run_id`. The database and the experiment are created if necessary.

    Args:
        uri: Tracking URI. If empty or None, MLFLOW_TRACKING_URI, otherwise ``sqlite:///mlflow.db`` in the current folder.
            The artifacts of a SQLite database are stored next to it, in ``mlartifacts``.
        experiment: Name of the experiment.
        run_name: Name of a new run.
        params: Parameters, which MLflow truncates at 6,000 characters. Passwords and signatures in URLs are removed, also in
            tags.
        tags: Tags of a new run besides `environment_tags`.
        run_id: Run to continue.
        journal: See `RunHandle`. The journal of another run is renamed.
        data: Rows of `describe_shards_of`, which become the input data sets of the run.

    Returns:
        Handle of the run.

    Raises:
        TrackingError: If MLflow does not support or cannot reach the URI, or the run to continue does not exist.
    """
    uri, client, experiment_id = open_experiment(uri, experiment)
    with uri_errors(uri):
        from mlflow import MlflowException
        from mlflow.entities import Param

        if run_id is None:
            run = client.create_run(experiment_id, run_name=run_name, tags={**environment_tags(), **public(tags or {})})
        else:
            try:
                client.update_run(run_id, status="RUNNING")
                run = client.get_run(run_id)
            except MlflowException as error:
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # the second: deleted
                    raise NoSuchRun(f"MLflow run {run_id!r} not found at run.tracking_uri={uri!r}") from error
                raise
        # A killed driver may not have logged all. Logged ones, such as the number of workers, keep their first value.
        missing = [
            Param(name, value) for key, value in public(params).items() if (name := metric_name(key)) not in run.data.params
        ]
        client.log_batch(run.info.run_id, params=missing)
        if data:  # MLflow stores equal data sets of a run once
            client.log_inputs(run.info.run_id, [data_set(row) for row in data])
    if journal is not None:
        retire(journal, run.info.run_id)
    return RunHandle(run.info.run_id, uri, journal)


class FoundRun(NamedTuple):
    """Run that was found by `find_runs`."""

    run_id: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str]


def find_runs(uri: str, experiment: str, tags: Mapping[str, str]) -> list[FoundRun]:
    """Return the active runs of an experiment, which does not have to exist, that have all given tags, latest first."""
    client = connect(uri)
    if (found := client.get_experiment_by_name(experiment)) is None:
        return []
    # MLflow's filters cannot contain every text, so that values with quotation marks are compared here.
    plain = {name: value for name, value in tags.items() if not {"'", '"', "\\"} & {*value}}
    conditions = " and ".join(f"tags.`{name}` = '{value}'" for name, value in plain.items())
    part = client.search_runs([found.experiment_id], conditions, max_results=MOST_RUNS)
    runs = [*part]
    while part.token:
        part = client.search_runs([found.experiment_id], conditions, max_results=MOST_RUNS, page_token=part.token)
        runs += part
    runs = [run for run in runs if tags.items() <= run.data.tags.items()]
    return [FoundRun(run.info.run_id, run.info.status, dict(run.data.tags)) for run in runs]


def rename(uri: str, run_id: str, name: str, tags: Mapping[str, str]) -> None:
    """Rename an MLflow run and add tags. Errors of MLflow are passed on."""
    from mlflow.entities import RunTag

    client = connect(uri)
    client.update_run(run_id, name=name)
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in public(tags).items()])


@dataclass
class RunHandle:
    """MLflow run that the driver owns."""

    run_id: str
    uri: str
    """Tracking URI; empty for a run with a journal only (``run.report_to=none``)."""
    journal: Path | None = None
    """Journal in the run's folder, whose artifacts are uploaded by `finish`. It is set by `open_run` or `drain`."""

    def drain(self, journal: Path, timeout: float = 60.0) -> bool:
        """Send the metrics of the workers' journal that MLflow does not have; see the function `drain`."""
        self.journal = journal
        return not self.uri or drain(journal, self.uri, self.run_id, timeout)

    def log_artifact(self, path: Path | str) -> None:
        """Upload a file, or the content of a folder, immediately. Errors of MLflow are passed on."""
        client = connect(self.uri)
        (client.log_artifacts if Path(path).is_dir() else client.log_artifact)(self.run_id, str(path))

    def log_figure(self, name: str, figure: Any) -> None:
        """Save a matplotlib figure in the run's folder, see `save_figure`; `finish` uploads it."""
        assert self.journal is not None  # a run has a folder
        save_figure(self.journal.parent, name, figure)

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Send metrics of the run as a whole immediately. Errors of MLflow are passed on."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(metric_name(key), float(value), now, step) for key, value in metrics.items()]
        connect(self.uri).log_batch(self.run_id, metrics=values)

    def finish(self, status: str = "FINISHED", ended: float | None = None) -> bool:
        """End the run as FINISHED, with the artifacts of its folder, as FAILED or as KILLED.

        Errors are logged only; `sync` can send the rest later.

        Args:
            status: How the run has ended.
            ended: Its end in seconds since 1970. If None, now.

        Returns:
            True if the server has everything.
        """
        if not self.uri:
            return True
        if self.journal is not None:
            if not self.journal.exists():  # a sweep logs no metrics, but `sync` needs the run ID
                book = Journal(self.journal, self.run_id, self.uri)
                book.write()
                book.close()
            return drain(self.journal, self.uri, self.run_id, 10 if status == "FINISHED" else 0, status, ended)
        try:
            connect(self.uri).set_terminated(self.run_id, status)
            return True
        except Exception as error:
            log.error("Run %s could not be marked as %s at %s: %s", self.run_id, status, self.uri, brief(error))
            return False


def save_figure(folder: Path, name: str, figure: Any) -> None:
    """Save a matplotlib figure as ``figures/NAME.png`` and ``.svg`` in the folder of a run or sweep."""
    from multicse.evaluation.figures.basic import save

    name = re.sub(r"[^\w\-.]", "_", name)
    record.take(folder, [f"figures/{name}.svg", f"figures/{name}.png"])
    save(figure, folder / "figures", name)
