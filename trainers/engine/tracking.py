"""MLflow's runs, which the driver owns, and how a journal reaches them."""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multicse.data.errors import public
from multicse.trainers.engine.journal import Journal, Sent, news, sync_command
from multicse.trainers.engine.tracking_server import (
    TrackingError,
    brief,
    connect,
    data_set,
    environment_tags,
    import_mlflow,
    metric_name,
    named,
    open_database,
    resolve_uri,
)

log = logging.getLogger(__name__)

BATCH = 1000
"""Metrics that are sent before it is remembered that they were; as many as MLflow takes in a request."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the server is away."""
MOST_RUNS = 50_000
"""Runs that MLflow finds in one search."""


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

    uri: empty or none: MLFLOW_TRACKING_URI, else ``sqlite:///mlflow.db`` in the current folder. The artifacts of a
    SQLite database are beside it, in ``mlartifacts``. params: MLflow cuts one at 6,000 characters; passwords and signatures
    of URLs are left out of them and of tags. Tags: what MLflow knows of its own accord (user, script, git commit), versions
    of the libraries, CPUs and GPU. data: what the run reads, as `describe_shards_of` says it: its inputs in MLflow.

    Raises TrackingError for a URI that MLflow does not take or cannot reach, and for a run that is not there.
    """
    uri = resolve_uri(uri)
    with named(uri):
        from mlflow.entities import Param

        client, experiment_id = open_database(uri, experiment)
        if run_id is None:
            run = client.create_run(experiment_id, run_name=run_name, tags={**environment_tags(), **public(tags or {})})
        else:
            run = _go_on(client, uri, run_id)
        # Those that a driver did not come to; others may be, as the number of workers, of the run's first beginning.
        kept = [
            Param(name, value) for key, value in public(params).items() if (name := metric_name(key)) not in run.data.params
        ]
        client.log_batch(run.info.run_id, params=kept)
        if data:  # MLflow keeps the same data set of a run once
            client.log_inputs(run.info.run_id, [data_set(row) for row in data])
    return RunHandle(run.info.run_id, uri, run.info.experiment_id, run.info.artifact_uri, journal)


def _go_on(client: Any, uri: str, run_id: str) -> Any:
    try:
        client.update_run(run_id, status="RUNNING")
        return client.get_run(run_id)
    except Exception as error:
        if "not found" in str(error):
            raise TrackingError(f"there is no run {run_id!r} at run.tracking_uri={uri!r} to continue") from error
        raise


@dataclass(frozen=True)
class FoundRun:
    """A run that `find_runs` found."""

    run_id: str
    status: str
    """RUNNING, FINISHED, FAILED or KILLED."""
    tags: Mapping[str, str]


def find_runs(uri: str, experiment: str, tags: Mapping[str, str]) -> list[FoundRun]:
    """Active runs of an experiment that have all these tags, the newest first. Raises what MLflow raises."""
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

    journal: that of the run, once `drain` was called or `open_run` was told. From then on nothing here fails because of
    the server: what it does not take is written to the journal, and sent with it (`sync_command`).
    """

    run_id: str
    uri: str
    experiment_id: str
    artifact_uri: str
    journal: Path | None = None
    figures: list[str] = field(default_factory=list)
    """Artifacts that `log_figure` made, in their order."""

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
        from multicse.evaluation.figures.basic import save

        with tempfile.TemporaryDirectory() as place:
            kept = Path(place) if self.journal is None else self.journal.parent.resolve() / "figures"
            files = save(figure, kept, re.sub(r"[^\w\-.]", "_", name))
            self.figures.append(f"figures/{files[0].name}")
            for file in files:
                self.log_artifact(file, "figures")

    def describe(self, text: str) -> None:
        """What MLflow's page says of the run; Markdown."""
        self._do({"do": "describe", "text": text})

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Metrics that belong to the run as a whole, sent at once. Raises what MLflow raises."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(metric_name(key), float(value), now, step) for key, value in metrics.items()]
        connect(self.uri).log_batch(self.run_id, metrics=values)

    def register(self, export: Path, name: str, alias: str | None = None, text: str = "") -> None:
        """Log an exported sentence-transformers folder as a model of the run, and as a new version of `name`.

        ``mlflow.sentence_transformers.load_model("models:/NAME/1")`` loads it, and ``"models:/NAME@ALIAS"`` the version that
        the alias was given to last. text: what MLflow's page says of the version; Markdown.
        """
        self._do({"do": "register", "path": str(export.resolve()), "name": name, "alias": alias, "text": text})

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
    client = connect(uri)
    if line["do"] == "status":
        client.set_terminated(run_id, line["status"], line["time"])
    elif line["do"] == "artifacts":
        upload = client.log_artifacts if Path(line["path"]).is_dir() else client.log_artifact
        upload(run_id, line["path"], line["folder"] or None)
    elif line["do"] == "describe":
        client.set_tag(run_id, "mlflow.note.content", line["text"])
    elif line["do"] == "register":
        _register(uri, run_id, Path(line["path"]), line["name"], line["alias"], line.get("text", ""))


def _register(uri: str, run_id: str, export: Path, name: str, alias: str | None, text: str) -> None:
    mlflow = import_mlflow()
    from mlflow import sentence_transformers as flavor

    from multicse.models.carried_code import load_by_its_code
    from multicse.trainers.engine.card import library_versions

    versions = library_versions()
    needs = [f"{package}=={versions[package]}" for package in ("torch", "transformers", "sentence-transformers")]
    client = connect(uri)
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
    client.update_model_version(name, logged.registered_model_version, description=text)
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
        client = connect(uri)
        if sent is None:
            keys = client.get_run(run_id).data.metrics
            sent = Sent(0, {key: max(metric.step for metric in client.get_metric_history(run_id, key)) for key in keys})
        for end, line in journal.lines(sent.offset):
            step, fresh = news(line, sent.last)
            batch += [Metric(key, value, line["time"], step) for key, value in fresh.items()]
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
