"""Output folder of a run: locks, the run that it contains, and the files that may be replaced."""

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

from multicse.data.errors import command, redacted
from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.checks import describe_shards_of
from multicse.trainers.engine.inputs import difference, inputs
from multicse.trainers.engine.journal import retire
from multicse.trainers.engine.mlflow_server import NoSuchRun, connect
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run
from multicse.trainers.recipe import Recipe, RecipeError, local_name

log = logging.getLogger(__name__)

RECIPE, SUMMARY, NOTE, JOURNAL, SKIPPED = "recipe.json", "summary.json", "run.json", "journal.jsonl", "skipped.json"
"""Files of a run's folder: recipe, result, MLflow run, metrics, skipped samples."""
CHECKPOINT, EXPORT, RAY = "checkpoint", "export", ".ray-train"
"""Folders in a run's folder: checkpoints, exported model, state of Ray Train during training."""
INPUTS = "inputs"
"""Key of the digests of a run's inputs in its note, see `inputs`."""
DRIVER, WRITER = ".lock", ".writer.lock"
"""Locks in a run's output: of the driver, and of the worker that writes there."""
OUTLIVES = 60.0
"""Seconds that this worker may outlive a dead driver."""


@contextlib.contextmanager
def locked(folder: Path, setting: str = "run.output_dir", name: str = DRIVER, wait: float = 0) -> Iterator[None]:
    """Lock a folder for this process, and create it if it does not exist. The lock ends with the process.

    Args:
        folder: Folder in which only one process may work at a time.
        setting: Setting to name in the error.
        name: File name of the lock.
        wait: Seconds to wait for another process to end.

    Raises:
        RecipeError: If another process, which the error names, holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    try:
        lock = FileLock(file).acquire(timeout=wait)
    except Timeout:
        holder = file.read_text() or "another process"
        raise RecipeError(
            f"{setting}={str(folder)!r} is in use by {holder}; wait for it, end it, or set another folder"
        ) from None
    with lock:
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


class Output:
    """Output folder of a recipe's run. Only files that runs wrote are ever removed from it.

    Args:
        recipe: Recipe with absolute paths.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.folder, self.store = recipe, Path(recipe.run.output_dir), store_of(recipe)
        self.journal = self.folder / JOURNAL

    def finished(self) -> dict[str, Any] | None:
        """Return the summary if this recipe's run is finished, which is printed, otherwise None.

        Raises:
            RecipeError: If the folder contains a run of another recipe or with other inputs.
        """
        if self.recipe.run.overwrite:
            return None
        if self.folder.exists() and not self.folder.is_dir():
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is a file; set a folder")
        summary = _read(self.folder / SUMMARY)
        self._refuse_another(summary)
        self._refuse_other_inputs(summary)
        if summary is not None:
            for name in ("export", "checkpoint"):  # the folder may have been moved
                last = Path(summary.get(name, ""))
                here = self.folder / last.name if name == EXPORT else self.folder / CHECKPOINT / last.name
                summary |= {name: str(here)} if last.name and here.is_dir() else {}
            print(f"This run is already finished: {self.folder} (--run.overwrite trains again)")
        return summary

    def _refuse_another(self, summary: dict[str, Any] | None) -> None:
        if not (self.folder / RECIPE).exists():
            if found := [name for name in (SUMMARY, CHECKPOINT, EXPORT) if (self.folder / name).exists()]:
                raise RecipeError(
                    f"run.output_dir={str(self.folder)!r} contains {', '.join(found)} but no recipe.json, so it "
                    "was not created by a run. Set another folder, or pass --run.overwrite to replace it"
                )
            return
        try:
            other = Recipe.from_json((self.folder / RECIPE).read_text())
        except ValueError as error:
            if summary is None and not (self.folder / NOTE).exists() and not Store(str(self.folder / CHECKPOINT)).steps():
                return
            raise RecipeError(
                f"{self.folder} contains a run of another version, or its recipe.json is damaged ({error}). Set another "
                "run.output_dir, or pass --run.overwrite to replace it"
            ) from None
        if other.identity() == self.recipe.identity():
            return
        state = "a finished" if summary else "an unfinished" if store_of(other).steps() else None
        if state is not None:
            pairs = self.recipe.differences(other).items()
            different = "; ".join(f"{path}: {there} there, {here} here" for path, (here, there) in pairs)
            raise RecipeError(
                f"{self.folder} contains {state} run with other settings: {different}. "
                f"Set another run.output_dir, or pass --run.overwrite to replace it{self._exported_anew(summary, other)}"
            )

    def _exported_anew(self, summary: dict[str, Any] | None, other: Recipe) -> str:
        """Return the hint for a finished run that differs in the settings of its export only."""
        if summary is None or not all(path.startswith("export.") for path in self.recipe.differences(other)):
            return ""
        given = {path: value for path, (value, _) in self.recipe.differences(other).items()}
        options = " ".join(f"--{path} {value}" for path, value in given.items())
        return f". Or export it once more: {command('export')} {self.folder} OUT {options}"

    def _refuse_other_inputs(self, summary: dict[str, Any] | None) -> None:
        note = _read(self.folder / NOTE) or {}
        before = note.get(INPUTS) if self._is_ours(note) else None
        if before is None or (summary is None and self.recipe.run.resume == "never"):
            return
        again = "--run.resume never" if summary is None else "--run.overwrite"
        if text := difference(before, inputs(self.recipe), f"the run in {self.folder}", again):
            raise RecipeError(text)

    def start_or_resume(self) -> RunHandle:
        """Prepare the folder: keep the files of a run to resume, or remove the files of an earlier run.

        Returns:
            The MLflow run, new or resumed.

        Raises:
            RecipeError: If there is nothing to resume and ``run.resume=must``.
        """
        run, store = self.recipe.run, self.store
        store.tidy()
        for left in self.folder.glob(".export-*"):
            shutil.rmtree(left, ignore_errors=True)
        note = _read(self.folder / NOTE) or {}
        ours = self._is_ours(note)
        goes_on = (ours or (store.remote and bool(store.steps()))) and not run.overwrite and run.resume != "never"
        if run.resume == "must" and not goes_on:
            raise RecipeError(
                f"run.resume='must': no unfinished run of this recipe found in {self.folder}; remove it to start a new run"
            )
        if ours and goes_on:
            self._refuse_another_storage(note)
        cut_off = (self.folder / RECIPE).exists() and not note  # the driver died while it created the MLflow run
        if not (ours and goes_on):
            if note:  # a run whose process died and that is not resumed
                with contextlib.suppress(Exception):  # the server is down, or the run was deleted
                    client = connect(note["uri"])
                    if client.get_run(note["run_id"]).info.status == "RUNNING":
                        client.set_terminated(note["run_id"], "KILLED")
            self.clear()
            note = {}
        if not goes_on:
            store.clear()
        (self.folder / RECIPE).write_text(self.recipe.replace("run.overwrite", False).to_json())
        data = describe_shards_of(self.recipe)
        # With a shared storage, the driver may have lost its disk before the first checkpoint.
        lost = store.remote and not run.overwrite and run.resume != "never"
        handle = self._open(note.get("run_id"), data, resumed=goes_on, running=cut_off or lost)
        # A resumed run keeps the inputs of its start. If they are lost, the worker compares those in the checkpoint.
        known = note.get(INPUTS) if goes_on else {}
        if known is not None:
            known = inputs(self.recipe) | known
        fresh = {"run_id": handle.run_id, "uri": handle.uri, "identity": self.recipe.identity(), "storage": self._storage()}
        _write(self.folder / NOTE, fresh | ({INPUTS: known} if known else {}))
        if goes_on and (steps := store.steps()):
            last = f"latest checkpoint: step {steps[0]}"  # it is verified when it is read
            print(f"Resuming the run in {self.folder}, {last} (to start over: --run.resume never)")
        return handle

    def _is_ours(self, note: dict[str, Any]) -> bool:
        """Return whether a note is of this recipe, by identity or, if a new version has other identities, by recipe.json."""
        if note.get("identity") == self.recipe.identity():
            return True
        with contextlib.suppress(OSError, ValueError):
            found = Recipe.from_json((self.folder / RECIPE).read_text())
            return bool(note) and found.identity() == self.recipe.identity()
        return False

    def _storage(self) -> str:
        """Return the place of the run's checkpoints without passwords; empty for its output folder."""
        return redacted(self.store.place) if self.recipe.run.storage else ""

    def _refuse_another_storage(self, note: dict[str, Any]) -> None:
        before, now = note.get("storage"), self._storage()
        if before is None or before == now or (now and self.store.steps()):
            return
        raise RecipeError(
            f"run.storage has changed since the run in {self.folder} was started: its checkpoints are in "
            f"{before or 'this folder'}, not in {now or 'this folder'} (the name of run.output_dir is a part of it). Set it "
            "back, or start over: --run.resume never"
        )

    def _open(self, run_id: str | None, data: list[dict[str, Any]], resumed: bool, running: bool) -> RunHandle:
        """Open the MLflow run.

        Args:
            run_id: Run to open.
            data: See `open_run`.
            resumed: If `run_id` is None, open an existing run of this output.
            running: The same, but only if MLflow shows it as RUNNING.
        """
        recipe, key = self.recipe, key_of(self.recipe)
        uri, experiment = recipe.run.tracking_uri or "", experiment_of(recipe)
        name = f"{recipe.name}-{recipe.identity()[:6]}-s{recipe.run.seed}"
        tags = {"identity": recipe.identity(), "key": key}
        if run_id is None and (resumed or running):
            found = find_runs(uri, experiment, {"key": key})
            run_id = next((one.run_id for one in found if resumed or one.status == "RUNNING"), None)
        if run_id is not None:
            try:
                return open_run(uri, experiment, name, recipe.flat(), run_id=run_id, journal=self.journal, data=data)
            except NoSuchRun as error:  # not if the server is down: the steps would be split between two runs
                log.warning("%s. A new MLflow run is started; training resumes from the checkpoint", error)
        return open_run(uri, experiment, name, recipe.flat(), tags, journal=self.journal, data=data)

    def track_elsewhere(self, run_id: str) -> RunHandle:
        """Open a finished run on the server of ``run.tracking_uri``: the same MLflow run, its copy there, or a new one.

        The journal keeps the name of the first server. Raises TrackingError if the server cannot be used.
        """
        recipe, key = self.recipe, key_of(self.recipe)
        uri, experiment, data = recipe.run.tracking_uri or "", experiment_of(recipe), list[dict[str, Any]]()
        with contextlib.suppress(ValueError, OSError):  # moved or deleted after the run
            data = describe_shards_of(recipe)
        name = f"{recipe.name}-{recipe.identity()[:6]}-s{recipe.run.seed}"
        tags = {"identity": recipe.identity(), "key": key}
        for known in (run_id, *(one.run_id for one in find_runs(uri, experiment, {"key": key}))):
            with contextlib.suppress(NoSuchRun):
                return open_run(uri, experiment, name, recipe.flat(), run_id=known, data=data)
        return open_run(uri, experiment, name, recipe.flat(), tags, data=data)

    def exported(self, names: list[str]) -> None:
        """Record the names of the exported files, which a later run may replace."""
        _write(self.folder / NOTE, (_read(self.folder / NOTE) or {}) | {EXPORT: names})

    def remember_inputs(self) -> None:
        """Record the inputs of a run whose record was lost before it was resumed; its worker has compared them."""
        note = _read(self.folder / NOTE) or {}
        if INPUTS not in note:
            _write(self.folder / NOTE, note | {INPUTS: inputs(self.recipe)})

    def exported_files(self) -> list[str]:
        """Return the names of the exported files."""
        return list((_read(self.folder / NOTE) or {}).get(EXPORT, ()))

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        _write(self.folder / SUMMARY, summary)

    def clear(self) -> None:
        """Remove the files of a run so that another run can start; its journal is renamed."""
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
    """Return the name of the MLflow experiment of a recipe."""
    return recipe.run.experiment or recipe.paper


def key_of(recipe: Recipe) -> str:
    """Return a name for the run that is unique per recipe and output, and per machine without a shared storage."""
    output = local_name(recipe.run.output_dir) if recipe.run.storage else f"{socket.gethostname()} {recipe.run.output_dir}"
    both = f"{recipe.identity()} {output}"
    return f"{recipe.name.replace('/', '-')}-{hashlib.sha256(both.encode()).hexdigest()[:12]}"


def store_of(recipe: Recipe, name: str | None = None) -> Store:
    """Return the checkpoints of a recipe's run, in its output or in a folder of ``run.storage``.

    Args:
        recipe: Recipe.
        name: Name of the folder in ``run.storage``. If None, the key of the run.
    """
    local, permanent = Path(recipe.run.output_dir) / CHECKPOINT, recipe.run.keep_every
    if not recipe.run.storage:
        return Store(str(local), keep_every=permanent)
    base, question, options = recipe.run.storage.partition("?")
    return Store(f"{base.rstrip('/')}/{name or key_of(recipe)}{question}{options}", local, permanent)


def _read(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    return None


def _write(file: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file atomically."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(json.dumps(content, indent=2))
    os.replace(fresh, file)
