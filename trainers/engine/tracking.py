"""MLflow's runs, which the driver owns, and how a journal reaches them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock

from data.redact import public
from trainers.engine.journal import Journal, Sent, sync_command
from trainers.engine.places import refuse_unwritable

log = logging.getLogger(__name__)

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "uc")
BATCH = 1000
"""Metrics that are sent before it is remembered that they were; as many as MLflow takes in a request."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the server is away."""
KIND = "custom_model_development"
"""MLflow's word for experiments that train models: its page shows runs and metrics, not traces and prompts."""
DATABASE_LOCK = 7161125
"""Key of PostgreSQL's advisory lock under which a driver makes MLflow's tables; any number that all drivers share."""
MOST_RUNS = 50_000
"""Runs that MLflow finds in one search."""


class TrackingError(ValueError):
    """A tracking URI or run that cannot be used; the text says what to change."""


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
    SQLite database are beside it, in ``mlartifacts``. params: MLflow cuts one at 6,000 characters; passwords and signatures
    of URLs are left out of them and of tags. Tags: what MLflow knows of its own accord (user, script, git commit), versions
    of the libraries, CPUs and GPU.

    Raises TrackingError for a URI that MLflow does not take or cannot reach, and for a run that is not there.
    """
    uri = resolve_uri(uri)
    try:
        client, experiment_id = _open(uri, experiment)
        if run_id is None:
            from mlflow.entities import Param

            run = client.create_run(experiment_id, run_name=run_name, tags={**environment_tags(), **public(tags or {})})
            kept = [Param(metric_name(key), value) for key, value in public(params).items()]
            client.log_batch(run.info.run_id, params=kept)
        else:
            client.update_run(run_id, status="RUNNING")
            run = client.get_run(run_id)
    except TrackingError:
        raise
    except Exception as error:
        if run_id is not None and "not found" in str(error):
            raise TrackingError(f"there is no run {run_id!r} at run.tracking_uri={uri!r} to continue") from error
        raise _unusable(uri, error) from error
    return RunHandle(run.info.run_id, uri, run.info.experiment_id, run.info.artifact_uri, journal)


def open_experiment(uri: str | None, experiment: str) -> None:
    """Make the database and the experiment where they are absent, which takes seconds, so that `open_run` does not.

    Raises TrackingError as `open_run`.
    """
    uri = resolve_uri(uri)
    try:
        _open(uri, experiment)
    except TrackingError:
        raise
    except Exception as error:
        raise _unusable(uri, error) from error


def _open(uri: str, experiment: str) -> tuple[Any, str]:
    with _database_lock(uri):
        client = _client(uri)  # makes the tables
        return client, _experiment(client, uri, experiment)


def _unusable(uri: str, error: Exception) -> TrackingError:
    return TrackingError(
        f"run.tracking_uri={uri!r} cannot be used: {brief(error)}. Start the server (`mlflow server --port 5000`), "
        "give the URI of one that runs, or leave it out: then runs are kept in mlflow.db in the current folder."
    )


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
    if (found := client.get_experiment_by_name(experiment)) is None:
        return []
    conditions = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs([found.experiment_id], conditions, max_results=MOST_RUNS)
    return [FoundRun(run.info.run_id, run.info.status, dict(run.data.tags)) for run in runs]


def rename(uri: str, run_id: str, name: str, tags: Mapping[str, str]) -> None:
    """Give a run another name and more tags. Raises what MLflow raises."""
    from mlflow.entities import RunTag

    client = _client(uri)
    client.update_run(run_id, name=name)
    client.log_batch(run_id, tags=[RunTag(key, value) for key, value in public(tags).items()])


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
    if scheme != "sqlite":
        return uri
    file = uri.partition(":///")[2]
    if not file or file.startswith(":memory:"):
        raise TrackingError(f"run.tracking_uri={uri!r} names no file; write sqlite:///FILE, for example sqlite:///mlflow.db")
    path = Path(file).expanduser().resolve()
    refuse_unwritable(f"run.tracking_uri={uri!r}", path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def environment_tags() -> dict[str, str]:
    """What a run can be repeated with: user, script and commit as MLflow finds them, versions, machine."""
    import_mlflow()
    import torch
    from mlflow.tracking.context.registry import resolve_tags

    from trainers.engine.card import library_versions

    tags = {f"version.{name}": version for name, version in library_versions().items()}
    tags |= {"cpus": str(os.cpu_count()), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none"}
    return dict(resolve_tags(tags))


def import_mlflow() -> Any:
    """MLflow, which takes a second or two to import, with settings that fit a loop that tries again by itself."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own seven block for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow

    return mlflow


def _client(uri: str) -> Any:
    return import_mlflow().MlflowClient(uri)


@contextlib.contextmanager
def _database_lock(uri: str) -> Iterator[None]:
    """One driver at a time makes the tables of a database: several at once fail. A server makes its own."""
    if uri.startswith("postgresql"):
        from sqlalchemy import NullPool, create_engine, text

        with create_engine(uri, poolclass=NullPool).connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": DATABASE_LOCK})
            yield  # the lock ends with the connection
    elif uri.startswith("sqlite:///"):
        with FileLock(f"{uri.removeprefix('sqlite:///')}.lock", timeout=120):
            yield
    else:
        yield


def _experiment(client: Any, uri: str, name: str) -> str:
    """Id of the experiment, made when absent."""
    from mlflow import MlflowException

    if client.get_experiment_by_name(name) is None:
        place = None  # a server's own choice
        if uri.startswith("sqlite:///"):
            folder = re.sub(r"[^\w\-.]", "_", name)
            place = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / folder).as_uri()
        try:
            client.create_experiment(name, artifact_location=place, tags={"mlflow.experimentKind": KIND})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another driver that was faster
                raise
    found = client.get_experiment_by_name(name)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"run.experiment={name!r} was deleted at {uri}; restore it (`mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`) or choose another name"
        )
    return str(found.experiment_id)


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

    def drain(self, journal: Path | str, timeout: float = 60.0) -> bool:
        """Send what the workers' journal still holds. See the function `drain`."""
        self.journal = Path(journal)
        return drain(journal, self.uri, self.run_id, timeout)

    def log_artifact(self, path: Path | str, folder: str = "") -> None:
        """Upload a file, or what is in a folder, into `folder` of the run's artifacts. Raises FileNotFoundError."""
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"artifact {path}: there is no such file or folder")
        self._do({"do": "artifacts", "path": str(path.resolve()), "folder": folder})

    def log_figure(self, name: str, figure: Any) -> None:
        """A matplotlib figure as ``figures/NAME.png`` and ``.svg``, kept beside the journal too."""
        from evaluation.figures.basic import save

        with tempfile.TemporaryDirectory() as place:
            kept = Path(place) if self.journal is None else self.journal.parent.resolve() / "figures"
            for file in save(figure, kept, re.sub(r"[^\w\-.]", "_", name)):
                self.log_artifact(file, "figures")

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Metrics that belong to the run as a whole, sent at once. Raises what MLflow raises."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(metric_name(key), float(value), now, step) for key, value in metrics.items()]
        _client(self.uri).log_batch(self.run_id, metrics=values)

    def register(self, export: Path, name: str, alias: str | None = None) -> None:
        """Log an exported sentence-transformers folder as a model of the run, and as a new version of `name`.

        ``mlflow.sentence_transformers.load_model("models:/NAME/1")`` loads it, and ``"models:/NAME@ALIAS"`` the version that
        the alias was given to last.
        """
        self._do({"do": "register", "path": str(export.resolve()), "name": name, "alias": alias})

    def finish(self, status: str = "FINISHED") -> None:
        """End the run: FINISHED, FAILED or KILLED, after what its journal still holds. Raises nothing."""
        if self.journal is not None and Journal(self.journal).waiting():
            self.drain(self.journal, timeout=3 if status == "KILLED" else 10)
        try:
            self._do({"do": "status", "status": status, "time": int(time.time() * 1000)})
        except Exception as error:
            log.error("run %s could not be marked %s at %s: %s", self.run_id, status, self.uri, brief(error))

    def _do(self, line: dict[str, Any]) -> None:
        try:
            _perform(self.uri, self.run_id, line)
        except Exception as error:
            if self.journal is None:
                raise
            # The result of days of training must not depend on the last request.
            book = Journal(self.journal)
            book.create(self.run_id, self.uri)
            book.append(line)
            text = "%s (%s) did not reach %s: %s. It waits in %s; send it later: %s"
            what = line.get("path") or line.get("status")
            log.error(text, line["do"], what, self.uri, brief(error), self.journal, sync_command(self.journal))


def _perform(uri: str, run_id: str, line: Mapping[str, Any]) -> None:
    """Do what a ``do`` line says. Raises what MLflow raises."""
    client = _client(uri)
    if line["do"] == "status":
        client.set_terminated(run_id, line["status"], line["time"])
    elif line["do"] == "artifacts":
        upload = client.log_artifacts if Path(line["path"]).is_dir() else client.log_artifact
        upload(run_id, line["path"], line["folder"] or None)
    elif line["do"] == "register":
        _register(uri, run_id, Path(line["path"]), line["name"], line["alias"])


def _register(uri: str, run_id: str, export: Path, name: str, alias: str | None) -> None:
    mlflow = import_mlflow()
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


def send(journal: Journal, uri: str, run_id: str, lock_timeout: float = -1) -> int:
    """Send all that waits in a journal, in order; returns how many metrics that were.

    A metric is sent once per step: steps up to the last one that the server has are left out. When a process dies between
    a request and its record, the request is repeated with the same timestamps, and MLflow's database keeps equal metrics
    once. Raises what MLflow raises.
    """
    from mlflow.entities import Metric

    count, batch = 0, list[Metric]()
    with journal.lock(lock_timeout):
        sent = journal.sent()
        if sent is not None and next(journal.lines(sent.offset), None) is None:
            return 0
        client = _client(uri)
        if sent is None:
            keys = client.get_run(run_id).data.metrics
            sent = Sent(0, {key: max(metric.step for metric in client.get_metric_history(run_id, key)) for key in keys})
        for end, line in journal.lines(sent.offset):
            step = line.get("step", line.get("second", 0))
            for key, value in line.get("metrics", {}).items():
                if step > sent.last.get(key, -1):
                    sent.last[key] = step
                    batch.append(Metric(key, value, line["time"], step))
            sent.offset = end
            if "do" in line or len(batch) >= BATCH:
                client.log_batch(run_id, metrics=batch)
                if "do" in line:
                    _perform(uri, run_id, line)
                journal.remember(sent)
                count, batch = count + len(batch), []
        client.log_batch(run_id, metrics=batch)
        journal.remember(sent)
    return count + len(batch)


def drain(journal: Path | str, uri: str | None = None, run_id: str | None = None, timeout: float = 60.0) -> bool:
    """Send what a journal still holds, trying for `timeout` seconds; True when all is with the server.

    uri, run_id: without them, those in the journal. Raises TrackingError for a file that is no journal, and nothing else.
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
                log.error(text, uri, brief(error), book.waiting(), book.path, sync_command(book.path))
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def metric_name(name: str) -> str:
    """`name` as MLflow allows it: letters, digits and ``_-.:/`` and space, at most 250; anything else becomes ``_``."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def brief(error: Exception) -> str:
    """The first line of an error, without the pages that a failed request brings."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:297]}..."
