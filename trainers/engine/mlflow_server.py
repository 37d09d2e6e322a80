"""MLflow's side of a run: which URIs are taken, what is made when absent, what a run's folder has for it."""

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
from multicse.trainers.jobs import kept, refuse_unwritable

SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "uc")
SECRET = re.compile(r"(passw|pwd|secret|token)\w*=", re.IGNORECASE)
"""What drivers of databases take in a URI's query."""
KIND = "custom_model_development"
"""MLflow's word for experiments that train models: its page shows runs and metrics, not traces and prompts."""
BROUGHT = ("recipe.json", "skipped.json", "trials.json", "best.json", "summary.json", "figures", "export")
"""Files and folders of a run's or a sweep's folder that become artifacts."""
LONGEST_NOTE = 5000
"""Characters that MLflow takes as the description of a version."""
BEST, CHAMPION = "best", "champion"
"""Folder of a sweep's best run in the sweep's folder, and the alias of its version: ``models:/NAME@champion``."""


class TrackingError(ValueError):
    """A tracking URI or run that cannot be used; the text says what to change."""


class NoSuchRun(TrackingError):
    """A run that the server does not have, or has deleted."""


def resolve_uri(uri: str | None = None) -> str:
    """The tracking URI with absolute paths (see `open_run`). Raises TrackingError for one that MLflow does not take."""
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    scheme = uri.split(":", 1)[0].split("+")[0] if ":" in uri else ""
    parts = urlsplit(uri)
    if parts.password or SECRET.search(unquote(parts.query)):
        raise TrackingError(
            f"run.tracking_uri={scheme}://… holds a password, which would be in recipe.json, the journal and the run. "
            "For a server set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, for a database PGPASSWORD or PGPASSFILE"
        )
    if scheme not in SCHEMES:
        raise TrackingError(
            f"run.tracking_uri={uri!r} is no database or server (MLflow no longer keeps runs in plain folders). "
            "Allowed: sqlite:///FILE, http://HOST:PORT, https://…, postgresql://…, mysql://…"
        )
    if scheme != "sqlite":
        return uri
    file = uri.partition(":///")[2]
    if not file or file.startswith(":memory:"):
        raise TrackingError(f"run.tracking_uri={uri!r} names no file; write sqlite:///FILE, for example sqlite:///mlflow.db")
    path = kept(Path(file).expanduser()).resolve()
    refuse_unwritable(f"run.tracking_uri={uri!r}", path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}"


def import_mlflow() -> Any:
    """MLflow, which takes a second or two to import, with settings that fit a loop that tries again by itself."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # its own seven block for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow

    return mlflow


@contextlib.contextmanager
def uri_errors(uri: str) -> Iterator[None]:
    """What is raised inside becomes a TrackingError that names the URI."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(
            f"run.tracking_uri={uri!r} cannot be used: {brief(error)}. Start the server (`mlflow server --port 5000`), "
            "give the URI of one that runs, or leave it out: then runs are kept in mlflow.db in the current folder."
        ) from error


def connect(uri: str) -> Any:
    """An MLflow client of this URI; the first one of a database makes its tables."""
    return import_mlflow().MlflowClient(uri)


def open_experiment(uri: str | None, experiment: str) -> tuple[str, Any, str]:
    """Return the resolved URI, a client, and the experiment's id. Database and experiment are made when absent.

    That takes seconds. Raises TrackingError as `tracking.open_run`.
    """
    uri = resolve_uri(uri)
    file = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
    # One driver at a time makes the tables of a file: several at once fail. A server makes its own.
    lock: contextlib.AbstractContextManager[object] = (
        FileLock(f"{file}.lock", timeout=120) if file else contextlib.nullcontext()
    )
    with uri_errors(uri), lock:
        client = connect(uri)
        from mlflow import MlflowException

        if client.get_experiment_by_name(experiment) is None:
            folder = re.sub(r"[^\w\-.]", "_", experiment)
            place = (file.parent / "mlartifacts" / folder).as_uri() if file else None  # a server chooses itself
            try:
                client.create_experiment(experiment, artifact_location=place, tags={"mlflow.experimentKind": KIND})
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # by another driver that was faster
                    raise
        found = client.get_experiment_by_name(experiment)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"run.experiment={experiment!r} was deleted at {uri}; restore it (`mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`) or choose another name"
        )
    return uri, client, str(found.experiment_id)


def environment_tags() -> dict[str, str]:
    """What a run can be repeated with: user, script and commit as MLflow finds them, versions, machine."""
    import_mlflow()
    from mlflow.tracking.context.registry import resolve_tags

    from multicse.trainers.engine.card import library_versions

    tags = {f"version.{name}": version for name, version in library_versions().items()}
    tags |= {"cpus": str(os.cpu_count()), "gpu": gpu_names() or "none"}
    return dict(resolve_tags(tags))


def gpu_names() -> str:
    """Return the names of this machine's GPUs; torch would open a CUDA context to read them."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return ", ".join(dict.fromkeys(found.split("\n"))).strip(", ")


def source_tags() -> dict[str, str]:
    """MLflow's Source: the script that this process runs, and the git commit that it is of, where there is one."""
    return {name: value for name, value in environment_tags().items() if name.startswith("mlflow.source.")}


def data_set(row: Mapping[str, Any]) -> Any:
    """A row of `describe_shards_of` as a training data set of MLflow, with its digest, licence and size."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    place, licence = row["place"], row["licence"] or "unknown"
    kind = urlsplit(place).scheme or "local"
    profile = {"num_rows": row["samples"], "licence": licence, "source": row["source"], "languages": row["languages"]}
    tags = {"mlflow.data.context": "training", "stream": row["stream"], "licence": licence}
    return DatasetInput(
        Dataset(row["name"], row["digest"], kind, json.dumps({"uri": place}), profile=json.dumps(profile)),
        [InputTag(name, value) for name, value in tags.items()],
    )


def deliver(folder: Path, uri: str, run_id: str) -> None:
    """Bring what a finished run's folder has to MLflow: artifacts, note and registered version. It may be repeated.

    Of a sweep's folder those of its best run as well. The note is the card's table of numbers. Raises what MLflow raises.
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
        export, recipe = place / "export", place / "recipe.json"
        if (export / "README.md").exists() and recipe.exists():
            numbers = (export / "README.md").read_text().partition("## Numbers\n")[2].partition("\n## ")[0].strip()
            client.set_tag(run_id, "mlflow.note.content", numbers[:LONGEST_NOTE])
            if name := json.loads(recipe.read_text())["run"]["register_as"]:
                register(uri, run_id, export, name, alias, numbers[:LONGEST_NOTE])


def register(uri: str, run_id: str, export: Path, name: str, alias: str | None = None, note: str = "") -> None:
    """Log an exported sentence-transformers folder as a model of a run and as a version of `name`.

    ``mlflow.sentence_transformers.load_model("models:/NAME/1")`` loads it, and ``"models:/NAME@ALIAS"`` the version that the
    alias was given to last. An export that this run registered already keeps its version. Raises what MLflow raises.

    Args:
        uri: Tracking URI.
        run_id: Run of the export.
        export: Folder.
        name: Name of the registered model, which is made when absent.
        alias: Alias that this version gets.
        note: Markdown on MLflow's page of the version.
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
        if int(version) > int(given):  # sent again after a newer version got it, this one stays without
            client.set_registered_model_alias(name, alias, version)


def _new_version(client: Any, uri: str, run_id: str, export: Path, name: str, digest: str) -> Any:
    mlflow = import_mlflow()
    from mlflow import sentence_transformers as flavor

    from multicse.models.hub_folders import load_saved
    from multicse.trainers.engine.card import library_versions

    versions = library_versions()
    # Made here because log_model would put it into the default experiment, in a folder that depends on where we are.
    model = client.create_logged_model(client.get_run(run_id).info.experiment_id, name="model", source_run_id=run_id)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        return flavor.log_model(
            load_saved(export),
            name="model",
            registered_model_name=name,
            # Given: guessing them takes far longer than the rest.
            pip_requirements=[f"{part}=={versions[part]}" for part in ("torch", "transformers", "sentence-transformers")],
            tags={"export": digest},  # of the version as well
            run_id=run_id,
            model_id=model.model_id,
        ).registered_model_version
    finally:
        mlflow.set_tracking_uri(before)


def metric_name(name: str) -> str:
    """`name` as MLflow allows it: letters, digits and ``_-.:/`` and space, at most 250; anything else becomes ``_``."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def brief(error: Exception) -> str:
    """The first line of an error, without the pages that a failed request brings."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 300 else f"{text[:297]}..."
