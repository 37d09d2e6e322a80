"""MLflow server: tracking URIs, experiments, and the artifacts and registered model of a run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from multicse.data.shards import size_and_sha256
from multicse.trainers.engine import record
from multicse.trainers.jobs import kept, refuse_unwritable

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "uc")
SECRET = re.compile(r"(passw|pwd|secret|token)\w*=", re.IGNORECASE)
"""Secrets in the query of a database URI."""
KIND = "custom_model_development"
"""MLflow's name for experiments that train models: its page shows runs and metrics, not traces and prompts."""
BROUGHT = ("recipe.json", "skipped.json", "trials.json", "best.json", "summary.json", "figures", "export")
"""Files and folders in the folder of a run or sweep that become artifacts."""
LONGEST_NOTE = 5000
"""Maximum length of the description of a version in MLflow."""
BEST, CHAMPION = "best", "champion"
"""Folder of the best run in a sweep's folder, and the alias of its registered version: ``models:/NAME@champion``."""


class TrackingError(ValueError):
    """A tracking URI or run cannot be used; the message contains the remedy."""


class NoSuchRun(TrackingError):
    """A run does not exist on the server or was deleted."""


def resolve_uri(uri: str | None = None) -> str:
    """Return the tracking URI with absolute paths. Raises TrackingError if MLflow does not support it."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    scheme = uri.split(":", 1)[0].split("+")[0] if ":" in uri or uri in SCHEMES else ""
    parts = urlsplit(uri)
    if parts.password or SECRET.search(unquote(parts.query)):
        raise TrackingError(
            f"run.tracking_uri={scheme}://… contains a password, which would end up in recipe.json, journal and run. "
            "For a server set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, for a database PGPASSWORD or PGPASSFILE"
        )
    if scheme not in SCHEMES:
        raise TrackingError(
            f"run.tracking_uri={uri!r} is not a database or server (MLflow no longer supports plain folders). "
            "Allowed: sqlite:///FILE, http://HOST:PORT, https://…, postgresql://…, mysql://…"
        )
    if scheme != "sqlite":
        return uri
    file = uri.partition(":///")[2]
    if not file or file.startswith(":memory:"):
        raise TrackingError(
            f"run.tracking_uri={uri!r} does not name a file; use sqlite:///FILE, for example sqlite:///mlflow.db"
        )
    path = kept(Path(file).expanduser()).resolve()
    if "?" in str(path.parent):  # the options of a URI start there, so that SQLAlchemy would open another file
        raise TrackingError(f"run.tracking_uri: the folder {path.parent} contains a question mark; choose another")
    refuse_unwritable(f"run.tracking_uri={uri!r}", path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def import_mlflow() -> Any:
    """Import MLflow (1 to 2 s) with settings for callers that retry by themselves."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the default of 7 blocks for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow

    return mlflow


@contextlib.contextmanager
def uri_errors(uri: str) -> Iterator[None]:
    """Convert errors of the body to a TrackingError that names the URI."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(
            f"run.tracking_uri={uri!r} cannot be used: {brief(error)}. Start the server (`mlflow server --port 5000`), "
            "set the URI of a running server, or remove it to store runs in mlflow.db in the current folder."
        ) from error


def connect(uri: str) -> Any:
    """Return an MLflow client. The first client of a database creates its tables."""
    return import_mlflow().MlflowClient(uri)


def open_experiment(uri: str | None, experiment: str) -> tuple[str, Any, str]:
    """Open an experiment; the database and the experiment are created if necessary, which takes seconds.

    Returns:
        Resolved URI, client, ID of the experiment.

    Raises:
        TrackingError: If MLflow does not support or cannot reach the URI, or the experiment was deleted.
    """
    uri = resolve_uri(uri)
    file = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
    # Only one driver may create the tables of a SQLite file; concurrent attempts fail. A server creates its own.
    lock: contextlib.AbstractContextManager[object] = (
        FileLock(f"{file}.lock", timeout=120) if file else contextlib.nullcontext()
    )
    with uri_errors(uri), lock:
        client = connect(uri)
        from mlflow import MlflowException

        if client.get_experiment_by_name(experiment) is None:
            folder = re.sub(r"[^\w\-.]", "_", experiment)
            place = (file.parent / "mlartifacts" / folder).as_uri() if file else None  # a server has its own
            try:
                client.create_experiment(experiment, artifact_location=place, tags={"mlflow.experimentKind": KIND})
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another driver
                    raise
        found = client.get_experiment_by_name(experiment)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"run.experiment={experiment!r} was deleted at {uri}; restore it (`mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`) or choose another name"
        )
    return uri, client, str(found.experiment_id)


def environment_tags() -> dict[str, str]:
    """Return tags for reproducing a run: user, script and commit as found by MLflow, library versions, CPUs and GPU."""
    import_mlflow()
    from mlflow.tracking.context.registry import resolve_tags

    from multicse.trainers.engine.card import library_versions

    tags = {f"version.{name}": version for name, version in library_versions().items()}
    tags |= {"cpus": str(os.cpu_count()), "gpu": ", ".join(dict.fromkeys(gpu_names())) or "none"}
    return dict(resolve_tags(tags))


def gpu_names() -> list[str]:
    """Return the names of this machine's GPUs. torch would create a CUDA context for this."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def source_tags() -> dict[str, str]:
    """Return MLflow's source tags: the script of this process, and its git commit if it is in a repository."""
    return {name: value for name, value in environment_tags().items() if name.startswith("mlflow.source.")}


def data_set(row: Mapping[str, Any]) -> Any:
    """Return a row of `describe_shards_of` as a training data set of MLflow, with its digest, licence and size."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    place, licence = row["place"], row["licence"] or "unknown"
    kind = urlsplit(place).scheme or "local"
    profile = {"num_rows": row["samples"], "licence": licence, "source": row["source"], "languages": row["languages"]}
    tags = {"mlflow.data.context": "training", "stream": row["stream"], "licence": licence}
    return DatasetInput(
        Dataset(row["name"], row["digest"], kind, json.dumps({"uri": place}), profile=json.dumps(profile)),
        [InputTag(name, value) for name, value in tags.items()],
    )


def upload_run(folder: Path, uri: str, run_id: str) -> None:
    """Upload a finished run to MLflow: artifacts, description (the card's table of scores) and registered version.

    The call can be repeated. Errors of MLflow are passed on.

    Args:
        folder: Folder of a run, or of a sweep, whose best run is uploaded as well.
        uri: Tracking URI.
        run_id: MLflow run.
    """
    client = connect(uri)
    for place, alias in ((folder, None), (folder / BEST, CHAMPION)):
        if alias and not (folder / "trials.json").exists():
            continue
        for part in (place / name for name in BROUGHT):
            if part.is_dir():
                client.log_artifacts(run_id, str(part), part.name)
            elif part.exists():
                client.log_artifact(run_id, str(part))
        export, recipe = place / "export", record.read(place).get("recipe")
        if (export / "README.md").exists() and recipe:
            numbers = (export / "README.md").read_text().partition("## Numbers\n")[2].partition("\n## ")[0].strip()
            client.set_tag(run_id, "mlflow.note.content", numbers[:LONGEST_NOTE])
            if name := recipe["run"]["register_as"]:
                register(uri, run_id, export, name, alias, numbers[:LONGEST_NOTE])


def register(uri: str, run_id: str, export: Path, name: str, alias: str | None = None, note: str = "") -> None:
    """Log an exported sentence-transformers folder as a model of a run and register it as a version of `name`.

    If the run has already registered this export, its version is kept. A newer version keeps the alias.

    Args:
        uri: Tracking URI.
        run_id: MLflow run of the export.
        export: Folder.
        name: Name of the registered model, which is created if it does not exist.
        alias: Alias for this version.
        note: Description of the version, in Markdown.
    """
    client, files = connect(uri), (file for file in sorted(export.rglob("*")) if file.is_file())
    digest = hashlib.sha256("".join(size_and_sha256(str(file))[1] for file in files).encode()).hexdigest()
    known = client.search_model_versions(f"run_id = '{run_id}'")
    version = next((one.version for one in known if one.name == name and one.tags.get("export") == digest), None)
    if version is None:
        version = _new_version(client, uri, run_id, export, name, digest)
    client.update_model_version(name, version, description=note)
    if alias is not None:
        given = client.get_registered_model(name).aliases.get(alias, 0)
        if int(version) > int(given):
            client.set_registered_model_alias(name, alias, version)


def _new_version(client: Any, uri: str, run_id: str, export: Path, name: str, digest: str) -> Any:
    mlflow = import_mlflow()
    from mlflow import sentence_transformers as flavor

    from multicse.models.hub_folders import load_saved
    from multicse.trainers.engine.card import library_versions

    versions = library_versions()
    # Created here because log_model would use the default experiment and a folder relative to the current one.
    model = client.create_logged_model(client.get_run(run_id).info.experiment_id, name="model", source_run_id=run_id)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        return flavor.log_model(
            load_saved(export),
            name="model",
            registered_model_name=name,
            # Listed here because MLflow's inference takes far longer than the rest.
            pip_requirements=[f"{part}=={versions[part]}" for part in ("torch", "transformers", "sentence-transformers")],
            tags={"export": digest},  # also on the version
            run_id=run_id,
            model_id=model.model_id,
        ).registered_model_version
    finally:
        mlflow.set_tracking_uri(before)


def metric_name(name: str) -> str:
    """Return a valid MLflow name: up to 250 letters, digits, ``_-.:/`` and spaces; other characters become ``_``."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def brief(error: Exception) -> str:
    """Return the first line of an error, at most 300 characters; failed requests contain whole pages."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:297]}..."
