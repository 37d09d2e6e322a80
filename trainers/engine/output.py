"""A run's folder: who works in it, which run is in it, and what of it is ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from multicse.data.errors import DataError
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.checks import describe_shards_of
from multicse.trainers.engine.mlflow_server import NoSuchRun, connect
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run, retire
from multicse.trainers.recipe import Recipe, RecipeError, local_name

log = logging.getLogger(__name__)

RECIPE, SUMMARY, NOTE, JOURNAL, SKIPPED = "recipe.json", "summary.json", "run.json", "journal.jsonl", "skipped.json"
"""Files of a run's folder: what it does, what came of it, its run in MLflow, what is logged, which samples were left out."""
CHECKPOINT, EXPORT, RAY = "checkpoint", "export", ".ray-train"
"""Folders of it: checkpoints, the model, what Ray Train writes down while it trains."""
DRIVER, WRITER = ".lock", ".writer.lock"
"""Locks in a run's output: of its driver, and of the worker that writes there, which may outlive a dead driver a while."""
OUTLIVES = 60.0
"""Seconds that this may take."""


@contextlib.contextmanager
def locked(folder: Path, setting: str = "run.output_dir", name: str = DRIVER, wait: float = 0) -> Iterator[None]:
    """Lock a folder for this process, and make it if it does not exist. The lock ends with the process.

    Args:
        folder: Folder that one process at a time works in.
        setting: Setting that the error names.
        name: File name of the lock, as the driver and the worker that writes are two processes.
        wait: Seconds that another process has to end.

    Raises:
        RecipeError: If another process holds the lock, which is named.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    try:
        lock = FileLock(file).acquire(timeout=wait)
    except Timeout:
        holder = file.read_text() or "another process"
        raise RecipeError(
            f"{setting}={str(folder)!r} is in use by {holder}; wait for it, end it, or give another one"
        ) from None
    with lock:
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


class Output:
    """The folder that a recipe's run is in. Nothing else than what runs wrote is ever removed from it."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.folder, self.store = recipe, Path(recipe.run.output_dir), store_of(recipe)
        self.journal = self.folder / JOURNAL

    def finished(self) -> dict[str, Any] | None:
        """The summary of this recipe's run, when that was carried out already, which is said; none: there is work to do.

        Raises RecipeError for a folder that holds another recipe's run, or one of other samples.
        """
        if self.recipe.run.overwrite:
            return None
        if self.folder.exists() and not self.folder.is_dir():
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is a file; give a folder")
        summary = _read(self.folder / SUMMARY)
        self._refuse_another(summary)
        self._refuse_other_data(summary)
        if summary is not None:
            print(f"finished already: {self.folder} (--run.overwrite trains it again)")
        return summary

    def _refuse_another(self, summary: dict[str, Any] | None) -> None:
        if not (self.folder / RECIPE).exists():
            if found := [name for name in (SUMMARY, CHECKPOINT, EXPORT) if (self.folder / name).exists()]:
                raise RecipeError(
                    f"run.output_dir={str(self.folder)!r} holds {', '.join(found)} and no recipe.json, so that is of "
                    "no run and would be replaced; give another folder, or --run.overwrite"
                )
            return
        try:
            other = Recipe.from_json((self.folder / RECIPE).read_text())
        except ValueError as error:
            if summary is None and not (self.folder / NOTE).exists() and not Store(str(self.folder / CHECKPOINT)).steps():
                return
            raise RecipeError(
                f"{self.folder} holds a run of another version, or its recipe.json is damaged ({error}); give another "
                "run.output_dir, or --run.overwrite to replace it"
            ) from None
        if other.identity() == self.recipe.identity():
            return
        state = "a finished" if summary else "an unfinished" if store_of(other).steps() else None
        if state is not None:
            pairs = self.recipe.differences(other).items()
            different = "; ".join(f"{path}: {there} there, {here} here" for path, (here, there) in pairs)
            raise RecipeError(
                f"{self.folder} holds {state} run of other settings: {different}. "
                "Give another run.output_dir, or --run.overwrite to replace it"
            )

    def _refuse_other_data(self, summary: dict[str, Any] | None) -> None:
        before = (_read(self.folder / NOTE) or {}).get("data")
        if before is None or (summary is None and self.recipe.run.resume == "never"):
            return
        # A finished run does not need its data any more; for another one a later check reports what is missing.
        with contextlib.suppress(OSError, DataError):
            now = _digests(describe_shards_of(self.recipe))
            if other := [name for name, digest in now.items() if digest != before.get(name)]:
                raise RecipeError(
                    f"streams.{other[0]}.shards holds other samples than when the run in {self.folder} began; bring those "
                    "back, give another run.output_dir, or --run.overwrite to train again"
                )

    def start_or_resume(self) -> RunHandle:
        """Prepare the folder for an unfinished run: keep what it resumes from, and remove what an earlier run left.

        Returns:
            The run in MLflow, new or resumed.

        Raises:
            RecipeError: If there is nothing to resume and ``run.resume=must``.
        """
        run, store = self.recipe.run, self.store
        store.tidy()
        for left in self.folder.glob(".export-*"):
            shutil.rmtree(left, ignore_errors=True)
        note = _read(self.folder / NOTE) or {}
        same = note.get("identity") == self.recipe.identity() or (store.remote and bool(store.steps()))
        goes_on = same and not run.overwrite and run.resume != "never"
        if run.resume == "must" and not goes_on:
            raise RecipeError(
                f"run.resume='must': there is no unfinished run of this recipe in {self.folder}; leave it out to begin one"
            )
        if not goes_on:
            if note:  # its process died, and nobody will continue it
                with contextlib.suppress(Exception):  # a server that is away, a run that was deleted
                    client = connect(note["uri"])
                    if client.get_run(note["run_id"]).info.status == "RUNNING":
                        client.set_terminated(note["run_id"], "KILLED")
            self.clear()
            store.clear()
        cut_off = (self.folder / RECIPE).exists() and not note  # while its run was made
        (self.folder / RECIPE).write_text(self.recipe.replace("run.overwrite", False).to_json())
        data = describe_shards_of(self.recipe)
        handle = self._open(note.get("run_id") if goes_on else None, data, look=cut_off or goes_on)
        note = {"run_id": handle.run_id, "uri": handle.uri, "identity": self.recipe.identity(), "data": _digests(data)}
        _write(self.folder / NOTE, note)
        if goes_on and (steps := store.steps()):
            last = f"whose last checkpoint is of step {steps[0]}"  # whole or not, which is seen when it is read
            print(f"goes on in {self.folder}, {last} (--run.resume never begins anew)")
        return handle

    def _open(self, run_id: str | None, data: list[dict[str, Any]], look: bool) -> RunHandle:
        """The run in MLflow: `run_id`, else, where to look is worth it, the one that was begun for this output."""
        recipe, key = self.recipe, key_of(self.recipe)
        uri, experiment = recipe.run.tracking_uri or "", experiment_of(recipe)
        name = f"{recipe.name}-{recipe.identity()[:6]}-s{recipe.run.seed}"
        tags = {"identity": recipe.identity(), "key": key}
        if run_id is None and look:
            run_id = next((found.run_id for found in find_runs(uri, experiment, {"key": key})), None)
        if run_id is not None:
            try:
                return open_run(uri, experiment, name, recipe.flat(), run_id=run_id, journal=self.journal, data=data)
            except NoSuchRun as error:  # not for a server that did not answer: two runs would share the steps
                log.warning("%s; a new run is begun there, from the checkpoint", error)
        return open_run(uri, experiment, name, recipe.flat(), tags, journal=self.journal, data=data)

    def exported(self, names: list[str]) -> None:
        """Write down which files of the export are ours."""
        _write(self.folder / NOTE, (_read(self.folder / NOTE) or {}) | {EXPORT: names})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write down what came of the run; from now on it is finished."""
        _write(self.folder / SUMMARY, summary)

    def clear(self) -> None:
        """Remove what a run left, so that another can begin; its journal stays under another name."""
        note = _read(self.folder / NOTE) or {}
        for name in [SUMMARY, NOTE, SKIPPED, *(f"{EXPORT}/{name}" for name in note.get(EXPORT, ()))]:
            (self.folder / name).unlink(missing_ok=True)
        Store(str(self.folder / CHECKPOINT)).clear()
        for figure in (self.folder / "figures").glob("*.svg"):
            figure.unlink()
            figure.with_suffix(".png").unlink(missing_ok=True)
        retire(self.journal)
        shutil.rmtree(self.folder / RAY, ignore_errors=True)


def experiment_of(recipe: Recipe) -> str:
    """Of MLflow."""
    return recipe.run.experiment or recipe.paper


def key_of(recipe: Recipe) -> str:
    """What a run is called where several are: the same recipe and output, and without a common storage the same machine."""
    output = local_name(recipe.run.output_dir) if recipe.run.storage else f"{socket.gethostname()} {recipe.run.output_dir}"
    both = f"{recipe.identity()} {output}"
    return f"{recipe.name.replace('/', '-')}-{hashlib.sha256(both.encode()).hexdigest()[:12]}"


def store_of(recipe: Recipe, name: str | None = None) -> Store:
    """The checkpoints of a recipe's run: in its output, or in ``run.storage`` below a name, by default its key."""
    local = Path(recipe.run.output_dir) / CHECKPOINT
    if not recipe.run.storage:
        return Store(str(local))
    base, question, options = recipe.run.storage.partition("?")
    return Store(f"{base.rstrip('/')}/{name or key_of(recipe)}{question}{options}", local)


def _digests(data: list[dict[str, Any]]) -> dict[str, str]:
    """Of each stream's samples."""
    return {row["stream"]: row["digest"] for row in data}


def _read(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    return None


def _write(file: Path, content: dict[str, Any]) -> None:
    """Replace a file, which is whole at any time."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps(content, indent=2))
    os.replace(fresh, file)
