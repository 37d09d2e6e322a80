"""Output folder of a run: locks, the run that it contains, and the files that may be replaced."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from multicse.data.errors import command, redacted
from multicse.trainers.engine import record
from multicse.trainers.engine.checkpoint import Owner, Store, name_of
from multicse.trainers.engine.checks import describe_shards_of
from multicse.trainers.engine.inputs import difference, inputs, start_over
from multicse.trainers.engine.journal import retire
from multicse.trainers.engine.mlflow_server import NoSuchRun, connect
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run
from multicse.trainers.recipe import Recipe, RecipeError, local_name

log = logging.getLogger(__name__)

RECIPE, SUMMARY, JOURNAL, SKIPPED = "recipe.json", "summary.json", "journal.jsonl", "skipped.json"
"""Files of a run's folder besides its record: recipe, result, metrics, skipped samples."""
RUN, FORMER = "run", "former"
"""Fields of the record: ID of the run, which its checkpoints, store and MLflow run have too, and IDs of earlier runs."""
CHECKPOINT, EXPORT, RAY = "checkpoint", "export", ".ray-train"
"""Folders in a run's folder: checkpoints, exported model, state of Ray Train during training."""
INPUTS = "inputs"
"""Key of the digests of a run's inputs in its note, see `inputs`."""
SWEEP = "sweep"
"""Key of the name of a sweep, in the note in a sweep's folder."""
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
        self.recipe, self.folder = recipe, Path(recipe.run.output_dir)
        self.journal, self.store = self.folder / JOURNAL, self._store()

    def finished(self) -> dict[str, Any] | None:
        """Return the summary if this recipe's run is finished, which is printed, otherwise None.

        Raises:
            RecipeError: If the folder contains a run of another recipe or with other inputs.
        """
        if SWEEP in record.read(self.folder):  # a run never replaces one, also not with --run.overwrite
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is the folder of a sweep; set another folder")
        if self.recipe.run.overwrite:
            return None
        if self.folder.exists() and not self.folder.is_dir():
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is a file; set a folder")
        summary = record.read_json(self.folder / SUMMARY)
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
            found = [name for name in (SUMMARY, CHECKPOINT, EXPORT) if (self.folder / name).exists()]
            if found and (summary or not self._is_ours(record.read(self.folder))):
                raise RecipeError(
                    f"run.output_dir={str(self.folder)!r} contains {', '.join(found)} but no recipe.json, so it "
                    "was not created by a run. Set another folder, or pass --run.overwrite to replace it"
                )
            return
        try:
            other = Recipe.from_json((self.folder / RECIPE).read_text())
        except ValueError as error:
            if not (summary or record.read(self.folder) or Store(str(self.folder / CHECKPOINT)).steps()):
                return  # not of a run: it is renamed
            raise RecipeError(
                f"{self.folder} contains a run of another version, or its recipe.json is damaged ({error}). Set another "
                "run.output_dir, or pass --run.overwrite to replace it"
            ) from None
        if other.identity() == self.recipe.identity():
            return
        here = other.replace("run.output_dir", str(self.folder))  # the folder may have been moved
        its_store = store_of(here, record.read(self.folder).get("store") or None)
        state = "a finished" if summary else "an unfinished" if its_store.steps() else None
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
        note = record.read(self.folder)
        before = note.get(INPUTS) if self._is_ours(note) else None
        if before is None or (summary is None and self.recipe.run.resume == "never"):
            return
        again = "--run.resume never" if summary is None else "--run.overwrite"
        if text := difference(before, inputs(self.recipe), f"the run in {self.folder}", start_over(again)):
            raise RecipeError(text)

    def owner(self) -> Owner | None:
        """Return the run to which the checkpoints belong, which is the run in this folder, or None if there are none.

        Raises:
            RecipeError: If they belong to another run, or if the run is to start over and there are permanent ones.
        """
        note, store, owner = record.read(self.folder), self.store, self.store.owner()
        if self.recipe.run.resume == "never" and not self.recipe.run.overwrite:
            self._refuse_to_start_over()
        if owner is None:
            return None
        known, same = _runs(note), self._is_ours(note)
        if owner.run and known and (same or owner.run in known or not self.recipe.run.storage):
            # A copy of the folder has the same ID.
            copied = owner.output != str(self.folder) and record.read(Path(owner.output)).get(RUN) == owner.run
            ours = owner.run in known and not (self.recipe.run.storage and copied)
        elif self.recipe.run.storage:  # the record was lost, with the folder or alone
            moved = owner.host in ("", socket.gethostname()) and owner.output and not Path(owner.output).exists()
            # With another record, it may be a new folder at the path of a folder that was moved: then nothing is deleted.
            starts_over = self.recipe.run.overwrite or self.recipe.run.resume == "never"
            here = owner.output == str(self.folder) and not (note and starts_over)
            ours = here or (bool(moved) and same)
        else:
            ours = owner.output == str(self.folder) or same
        if not ours:
            where = f"{owner.output or 'an unknown folder'}{f' on {owner.host}' if owner.host else ''}"
            raise RecipeError(
                f"{redacted(store.place)} contains the checkpoints of run {owner.run or 'without ID'} in {where}, "
                f"and {self.folder} is {f'of run {note[RUN]}' if RUN in note else 'not its folder'}. To continue it, set "
                "run.output_dir to its folder. To start another run, set another run.storage or run.output_dir (whose last "
                "two parts name the checkpoints)"
            )
        runs = {*known, owner.run, None}
        if foreign := [step for step in store.steps() if (found := store.written(step)) and found.run not in runs]:
            raise RecipeError(
                f"{redacted(store.place)} contains checkpoints of another run than {owner.run}: "
                f"{', '.join(map(name_of, foreign))}. Move them to another folder"
            )
        return owner

    def _refuse_to_start_over(self) -> None:
        for store in (self.store, Store(str(self.folder / CHECKPOINT))):
            if permanent := [str(step) for step in store.steps() if (found := store.written(step)) and found.permanent]:
                raise RecipeError(
                    f"run.resume='never': {redacted(store.place)} contains permanent checkpoints (run.keep_every) of step "
                    f"{', '.join(permanent)}. Set another run.output_dir, or pass --run.overwrite to delete them"
                )

    def start_or_resume(self) -> RunHandle:
        """Prepare the folder: keep the files of a run to resume, or remove the files of an earlier run.

        Returns:
            The MLflow run, new or resumed.

        Raises:
            RecipeError: If there is nothing to resume and ``run.resume=must``, or the checkpoints belong to another run.
        """
        run, note = self.recipe.run, record.read(self.folder)
        store = self.store = self._store()
        owner = self.owner()
        store.tidy()
        for left in self.folder.glob(".export-*"):
            shutil.rmtree(left, ignore_errors=True)
        ours = self._is_ours(note)
        same = ours or (owner is not None and bool(run.storage))  # the place in a storage depends on the recipe
        goes_on = same and bool(note or owner) and not run.overwrite and run.resume != "never"
        if run.resume == "must" and not goes_on:
            raise RecipeError(
                f"run.resume='must': no unfinished run of this recipe found in {self.folder}; remove it to start a new run"
            )
        mine = note if ours and goes_on else {}
        if mine:
            self._refuse_another_storage(mine, owner)
        if note.get("uri") and not mine:  # a run whose process died and that is not resumed
            with contextlib.suppress(Exception):  # the server is down, or the run was deleted
                client = connect(note["uri"])
                if client.get_run(note["run_id"]).info.status == "RUNNING":
                    client.set_terminated(note["run_id"], "KILLED")
        if not goes_on or (note and not ours):
            self.clear(store_too=not goes_on)
        store.run = (mine.get(RUN) or (owner and owner.run) if goes_on else None) or record.new_id()
        if not note:  # of a user, or of a run whose record was lost
            for name in (SUMMARY, SKIPPED, EXPORT, *(() if owner else (RECIPE,))):
                record.set_aside(self.folder / name)
        elif not mine:  # a user's file would count as the result of the new run
            record.set_aside(self.folder / SUMMARY)
        # The record comes first, so that whatever is found later belongs to a run that it names.
        former = [one for one in dict.fromkeys([*_runs(note), owner and owner.run]) if one not in (None, store.run)]
        fresh = {RUN: store.run, FORMER: former, "identity": self.recipe.identity(), "storage": self._storage()}
        fresh["store"] = store.name if run.storage else ""
        record.write_json(self.folder / record.NOTE, mine | fresh)
        (self.folder / RECIPE).write_text(self.recipe.replace("run.overwrite", False).to_json())
        store.claim(str(self.folder))
        data = describe_shards_of(self.recipe)
        handle = self._open(mine.get("run_id"), data, resumed=goes_on)
        record.update(self.folder, {"run_id": handle.run_id, "uri": handle.uri})
        # A resumed run keeps the inputs of its start. If they are lost, the worker compares those in the checkpoint.
        steps = store.steps() if goes_on else []
        known = mine.get(INPUTS, None if steps else {})
        if known is not None:
            record.update(self.folder, {INPUTS: inputs(self.recipe) | known})
        if steps:
            last = f"latest checkpoint: step {steps[0]}"  # it is verified when it is read
            print(f"Resuming the run in {self.folder}, {last} (to start over: --run.resume never)")
        return handle

    def _store(self) -> Store:
        """Return the store of the run's checkpoints; of a run that continues in a moved folder, the store in its record."""
        run, note = self.recipe.run, record.read(self.folder)
        goes_on = self._is_ours(note) and not run.overwrite and run.resume != "never"
        return store_of(self.recipe, (note.get("store") or None) if goes_on else None)

    def _is_ours(self, note: dict[str, Any]) -> bool:
        """Return whether a note is of this recipe, by identity or, if a new version has other identities, by recipe.json."""
        if note.get("identity") == self.recipe.identity():
            return True
        with contextlib.suppress(OSError, ValueError):
            found = Recipe.from_json((self.folder / RECIPE).read_text())
            return found.identity() == self.recipe.identity()
        return False

    def _storage(self) -> str:
        """Return the place of the run's checkpoints without passwords; empty for its output folder."""
        return redacted(self.store.place) if self.recipe.run.storage else ""

    def _refuse_another_storage(self, note: dict[str, Any], owner: Owner | None) -> None:
        before, now = note.get("storage"), self._storage()
        here = owner is not None and owner.run in (None, note.get(RUN, owner.run)) and self.store.steps()
        if before is None or before == now or (now and here):
            return
        raise RecipeError(
            f"run.storage has changed since the run in {self.folder} was started: its checkpoints are in "
            f"{before or 'this folder'}, not in {now or 'this folder'} (the name of run.output_dir is a part of it). Set it "
            "back, or start over: --run.resume never"
        )

    def _open(self, run_id: str | None, data: list[dict[str, Any]], resumed: bool) -> RunHandle:
        """Open the MLflow run, or with ``run.report_to=none`` no more than the journal.

        Args:
            run_id: Run to open.
            data: See `open_run`.
            resumed: If `run_id` is None, open the MLflow run that has the run's ID.
        """
        recipe, key = self.recipe, key_of(self.recipe)
        if recipe.run.report_to == "none":
            name = run_id or self.store.run or ""
            retire(self.journal, name)
            return RunHandle(name, "", self.journal)
        uri, experiment = recipe.run.tracking_uri or "", experiment_of(recipe)
        name = f"{recipe.name}-{recipe.identity()[:6]}-s{recipe.run.seed}"
        tags = {"identity": recipe.identity(), "key": key, RUN: self.store.run or ""}
        if run_id == self.store.run:  # not tracked until now
            run_id = None
        if run_id is None and resumed:
            run_id = next((one.run_id for one in find_runs(uri, experiment, {RUN: tags[RUN]})), None)
        if run_id is not None:
            try:
                return open_run(uri, experiment, name, recipe.flat(), run_id=run_id, journal=self.journal, data=data)
            except NoSuchRun as error:  # not if the server is down: the steps would be split between two runs
                log.warning("%s. A new MLflow run is started; training resumes from the checkpoint", error)
        return open_run(uri, experiment, name, recipe.flat(), tags, journal=self.journal, data=data)

    def track_elsewhere(self, run_id: str | None) -> RunHandle:
        """Open a finished run on the server of ``run.tracking_uri``: the same MLflow run, its copy there, or a new one.

        The journal keeps the name of the first server. `run_id` is None if no server has the run. Raises TrackingError if
        the server cannot be used.
        """
        recipe, key = self.recipe, key_of(self.recipe)
        uri, experiment, data = recipe.run.tracking_uri or "", experiment_of(recipe), list[dict[str, Any]]()
        with contextlib.suppress(ValueError, OSError):  # moved or deleted after the run
            data = describe_shards_of(recipe)
        name = f"{recipe.name}-{recipe.identity()[:6]}-s{recipe.run.seed}"
        tags = {"identity": recipe.identity(), "key": key, RUN: record.read(self.folder).get(RUN, "")}
        for known in (run_id, *(one.run_id for one in find_runs(uri, experiment, {RUN: tags[RUN], "key": key}))):
            with contextlib.suppress(NoSuchRun):
                if known is not None:
                    return open_run(uri, experiment, name, recipe.flat(), run_id=known, data=data)
        return open_run(uri, experiment, name, recipe.flat(), tags, data=data)

    def remember_inputs(self) -> None:
        """Record the inputs of a run whose record was lost before it was resumed; its worker has compared them."""
        if INPUTS not in record.read(self.folder):
            record.update(self.folder, {INPUTS: inputs(self.recipe)})

    def exported_files(self) -> list[str]:
        """Return the names of the exported files."""
        note, start = record.read(self.folder), f"{EXPORT}/"
        return [name.removeprefix(start) for name in note.get(record.FILES, ()) if name.startswith(start)]

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        record.write_json(self.folder / SUMMARY, summary)

    def clear(self, store_too: bool = True) -> None:
        """Remove the files that the record names, so that another run can start; the journal is renamed.

        Args:
            store_too: Remove the checkpoints, too, if their manifests name the run or an earlier one of the folder.
        """
        note, owner = record.read(self.folder), self.store.owner()
        runs = {*_runs(note), *([owner.run] if owner and owner.run else [])}
        for store in (self.store, Store(str(self.folder / CHECKPOINT))) if store_too else ():  # the second has downloads
            store.clear(runs, permanent=self.recipe.run.overwrite)
        for name in note.get(record.FILES, ()):
            (self.folder / name).unlink(missing_ok=True)
        retire(self.journal)
        shutil.rmtree(self.folder / RAY, ignore_errors=True)


def _runs(note: dict[str, Any]) -> list[str]:
    """Return the ID of a record's run, and those of the earlier runs in its folder."""
    return [*([note[RUN]] if RUN in note else []), *note.get(FORMER, ())]


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
    base, question, options = recipe.run.storage.partition("?" if "://" in recipe.run.storage else "\0")
    return Store(f"{base.rstrip('/')}/{name or key_of(recipe)}{question}{options}", local, permanent)
