"""A run's metrics and its MLflow run: all of it is in the run's folder first, and every effect outside may be repeated.

Training never depends on the tracking server. Rank 0 appends a metric to the journal before it does anything else with it,
and a thread sends the lines. What a lost server did not take, ``python pipelines/track.py sync JOURNAL`` sends days later.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from multicse.data.errors import command, public
from multicse.trainers.engine.mlflow_server import (
    NoSuchRun,
    TrackingError,
    brief,
    connect,
    data_set,
    deliver,
    environment_tags,
    import_mlflow,
    metric_name,
    open_experiment,
    uri_errors,
)
from multicse.trainers.engine.report_to import Reports

log = logging.getLogger(__name__)

BATCH = 1000
"""Metrics in one request, MLflow's limit."""
SEND_EVERY = 1.0
"""Seconds between two requests while all goes well."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the server is away."""
MOST_RUNS = 50_000
"""Runs that MLflow finds in one search."""


class Journal:
    """An append-only file of JSON lines: a header with ``run_id`` and ``uri``, then the metrics of one step per line.

    ``{"step": 10, "time": 1763700000000, "metrics": {"train/text": 0.5}}``, with the time in ms since 1970.

    Args:
        path: File; it may be absent.
        run_id: Run that is written to the header of a new file. Only for a journal that is appended to.
        uri: Tracking URI of this run.
    """

    def __init__(self, path: Path | str, run_id: str = "", uri: str = "") -> None:
        self.path, self.run_id, self.uri = Path(path), run_id, uri
        self._file: FileIO | None = None
        self._waiting = b""
        """Lines that a full disk did not take."""

    def header(self) -> dict[str, Any] | None:
        """Return the first line, or None for a file that is absent or not a journal."""
        with contextlib.suppress(OSError, ValueError), open(self.path, "rb") as file:
            first = json.loads(file.readline())
            if isinstance(first, dict) and {"run_id", "uri"} <= set(first):
                return first
        return None

    def lines(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every complete line of metrics from byte `start`, with the byte after it."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                start += len(raw)
                with contextlib.suppress(ValueError):  # half a line that an earlier version left
                    line = json.loads(raw)
                    if "step" in line:
                        yield start, line

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line. If the disk does not take it, it waits in memory for the next one."""
        self._waiting += _line_of(line)
        self.write()

    def write(self) -> None:
        """Write the lines that wait; a new file gets its header."""
        try:
            file = self._file = self._file or self._open()
            while self._waiting:
                self._waiting = self._waiting[file.write(self._waiting) :]
        except OSError as error:
            text = "%s cannot be written (%s). Metrics wait in memory and training continues; make room there"
            log.error(text, self.path, error)

    def close(self) -> None:
        """Close the file, after the lines that wait."""
        if self._waiting:
            self.write()
        if self._waiting:
            log.error("%s: the last %d bytes of metrics are lost", self.path, len(self._waiting))
        if self._file:
            self._file.close()

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            with open(self.path, "rb+") as file:  # a killed process may leave half a line
                file.truncate(file.read().rfind(b"\n") + 1)
        opened = FileIO(self.path, "ab")  # closed by `close`
        if not self.path.stat().st_size:
            self._waiting = self._header() + self._waiting
        return opened

    def _header(self) -> bytes:
        return _line_of({"run_id": self.run_id, "uri": self.uri})

    def take(self, copy: Path) -> bool:
        """Replace the file by a checkpoint's longer copy, as after steps on another machine; whether that was done."""
        other = Journal(copy)
        if other.header() is None or (self.path.exists() and self._length() >= other._length()):
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _, _, lines = copy.read_bytes().partition(b"\n")
        partial = self.path.with_suffix(".partial")
        partial.write_bytes(self._header() + lines)
        partial.replace(self.path)
        return True

    def _length(self) -> tuple[int, int]:
        """Return the last step and the bytes of the file, since a step may have several lines."""
        return max((line["step"] for _, line in self.lines()), default=0), self.path.stat().st_size


def histories(journal: Path) -> dict[str, list[tuple[int, dict[str, float]]]]:
    """Return the steps and metrics of every task at every evaluation, in the order of the steps."""
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for _, entry in Journal(journal).lines():
        for name, value in entry["metrics"].items():
            if name.startswith("eval/"):
                task, _, metric = name.removeprefix("eval/").rpartition("/")
                steps.setdefault(task, {}).setdefault(entry["step"], {})[metric] = value
    return {task: sorted(values.items()) for task, values in steps.items()}


def retire(journal: Path, run_id: str = "") -> None:
    """Rename the journal of another run than `run_id` after its run, so that it can still be sent."""
    found = (Journal(journal).header() or {}).get("run_id", "unknown")
    if journal.exists() and found != run_id:
        journal.rename(journal.with_stem(f"{journal.stem}-{found}"))


def new_metrics(line: Mapping[str, Any], last: dict[str, int]) -> dict[str, float]:
    """Return the metrics of a line that are newer than `last`.

    So a step that a restarted worker computes again counts once, as the first time.

    Args:
        line: Line of a journal.
        last: Newest step of each metric; it is updated.
    """
    fresh = {key: value for key, value in line["metrics"].items() if line["step"] > last.get(key, -1)}
    last.update(dict.fromkeys(fresh, line["step"]))
    return fresh


class Sender:
    """Sends a journal's metrics to MLflow.

    A new one starts at the first line and leaves out the steps that the server has, so everything may be sent again at any
    time. A request that is repeated has the same time stamps, and MLflow stores equal metrics once.
    """

    def __init__(self, journal: Journal, uri: str, run_id: str) -> None:
        self.journal, self.uri, self.run_id = journal, uri, run_id
        self._start = 0
        self._known: dict[str, int] | None = None
        """Newest step of every metric that the server has; None if it has to be asked."""

    def send(self) -> None:
        """Send all that is new in the file. Raises what MLflow raises."""
        from mlflow.entities import Metric

        start, batch = self._start, list[Metric]()
        if next(self.journal.lines(start), None) is None:
            return
        client = connect(self.uri)
        if (known := self._known) is None:
            known = {metric.key: metric.step for metric in client.get_run(self.run_id).data.to_proto().metrics}
        self._known = None  # after a failure it is unknown what arrived
        for end, line in self.journal.lines(self._start):
            start, fresh = end, new_metrics(line, known)
            batch += [Metric(key, value, line["time"], line["step"]) for key, value in fresh.items()]
            if len(batch) >= BATCH:
                client.log_batch(self.run_id, metrics=batch)
                batch = []
        client.log_batch(self.run_id, metrics=batch)
        self._start, self._known = start, known


class Tracker:
    """Metrics of one run from rank 0: `log` writes a line and returns, a thread sends the lines.

    Args:
        journal_path: File that the driver can read too. The journal of another run is retired.
        uri: Tracking URI.
        run_id: MLflow run, opened by the driver.
        show: Takes the progress line.
        also: Names in `report_to.KINDS` of those who get the metrics besides MLflow.
    """

    def __init__(
        self,
        journal_path: Path | str,
        uri: str,
        run_id: str,
        show: Callable[[dict[str, Any]], object] = lambda line: None,
        also: Sequence[str] = (),
    ) -> None:
        self.path = Path(journal_path)
        self.uri, self.run_id, self.progress, self.also = uri, run_id, show, also
        retire(self.path, run_id)
        self._journal = Journal(self.path, run_id, uri)
        self._last = dict[str, int]()
        self._reports: Reports | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True, name="tracker-send")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step. A metric that has a value at this step, or at a later one, keeps it.

        Raises TypeError for a value that is not a number.
        """
        if self._reports is None:
            self._reports = self._start()
        values = {metric_name(name): float(value) for name, value in metrics.items()}
        line: dict[str, Any] = {"step": int(step), "time": int(time.time() * 1000), "metrics": values}
        line["metrics"] = new_metrics(line, self._last)
        if line["metrics"]:
            self._journal.append(line)
            self._reports.log(line)

    def _start(self) -> Reports:
        """Read the journal's steps and start the thread.

        MLflow is imported first, in this thread, since other threads import too. That is as late as possible: the first step
        does not wait for it.
        """
        import_mlflow()
        for _, line in self._journal.lines():
            new_metrics(line, self._last)
        self._thread.start()
        return Reports(self.also, self._journal)

    def resume(self, checkpoint: Path) -> None:
        """Continue the journal in a checkpoint's folder, if that is ahead of this machine's."""
        self._journal.take(checkpoint / "journal.jsonl")

    def store(self, checkpoint: Path) -> None:
        """Put a copy of the journal into a checkpoint's folder."""
        if self.path.exists():
            shutil.copy(self.path, checkpoint / "journal.jsonl")

    def close(self, timeout: float = 30.0) -> None:
        """Send the rest, for at most `timeout` seconds, and stop. What a server that is away did not get, `drain` sends."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._journal.close()
        if self._reports:
            self._reports.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(3.0 if kind else 30.0)  # a run that was stopped does not wait for others

    def _send(self) -> None:
        sender, pause, ending = Sender(self._journal, self.uri, self.run_id), SEND_EVERY, False
        while not ending:
            ending = self._ending.wait(pause)
            try:
                sender.send()
                if pause > SEND_EVERY:
                    log.warning("the tracking server %s is back; the waiting metrics were sent", self.uri)
                pause = SEND_EVERY
            except Exception as error:
                if pause == SEND_EVERY:
                    text = "the tracking server %s does not answer (%s); training continues, metrics wait in %s"
                    log.warning(text, self.uri, brief(error), self.path)
                pause = min(2 * pause, LONGEST_PAUSE)


def drain(
    journal: Path | str,
    uri: str | None = None,
    run_id: str | None = None,
    timeout: float = 60.0,
    status: str = "",
    ended: float | None = None,
) -> bool:
    """Send what MLflow lacks of a journal, trying for `timeout` seconds; True when all is with the server.

    Raises TrackingError for a file that is not a journal, and nothing else.

    Args:
        journal: File of the run; an absent one has nothing to send.
        uri: Tracking URI. If None, that of the journal.
        run_id: Run. If None, that of the journal.
        timeout: Seconds to keep trying.
        status: End the run as FINISHED, with all that its folder has for MLflow (see `deliver`), as FAILED or as KILLED.
        ended: When it ended, in seconds since 1970. If None, now.
    """
    book, ended = Journal(journal), ended or time.time()
    header = {"uri": uri, "run_id": run_id} if uri and run_id else book.header()
    if header is None:
        raise TrackingError(f"{journal} is not a journal: its first line names no run. Journals are called journal.jsonl.")
    uri, run_id = uri or str(header["uri"]), run_id or str(header["run_id"])
    sender, end, pause = Sender(book, uri, run_id), time.monotonic() + timeout, 0.5
    while True:
        try:
            sender.send()
            if status == "FINISHED":
                deliver(book.path.absolute().parent, uri, run_id)
            if status:
                connect(uri).set_terminated(run_id, status, int(ended * 1000))
            return True
        except Exception as error:
            left = end - time.monotonic()
            if left <= 0:
                text = "%s did not take everything (%s). Nothing is lost: it is in %s. Send it later: %s"
                log.error(
                    text, uri, brief(error), book.path.parent, f"{command('track')} sync {shlex.quote(str(book.path))}"
                )
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def sync(journal: Path, uri: str | None = None, timeout: float = 60.0) -> bool:
    """Send what MLflow lacks of a run, once more and with all else of its folder if the run is finished; see `drain`.

    A journal that was renamed belongs to an earlier run of the folder, of which nothing else is left (`retire`).
    """
    summary = journal.parent / "summary.json"
    if not summary.exists() or journal.name != "journal.jsonl":
        return drain(journal, uri, timeout=timeout)
    return drain(journal, uri, timeout=timeout, status="FINISHED", ended=summary.stat().st_mtime)


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
    """Start a run, or continue the one with `run_id`. The database and the experiment are made when absent.

    Tags: what MLflow knows of its own accord (user, script, git commit), versions of the libraries, CPUs and GPU. Raises
    TrackingError for a URI that MLflow does not take or cannot reach, and for a run that does not exist.

    Args:
        uri: Tracking URI. If empty or None, MLFLOW_TRACKING_URI, otherwise ``sqlite:///mlflow.db`` in the current folder.
            The artifacts of a SQLite database are beside it, in ``mlartifacts``.
        experiment: Name of the experiment.
        run_name: Name of a new run.
        params: MLflow cuts one at 6,000 characters; passwords and signatures of URLs are left out of them and of tags.
        tags: Tags of a new run.
        run_id: Run to continue.
        journal: See `RunHandle`. That of another run is retired.
        data: Rows of `describe_shards_of`: the data sets that the run reads, its inputs in MLflow.
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
                    raise NoSuchRun(f"there is no run {run_id!r} at run.tracking_uri={uri!r} to continue") from error
                raise
        # Those that a driver did not come to; others may be, as the number of workers, of the run's first beginning.
        kept = [
            Param(name, value) for key, value in public(params).items() if (name := metric_name(key)) not in run.data.params
        ]
        client.log_batch(run.info.run_id, params=kept)
        if data:  # MLflow keeps the same data set of a run once
            client.log_inputs(run.info.run_id, [data_set(row) for row in data])
    if journal is not None:
        retire(journal, run.info.run_id)
    return RunHandle(run.info.run_id, uri, run.info.experiment_id, run.info.artifact_uri, journal)


class FoundRun(NamedTuple):
    """A run that `find_runs` found."""

    run_id: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str]


def find_runs(uri: str, experiment: str, tags: Mapping[str, str]) -> list[FoundRun]:
    """Return the active runs of an experiment that have all these tags, the newest first. Raises what MLflow raises."""
    client = connect(uri)
    if (found := client.get_experiment_by_name(experiment)) is None:
        return []
    conditions = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs([found.experiment_id], conditions, max_results=MOST_RUNS)
    return [FoundRun(run.info.run_id, run.info.status, dict(run.data.tags)) for run in runs]


def rename(uri: str, run_id: str, name: str, tags: Mapping[str, str]) -> None:
    """Give a run another name and more tags. Raises what MLflow raises."""
    from mlflow.entities import RunTag

    client = connect(uri)
    client.update_run(run_id, name=name)
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in public(tags).items()])


@dataclass
class RunHandle:
    """An MLflow run that the driver owns.

    journal: The run's journal, in the run's folder, once `drain` was called or `open_run` was told. `finish` brings the rest
    of this folder.
    """

    run_id: str
    uri: str
    experiment_id: str
    artifact_uri: str
    journal: Path | None = None

    def drain(self, journal: Path | str, timeout: float = 60.0) -> bool:
        """Send what MLflow lacks of the workers' journal. See the function `drain`."""
        self.journal = Path(journal)
        return drain(journal, self.uri, self.run_id, timeout)

    def log_artifact(self, path: Path | str, folder: str = "") -> None:
        """Upload a file, or what is in a folder, into `folder` of the run's artifacts at once.

        Raises FileNotFoundError, and what MLflow raises.
        """
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"artifact {path}: there is no such file or folder")
        client = connect(self.uri)
        (client.log_artifacts if path.is_dir() else client.log_artifact)(self.run_id, str(path), folder or None)

    def log_figure(self, name: str, figure: Any) -> None:
        """Save a matplotlib figure as ``figures/NAME.png`` and ``.svg`` in the run's folder, which `finish` brings."""
        from multicse.evaluation.figures.basic import save

        assert self.journal is not None  # a run has a folder
        save(figure, self.journal.parent / "figures", re.sub(r"[^\w\-.]", "_", name))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Send metrics that belong to the run as a whole at once. Raises what MLflow raises."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(metric_name(key), float(value), now, step) for key, value in metrics.items()]
        connect(self.uri).log_batch(self.run_id, metrics=values)

    def finish(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, after all that its folder has for MLflow, as FAILED or as KILLED. Raises nothing.

        What the server does not take, `sync` sends later.
        """
        if self.journal is not None:
            if not self.journal.exists():  # a sweep logs no metrics, and `sync` has to know the run
                book = Journal(self.journal, self.run_id, self.uri)
                book.write()
                book.close()
            drain(self.journal, self.uri, self.run_id, 10 if status == "FINISHED" else 0, status)
            return
        try:
            connect(self.uri).set_terminated(self.run_id, status)
        except Exception as error:
            log.error("run %s could not be marked %s at %s: %s", self.run_id, status, self.uri, brief(error))


def _line_of(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
