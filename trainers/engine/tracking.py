"""MLflow without waiting for it: the driver owns the run, rank 0 writes a journal, a thread sends the journal.

Training never depends on the tracking server. A metric is a line of a local file before it is anything else; what was sent
is remembered beside it (``JOURNAL.sent``), so that a restarted worker, a server that was away, or
``python pipelines/track.py sync JOURNAL`` days later go on from there.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from filelock import FileLock

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[1]
SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "uc")
BATCH = 1000
"""Metrics per request, MLflow's limit; it takes 100 parameters or tags."""
SEND_EVERY = 1.0
"""Seconds between two requests while all goes well."""
KIND = "custom_model_development"
"""MLflow's word for experiments that train models."""
DATABASE_LOCK = 7161125
"""Key of PostgreSQL's advisory lock under which a driver makes MLflow's tables; any number that all drivers share."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the server is away."""


class TrackingError(ValueError):
    """A tracking URI or run that cannot be used; the text says what to change."""


# ---------------------------------------------------------------------------------------------------------- journal


@dataclass
class Sent:
    """How far a journal was sent: bytes of the file, and the last step of every metric that the server has."""

    offset: int = 0
    last: dict[str, int] = field(default_factory=dict)


class Journal:
    """A file of JSON lines: a header (run id, URI, start), then metrics and, after training, what is left to be done.

    ``{"step": 10, "time": 1763700000000, "metrics": {"train/text": 0.5}}`` with time in ms; lines of the machine's load
    have ``"second"`` (since the run's start) in place of ``"step"``; ``{"do": "artifacts", ...}`` is an upload or the
    like that failed. Only whole lines count: one that a killed process left unfinished is not there.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.sent_path = Path(f"{path}.sent")

    def lock(self, timeout: float = -1) -> FileLock:
        """One process sends or rewrites at a time."""
        return FileLock(f"{self.path}.lock", timeout=timeout)

    def header(self) -> dict[str, Any] | None:
        """``run_id``, ``uri``, ``began`` (seconds since 1970); none for a file that is absent or no journal."""
        with contextlib.suppress(OSError, ValueError), open(self.path, "rb") as file:
            first = json.loads(file.readline())
            if isinstance(first, dict) and {"run_id", "uri", "began"} <= set(first):
                return first
        return None

    def create(self, run_id: str, uri: str) -> None:
        """Write the header, if the file is not there."""
        if self.path.exists():
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(f"{self.path}.new")
        fresh.write_text(json.dumps({"run_id": run_id, "uri": uri, "began": time.time()}) + "\n")
        os.replace(fresh, self.path)

    def lines(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every whole line from byte `start`, with the byte behind it. The header is left out."""
        with open(self.path, "rb") as file:
            file.seek(start)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                start += len(raw)
                with contextlib.suppress(ValueError):
                    line = json.loads(raw)
                    if isinstance(line, dict) and "run_id" not in line:
                        yield start, line

    def append(self, line: Mapping[str, Any], file: IO[bytes] | None = None) -> None:
        """Add a line, to `file` where the journal is open already, and flush."""
        with contextlib.nullcontext(file) if file else open(self.path, "ab") as out:
            assert out is not None
            out.write(json.dumps(line).encode() + b"\n")
            out.flush()

    def sent(self) -> Sent | None:
        """How far it was sent; none where nobody remembers: nothing was, or the journal is a copy."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self.sent_path.read_text())
            if 0 <= int(state["offset"]) <= self.path.stat().st_size:
                return Sent(int(state["offset"]), {key: int(step) for key, step in state["last"].items()})
        return None

    def remember(self, sent: Sent) -> None:
        """Replace the record of what was sent, atomically."""
        fresh = Path(f"{self.sent_path}.new")
        fresh.write_text(json.dumps({"offset": sent.offset, "last": sent.last}))
        os.replace(fresh, self.sent_path)

    def waiting(self) -> int:
        """Lines that were not sent yet."""
        return sum(1 for _ in self.lines((self.sent() or Sent()).offset)) if self.path.exists() else 0

    def rewind(self, step: int) -> None:
        """Forget the lines after `step` that were not sent, and an unfinished last line: they will come again.

        Those that were sent stay, and when they come again they are not sent (`send` knows the last step of each metric).
        """
        with self.lock():
            offset = (self.sent() or Sent()).offset
            raw = self.path.read_bytes()
            kept = [line for _, line in self.lines(offset) if line.get("step", 0) <= step]
            head = raw[:offset] if offset else raw[: raw.find(b"\n") + 1]
            fresh = Path(f"{self.path}.new")
            fresh.write_bytes(head + b"".join(json.dumps(line).encode() + b"\n" for line in kept))
            os.replace(fresh, self.path)

    def set_aside(self) -> None:
        """Make room for another run: a journal that was sent is removed, any other one renamed after its run."""
        header = self.header()
        with self.lock():
            if header and not self.waiting():
                self.path.unlink()
                self.sent_path.unlink(missing_ok=True)
                return
            other = self.path.with_name(f"{self.path.stem}-{header['run_id'] if header else 'unknown'}{self.path.suffix}")
            os.replace(self.path, other)
            if self.sent_path.exists():
                os.replace(self.sent_path, f"{other}.sent")
        log.warning("metrics of an earlier run were never sent; they are now in %s: %s", other, sync_command(other))


def sync_command(journal: Path) -> str:
    """What a user types to send a journal later."""
    return f"python pipelines/track.py sync {journal}"


def send(journal: Journal, uri: str, run_id: str, lock_timeout: float = -1) -> int:
    """Send all that waits in a journal, in order; returns how many metrics that were.

    A metric is sent once per step: steps up to the last one that the server has are left out. When a process dies between
    a request and its record, the request is repeated with the same timestamps, and MLflow's database keeps equal metrics
    once. Raises what MLflow raises.
    """
    count = 0
    with journal.lock(lock_timeout):
        start = journal.sent()
        if start is not None and next(journal.lines(start.offset), None) is None:
            return 0
        client = _client(uri)
        sent = Sent(0, _last_steps(client, run_id)) if start is None else start
        for end, metrics, todo in _batches(journal, sent):
            for first in range(0, len(metrics), BATCH):
                client.log_batch(run_id, metrics=metrics[first : first + BATCH])
            count += len(metrics)
            if todo is not None:
                _perform(uri, run_id, todo)
            sent.offset = end
            journal.remember(sent)
        if start is None:
            journal.remember(sent)
    return count


def _batches(journal: Journal, sent: Sent) -> Iterator[tuple[int, list[Any], dict[str, Any] | None]]:
    """Whole lines, about `BATCH` metrics at a time: (byte behind the last line, metrics, what is to be done after them).

    Metrics that the server has by `sent.last` are left out; it moves on with those that are taken.
    """
    from mlflow.entities import Metric

    end, batch = sent.offset, []
    for end, line in journal.lines(sent.offset):
        step = int(line.get("step", line.get("second", 0)))
        for key, value in line.get("metrics", {}).items():
            if step > sent.last.get(key, -1):
                sent.last[key] = step
                batch.append(Metric(key, float(value), int(line["time"]), step))
        todo = line if "do" in line else None
        if todo or len(batch) >= BATCH:
            yield end, batch, todo
            batch = []
    if batch or end > sent.offset:
        yield end, batch, None


def _last_steps(client: Any, run_id: str) -> dict[str, int]:
    """The last step of every metric of a run."""
    keys = client.get_run(run_id).data.metrics
    return {key: max(metric.step for metric in client.get_metric_history(run_id, key)) for key in keys}


def drain(journal: Path | str, uri: str | None = None, run_id: str | None = None, timeout: float = 60.0) -> bool:
    """Send what a journal still holds, trying for `timeout` seconds; True when all is with the server.

    uri, run_id: without them, those in the journal. When the server cannot be reached the log says where the journal is
    and how to send it later; nothing is raised. Raises TrackingError for a file that is no journal.
    """
    book = Journal(journal)
    if not book.path.exists():
        log.warning("no journal at %s: nothing to send", book.path)
        return True
    header = book.header()
    if header is None:
        raise TrackingError(f"{journal} is no journal: its first line names no run. Journals are called journal.jsonl.")
    uri, run_id = uri or header["uri"], run_id or header["run_id"]
    end, pause = time.monotonic() + timeout, 0.5
    while True:
        try:
            send(book, uri, run_id, max(0.1, end - time.monotonic()))
            return True
        except Exception as error:
            left = end - time.monotonic()
            if left <= 0:
                text = "%s cannot be reached (%s). Nothing is lost: %d lines wait in %s. Send them later: %s"
                log.error(text, uri, _brief(error), book.waiting(), book.path, sync_command(book.path))
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


# --------------------------------------------------------------------------------------------------- worker, rank 0


class Tracker:
    """Metrics of one run from rank 0: `log` writes a line and returns, a thread sends the lines. Thread-safe.

    journal_path: a file that the driver can read too. One that another run left there is set aside.
    system_every: seconds between samples of the machine's load (``system/...``: CPU, memory, disk, network; GPUs when
    nvidia-ml-py is installed), collected as MLflow collects them; 0: none. MLflow's own monitor is not used because it ends
    for good when the server once fails to answer.
    """

    def __init__(self, journal_path: Path | str, uri: str, run_id: str, system_every: float = 10.0) -> None:
        self.path = Path(journal_path)
        self.uri, self.run_id, self.system_every = uri, run_id, system_every
        self._journal = Journal(self.path)
        self._file: IO[bytes] | None = None
        self._began = 0.0
        self._guard = threading.RLock()
        self._closing, self._ending = threading.Event(), threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True, name="tracker-sample")
        self._sending = threading.Thread(target=self._send, daemon=True, name="tracker-send")
        if self.path.exists() and (self._journal.header() or {}).get("run_id") != run_id:
            self._journal.set_aside()
        _import_mlflow()  # here, not in a thread while other threads import

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step. A metric that is logged again for a step, or for an earlier one, is not sent again.

        Raises ValueError after `close`, and TypeError for a value that is no number.
        """
        values = {metric_name(name): float(value) for name, value in metrics.items()}
        self._append({"step": int(step), "time": int(time.time() * 1000), "metrics": values})

    def resume(self, step: int) -> None:
        """Go on after `step`, that of the checkpoint: what was not sent of later steps is dropped, since it comes again."""
        with self._guard:
            assert self._file is None, "resume comes before the first line"
            if self.path.exists():
                self._journal.rewind(step)
            self._open()

    def close(self, timeout: float = 30.0) -> None:
        """Send the rest, for at most `timeout` seconds, and stop. What a server that is away did not get, `drain` sends."""
        with self._guard:
            if self._file is None or self._file.closed:
                return
        # The sampler ends first: its last sample is among what is sent last.
        self._closing.set()
        if self._sampling.is_alive():
            self._sampling.join(5)
        with self._guard:
            self._file.close()
        self._ending.set()
        self._sending.join(timeout)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        """The open journal, without an unfinished line of a process that was killed; the threads start with it."""
        if self._file is None:
            if self.path.exists():
                self._journal.rewind(sys.maxsize)
            self._journal.create(self.run_id, self.uri)
            header = self._journal.header()
            assert header is not None
            self._began = header["began"]
            self._file = open(self.path, "ab")  # noqa: SIM115
            if self.system_every > 0:
                self._sampling.start()
            self._sending.start()
        return self._file

    def _append(self, line: dict[str, Any]) -> None:
        with self._guard:
            file = self._open()
            if file.closed:
                raise ValueError(f"the tracker of {self.path} is closed")
            self._journal.append(line, file)

    def _sample(self) -> None:
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

        monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
        with contextlib.suppress(Exception):  # no GPU, or no nvidia-ml-py to ask it
            monitors.append(GPUMonitor())
        CPUMonitor().collect_metrics()  # psutil's load counts from the last call; the first one has no meaning
        closing = False
        while not closing:
            closing = self._closing.wait(self.system_every)
            values: dict[str, float] = {}
            for monitor in monitors:
                with contextlib.suppress(Exception):  # a sensor that fails is no reason to stop
                    monitor.collect_metrics()
                    values |= {f"system/{key}": float(value) for key, value in monitor.aggregate_metrics().items()}
                    monitor.clear_metrics()
            now = time.time()
            self._append({"second": int(now - self._began), "time": int(now * 1000), "metrics": values})

    def _send(self) -> None:
        pause, away, ending = SEND_EVERY, False, False
        while not ending:
            ending = self._ending.wait(pause)
            try:
                send(self._journal, self.uri, self.run_id)
                if away:
                    log.warning("the tracking server %s is back; the waiting metrics were sent", self.uri)
                pause, away = SEND_EVERY, False
            except Exception as error:
                pause = min(2 * pause, LONGEST_PAUSE)
                if not away:
                    text = "the tracking server %s does not answer (%s); training goes on, metrics wait in %s"
                    log.warning(text, self.uri, _brief(error), self.path)
                away = True


def metric_name(name: str) -> str:
    """`name` as MLflow allows it: letters, digits and ``_-.:/`` and space, at most 250; anything else becomes ``_``."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


# ----------------------------------------------------------------------------------------------------------- driver


@dataclass
class RunHandle:
    """An MLflow run that the driver owns.

    journal: that of the run, once `drain` was called or `open_run` was told. From then on nothing here fails because of
    the server: what it does not take is written to the journal, and sent with it (`sync_command`).
    """

    run_id: str
    uri: str
    experiment_id: str
    artifact_uri: str
    journal: Path | None = None

    def drain(self, journal: Path | str | None = None, timeout: float = 60.0) -> bool:
        """Send what the workers' journal still holds. See the function `drain`."""
        self.journal = Path(journal) if journal is not None else self.journal
        if self.journal is None:
            raise TrackingError("which journal? Give its path.")
        return drain(self.journal, self.uri, self.run_id, timeout)

    def log_artifact(self, file: Path | str, folder: str = "") -> None:
        """Upload a file into `folder` of the run's artifacts. Raises FileNotFoundError when it is not there."""
        self.log_artifacts(file, folder)

    def log_artifacts(self, path: Path | str, folder: str = "") -> None:
        """Upload a file, or what is in a folder. Raises FileNotFoundError when it is not there."""
        if not Path(path).exists():
            raise FileNotFoundError(f"artifact {path}: there is no such file or folder")
        self._do({"do": "artifacts", "path": str(Path(path).resolve()), "folder": folder})

    def log_figure(self, name: str, figure: Any) -> Path | None:
        """A matplotlib figure as ``figures/NAME.png`` and ``.svg``, kept beside the journal too; returns the PNG's place."""
        from evaluation.figures.basic import save

        name = re.sub(r"[^\w\-.]", "_", name)
        with contextlib.ExitStack() as stack:
            kept = self.journal.parent.resolve() / "figures" if self.journal is not None else None
            files = save(figure, kept or stack.enter_context(tempfile.TemporaryDirectory()), name)
            for file in files:
                self.log_artifacts(file, "figures")
        return files[0] if kept is not None else None

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Metrics that belong to the run as a whole, sent at once. Raises what MLflow raises."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(metric_name(key), float(value), now, step) for key, value in metrics.items()]
        for first in range(0, len(values), BATCH):
            _client(self.uri).log_batch(self.run_id, metrics=values[first : first + BATCH])

    def register(self, export: Path | str, name: str, alias: str | None = None) -> None:
        """Log an exported sentence-transformers folder as a model of the run, and as a new version of `name`.

        ``mlflow.sentence_transformers.load_model("models:/NAME/1")`` loads it, and ``"models:/NAME@ALIAS"`` the version that
        the alias was given to last.
        """
        if not (Path(export) / "modules.json").is_file():
            raise FileNotFoundError(f"{export} is no sentence-transformers folder: it has no modules.json")
        self._do({"do": "register", "path": str(Path(export).resolve()), "name": name, "alias": alias})

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: FINISHED, FAILED or KILLED, after what its journal still holds. Raises nothing."""
        if self.journal is not None and Journal(self.journal).waiting():
            self.drain(timeout=10)
        try:
            self._do({"do": "status", "status": status, "time": int(time.time() * 1000)})
        except Exception as error:
            log.error("run %s could not be marked %s at %s: %s", self.run_id, status, self.uri, _brief(error))

    def _do(self, line: dict[str, Any]) -> None:
        try:
            _perform(self.uri, self.run_id, line)
        except Exception as error:
            if self.journal is None:
                raise
            # The result of days of training must not depend on the last request.
            book = Journal(self.journal)
            book.create(self.run_id, self.uri)
            with book.lock(60):
                book.append(line)
            text = "%s (%s) did not reach %s: %s. It waits in %s; send it later: %s"
            what = line.get("path") or line.get("status")
            log.error(text, line["do"], what, self.uri, _brief(error), self.journal, sync_command(self.journal))


def open_run(
    uri: str | None,
    experiment: str,
    run_name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    run_id: str | None = None,
    journal: Path | None = None,
) -> RunHandle:
    """Start a run, or continue the one with `run_id`. The database and the experiment are made when absent.

    uri: empty or none: MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db`` in the current folder. The artifacts of a
    SQLite database are beside it, in ``mlartifacts``. Every parameter is logged; MLflow cuts one at 6,000
    characters, and then all are in the artifact ``params.json``. Tags: git commit and whether files differed from it,
    versions of the libraries, CPUs and GPU.

    Raises TrackingError for a URI that MLflow does not take or cannot reach, and for a run that is not there.
    """
    uri = resolve_uri(uri)
    try:
        with _database_lock(uri):
            client = _client(uri)  # makes the tables
            experiment_id = _experiment(client, uri, experiment)
        if run_id is None:
            everything = {**environment_tags(), **(tags or {})}
            run = client.create_run(experiment_id, run_name=run_name, tags=everything)
            _log_params(client, run.info.run_id, params)
        else:
            client.update_run(run_id, status="RUNNING")
            run = client.get_run(run_id)
    except TrackingError:
        raise
    except Exception as error:
        if run_id is not None and "not found" in str(error):
            raise TrackingError(f"there is no run {run_id!r} at run.tracking_uri={uri!r} to continue") from error
        raise TrackingError(
            f"run.tracking_uri={uri!r} cannot be used: {_brief(error)}. Start the server (`mlflow server --port 5000`), "
            "give the URI of one that runs, or leave it out: then runs are kept in mlflow.db in the current folder."
        ) from error
    return RunHandle(run.info.run_id, uri, run.info.experiment_id, run.info.artifact_uri, journal)


@dataclass(frozen=True)
class FoundRun:
    """A run that `find_runs` found."""

    run_id: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str]


def find_runs(uri: str, experiment: str, tags: Mapping[str, str]) -> list[FoundRun]:
    """Active runs of an experiment that have all these tags, the newest first. Raises what MLflow raises."""
    client = _client(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    conditions = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs, token = [], None
    while True:
        page = client.search_runs([found.experiment_id], conditions, max_results=1000, page_token=token)
        runs += [FoundRun(run.info.run_id, run.info.status, dict(run.data.tags)) for run in page]
        token = page.token
        if not token:
            return runs


def rename(uri: str, run_id: str, name: str, tags: Mapping[str, str]) -> None:
    """Give a run another name and more tags. Raises what MLflow raises."""
    from mlflow.entities import RunTag

    client = _client(uri)
    client.update_run(run_id, name=name)
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])


def resolve_uri(uri: str | None = None) -> str:
    """The tracking URI with absolute paths (see `open_run`). Raises TrackingError for one that MLflow does not take."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    scheme = uri.split(":", 1)[0].split("+")[0] if ":" in uri else ""
    if scheme not in SCHEMES:
        raise TrackingError(
            f"run.tracking_uri={uri!r} is no database or server (MLflow no longer keeps runs in plain folders). "
            "Allowed: sqlite:///FILE, http://HOST:PORT, https://…, postgresql://…, mysql://…"
        )
    if urlsplit(uri).password:
        raise TrackingError(
            f"run.tracking_uri={scheme}://… holds a password, which would be in recipe.json, the journal and the run. "
            "For a server set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, for a database PGPASSWORD or PGPASSFILE"
        )
    if scheme == "sqlite":
        file = uri.partition(":///")[2]
        if not file or file.startswith(":memory:"):
            raise TrackingError(
                f"run.tracking_uri={uri!r} names no file; write sqlite:///FILE, for example sqlite:///mlflow.db"
            )
        path = Path(file).expanduser().resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{path}"
    return uri


def environment_tags() -> dict[str, str]:
    """What a run can be repeated with: commit, versions, machine."""
    import torch

    from trainers.engine.card import library_versions

    tags = {f"version.{name}": version for name, version in library_versions().items()}
    tags |= {
        "platform": platform.platform(),
        "cpus": str(os.cpu_count()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "mlflow.source.name": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:5000],
        "mlflow.source.type": "LOCAL",
    }
    with contextlib.suppress(Exception):  # containers may run without a user name
        tags["mlflow.user"] = getpass.getuser()
    commit = _git("rev-parse", "HEAD")
    if commit is not None:
        changes = _git("status", "--porcelain", "--untracked-files=no")
        tags |= {"mlflow.source.git.commit": commit, "git.dirty": str(bool(changes)).lower()}
    return tags


def _git(*arguments: str) -> str | None:
    """Output of git in this repository; none without git, or where the code is not its own repository."""
    if not (ROOT / ".git").exists():
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()
    return None


def _import_mlflow() -> Any:
    """MLflow, which takes a second or two to import, with settings that fit a loop that tries again by itself."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own seven block for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow

    return mlflow


def _client(uri: str) -> Any:
    return _import_mlflow().MlflowClient(uri)


@contextlib.contextmanager
def _database_lock(uri: str) -> Iterator[None]:
    """One driver at a time makes the tables of a database: several at once fail. A server makes its own."""
    if uri.startswith("postgresql"):
        from sqlalchemy import NullPool, create_engine, text

        with create_engine(uri, poolclass=NullPool).connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": DATABASE_LOCK})
            try:
                yield
            finally:
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": DATABASE_LOCK})
        return
    if not uri.startswith("sqlite:///"):
        yield
        return
    with FileLock(f"{uri.removeprefix('sqlite:///')}.lock", timeout=120):
        yield


def _experiment(client: Any, uri: str, name: str) -> str:
    """Id of the experiment, made when absent."""
    found = client.get_experiment_by_name(name)
    if found is None:
        place = None  # a server's own choice
        if uri.startswith("sqlite:///"):
            folder = re.sub(r"[^\w\-.]", "_", name)
            place = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / folder).as_uri()
        try:
            # The kind is what the page shows: training runs and their metrics, not traces and prompts.
            return client.create_experiment(name, artifact_location=place, tags={"mlflow.experimentKind": KIND})
        except Exception:
            found = client.get_experiment_by_name(name)  # another driver was faster
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"run.experiment={name!r} was deleted at {uri}; restore it (`mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`) or choose another name"
        )
    return found.experiment_id


def _log_params(client: Any, run_id: str, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Param
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

    texts = {metric_name(name): str(value) for name, value in params.items()}
    entities = [Param(name, text[:MAX_PARAM_VAL_LENGTH]) for name, text in texts.items()]
    for start in range(0, len(entities), MAX_PARAMS_TAGS_PER_BATCH):
        client.log_batch(run_id, params=entities[start : start + MAX_PARAMS_TAGS_PER_BATCH])
    if any(len(text) > MAX_PARAM_VAL_LENGTH for text in texts.values()):
        client.log_dict(run_id, dict(params), "params.json")


def _perform(uri: str, run_id: str, line: Mapping[str, Any]) -> None:
    """Do what a ``do`` line says. Raises what MLflow raises."""
    client = _client(uri)
    if line["do"] == "status":
        client.set_terminated(run_id, line["status"], line["time"])
    elif line["do"] == "artifacts":
        upload = client.log_artifacts if Path(line["path"]).is_dir() else client.log_artifact
        upload(run_id, line["path"], line["folder"] or None)
    elif line["do"] == "register":
        _register(uri, run_id, Path(line["path"]), line["name"], line.get("alias"))
    else:
        raise TrackingError(f"a journal line asks for {line['do']!r}; known: artifacts, register, status")


def _register(uri: str, run_id: str, export: Path, name: str, alias: str | None) -> None:
    mlflow = _import_mlflow()
    from mlflow import sentence_transformers as flavor

    from models.carried_code import load_by_its_code
    from trainers.engine.card import library_versions

    versions = library_versions()
    needs = [f"{package}=={versions[package]}" for package in ("torch", "transformers", "sentence-transformers")]
    client = _client(uri)
    # Made here because log_model would put it into the default experiment, in a folder that depends on where we are.
    model = client.create_logged_model(client.get_run(run_id).info.experiment_id, name="model", source_run_id=run_id)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        logged = flavor.log_model(
            load_by_its_code(export),
            name="model",
            registered_model_name=name,
            pip_requirements=needs,  # given: guessing them takes far longer than the rest
            run_id=run_id,
            model_id=model.model_id,
        )
    finally:
        mlflow.set_tracking_uri(before)
    if alias is not None:
        client.set_registered_model_alias(name, alias, logged.registered_model_version)


def _brief(error: Exception) -> str:
    """The first line of an error, without the pages that a failed request brings."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:297]}..."
