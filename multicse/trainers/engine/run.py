"""A run: one recipe in one folder, its record, and what can be done with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from multicse.data.errors import command, redacted
from multicse.trainers.engine import record
from multicse.trainers.engine.checks import describe_shards_of
from multicse.trainers.engine.deliver import write_model
from multicse.trainers.engine.export import check_hub, push
from multicse.trainers.engine.hosts import Host, Stopped
from multicse.trainers.engine.inputs import difference, inputs, start_over
from multicse.trainers.engine.journal import Journal, retire
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.mlflow_server import NoSuchRun, brief, connect, resolve_uri
from multicse.trainers.engine.progress import ProgressLine, announce
from multicse.trainers.engine.record import (
    CHECKPOINT,
    EXPORT,
    FORMER,
    INPUTS,
    JOURNAL,
    OUTLIVES,
    RAY,
    RECIPE,
    RUN,
    SKIPPED,
    SUMMARY,
    SWEEP,
    WRITER,
    locked,
)
from multicse.trainers.engine.stop import Interrupted, Stop
from multicse.trainers.engine.store import CheckpointError, Owner, Store, name_of
from multicse.trainers.engine.text_fit import prepare_encoder
from multicse.trainers.engine.tracking import RunHandle, Tracker, find_runs, open_run
from multicse.trainers.engine.workers import in_workers
from multicse.trainers.jobs import shown
from multicse.trainers.recipe import Recipe, RecipeError, local_name

log = logging.getLogger(__name__)

State = Literal["new", "training", "trained", "delivered"]
"""What a run has reached: nothing, a start, its last step, an exported model."""
IGNORED = ("callbacks", "logging_steps", "save_steps", "keep_every", "storage", "experiment")
"""Settings ``run.…`` that have no effect on a finished run."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A run that is a trial of a sweep: how its checkpoints and its MLflow run are named and found."""

    store: str
    """Folder in ``run.storage``."""
    name: str
    find: Mapping[str, str]
    """Tags of this run alone."""
    tags: Mapping[str, str] = field(default_factory=dict)
    patience: float = 0.0
    """Seconds to wait for a tracking server that does not respond."""


class Run:
    """One recipe in one folder: what it has reached, and what can be done with it, each repeatable.

    ``with run: run.train(); run.deliver()`` does what has not been done. The record ``run.json`` has everything else: recipe
    and state, inputs, MLflow run, the files that the run wrote, and its result. ``recipe.json`` and ``summary.json`` are
    written for users and never read.

    Args:
        recipe: Recipe with absolute paths.
        part: Place in a sweep.
        tracked: The user has named the tracking server, to which a finished run is sent, too.
    """

    def __init__(self, recipe: Recipe, part: Part | None = None, tracked: bool = False) -> None:
        self.recipe, self.part, self.tracked = recipe, part, tracked
        self.folder = Path(recipe.run.output_dir)
        self.journal, self.store = self.folder / JOURNAL, self._store()
        self.handle = RunHandle("", "", self.journal)
        """MLflow run, or the journal only with ``run.report_to=none``; known in `with`."""
        self._begun, self._locks = time.time(), contextlib.ExitStack()
        self._checkpoint: Path | None = None
        self._wishes = list[str]()
        """What is new for a finished run."""

    @property
    def record(self) -> dict[str, Any]:
        """Content of ``run.json``."""
        return record.read(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """Result of a delivered run, with its present folder."""
        found: dict[str, Any] = self.record["summary"]
        last = self.folder / CHECKPOINT / Path(found["checkpoint"]).name
        return found | {"export": str(self.folder / EXPORT)} | ({"checkpoint": str(last)} if last.is_dir() else {})

    def state(self) -> State:
        """Return what the run has reached.

        Raises:
            RecipeError: If the folder contains a sweep, or a run of another recipe or with other inputs.
        """
        note = self.record
        if SWEEP in note:  # a run never replaces one, also not with --run.overwrite
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is the folder of a sweep; set another folder")
        if self.folder.exists() and not self.folder.is_dir():
            raise RecipeError(f"run.output_dir={str(self.folder)!r} is a file; set a folder")
        if self.recipe.run.overwrite or not note:
            return "new"
        self._refuse_another(note)
        self._refuse_other_inputs(note)
        reached: State = note["state"]
        return reached

    def owner(self) -> Owner | None:
        """Return the run to which the checkpoints belong, which is the run in this folder, or None if there are none.

        Raises:
            RecipeError: If they belong to another run, if no run wrote what is in the folder, or if the run is to start over
                and there are permanent checkpoints.
        """
        note, store, owner = self._known(), self.store, self.store.owner()
        run, same = self.recipe.run, bool(note) and self._is_ours(note)
        if not run.overwrite and not self.record:
            there = [name for name in (SUMMARY, CHECKPOINT, EXPORT) if (self.folder / name).exists()]
            if note:
                self._refuse_another(note)
            elif there and not owner:
                raise RecipeError(
                    f"run.output_dir={str(self.folder)!r} contains {', '.join(there)} but no {record.NOTE}, so it was not "
                    "created by a run, or by another version. Set another folder, or pass --run.overwrite to replace it"
                )
        if run.resume == "never" and not run.overwrite:
            self._refuse_to_start_over()
        if owner is None:
            return None
        runs, here = _runs(note), owner.output == str(self.folder)
        if owner.run in runs:
            # A copy of the folder has the same ID.
            ours = not (run.storage and not here and record.read(Path(owner.output)).get(RUN) == owner.run)
        elif owner.run and runs and (same or not run.storage):
            ours = False
        else:
            # With another record, it may be a new folder at the path of a folder that was moved: then nothing is deleted.
            ours = (here and not (run.storage and note and (run.overwrite or run.resume == "never"))) or same
        if not ours:
            where = f"{owner.output or 'an unknown folder'}{f' on {owner.host}' if owner.host else ''}"
            raise RecipeError(
                f"{redacted(store.place)} contains the checkpoints of run {owner.run or 'without ID'} in {where}, "
                f"and {self.folder} is {f'of run {note[RUN]}' if RUN in note else 'not its folder'}. To continue it, set "
                "run.output_dir to its folder. To start another run, set another run.storage or run.output_dir (whose last "
                "two parts name the checkpoints)"
            )
        known = {*runs, owner.run, None}
        if foreign := [step for step in store.steps() if (found := store.written(step)) and found.run not in known]:
            raise RecipeError(
                f"{redacted(store.place)} contains checkpoints of another run than {owner.run}: "
                f"{', '.join(map(name_of, foreign))}. Move them to another folder"
            )
        return owner

    def open(self) -> Self:
        """Lock the folder, and start or resume the run in it; a delivered run is not changed.

        Raises:
            RecipeError: See `state` and `owner`; also if another process works in the folder, or if there is nothing to
                resume and ``run.resume=must``.
        """
        with contextlib.ExitStack() as locks:
            locks.enter_context(locked(self.folder, wait=OUTLIVES if self.part else 0))
            if self.state() == "delivered":  # before this command, or by another process meanwhile
                print(f"This run is already finished: {shown(self.folder)} (--run.overwrite trains again)")
                self._reopen(self.record)
            else:
                with locked(self.folder, name=WRITER, wait=OUTLIVES):
                    self._begin()
            self._locks = locks.pop_all()
        return self

    def train(self, stop: Stop | None = None, host: Host | None = None, callbacks: Sequence[Any] = ()) -> None:
        """Train from the latest checkpoint to the last step, unless that has been done.

        Args:
            stop: Signal handling of the caller. If None, signals are left to the caller.
            host: Host of the loop in this process. If None, workers of Ray Train, or this process without workers.
            callbacks: Callbacks of Ray Train's run, if there are workers.

        Raises:
            Interrupted: If a signal was received; the checkpoint of that step is kept.
            CheckpointError: If no checkpoint in the store can be read.
            LostWorker: If a worker or node was lost.
        """
        state = self.record["state"]
        if state == "delivered" or (state == "trained" and self._last() is not None):
            return
        prepare_encoder(self.recipe)
        stop = stop or Stop()
        with stop.patient():
            if self.recipe.run.num_workers and host is None:
                result = in_workers(self.recipe, self.store, self.handle, stop, callbacks)
            else:
                show = ProgressLine().show if host is None else lambda line: None
                gpu = self.recipe.run.gpus_per_worker > 0
                host = host or Host(self.store, lambda: stop.asked is not None, gpu)
                with (
                    contextlib.suppress(Stopped),
                    Tracker(self.journal, self.handle.uri, self.handle.run_id, show) as tracker,
                ):
                    result = Engine(self.recipe, host, tracker).train()
        folder = Path(result.pop("rescued")) if "rescued" in result else self.store.newest()
        if folder is None:
            place = self.store.place
            raise CheckpointError(f"the last checkpoint in {place} is damaged. Run the same command again to replace it")
        Journal(self.journal, self.handle.run_id, self.handle.uri).take(folder / JOURNAL)  # if rank 0 ran on another node
        self.handle.drain(self.journal)
        self._checkpoint = folder
        if skipped := {name: items for name, items in result["skipped"].items() if items}:
            self._write(SKIPPED, json.dumps(skipped, indent=2))
        result["skipped"] = {name: count for name, count in result.pop("skips").items() if count}
        read = {} if INPUTS in self.record else {INPUTS: inputs(self.recipe)}  # the worker has compared them
        record.update(self.folder, {"state": "trained", "result": result, "checkpoint": str(folder)} | read)

    def deliver(self) -> None:
        """Export the model of a trained run, and upload it; for a delivered run, do what is missing or new."""
        if self.record["state"] == "delivered":
            self._deliver_again(self.record)
            return
        note, checkpoint, recipe = self.record, self.checkpoint(), self.recipe
        result = write_model(recipe, note["result"], checkpoint)
        fresh: dict[str, Any] = {"state": "delivered", "ended": time.time()}
        if name := recipe.run.push_to_hub:
            try:
                result |= {"hub": push(self.folder / EXPORT, name, self._exported())}
                fresh["uploaded"] = name
            except Exception as error:
                text = "The model was not uploaded to the Hugging Face Hub: %s. To upload it later: hf upload %s %s"
                log.error(text, brief(error), name, self.folder / EXPORT)
        summary = {
            "recipe": recipe.name,
            "identity": recipe.identity(),
            **result,
            "export": str(self.folder / EXPORT),
            "checkpoint": str(checkpoint),
            "seconds": time.time() - self._begun,
        }
        self._keep(summary | {"sent": False}, **fresh)

    def close(self, status: Literal["FINISHED", "FAILED", "KILLED"] | None = "FINISHED") -> None:
        """Unlock the folder and end the MLflow run with a status; with FINISHED, everything is sent that was not sent."""
        with self._locks:
            summary = self.record.get("summary")
            if status == "FINISHED" and summary is None:  # a trial, whose model is not exported
                record.update(self.folder, {"ended": time.time()})
            if summary is None and status is not None:
                self.handle.finish(status, self.record.get("ended"))
            elif summary is not None and status == "FINISHED":
                if not summary["sent"] and self.handle.finish(status, self.record["ended"]):
                    self._keep(summary | {"sent": True}, registered=self.recipe.run.register_as)
                if self._wishes:
                    print(f"Done for the finished run: {', '.join(self._wishes)}")

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, (KeyboardInterrupt, Interrupted)):
            print(f"\nStopped. Run the same command again to resume from {shown(self.folder)}", file=sys.stderr)
            self.close(None if self.part else "KILLED")
        else:
            self.close(None if self.part else "FAILED")  # the driver of a sweep ends the runs of its trials

    def adopt(self, result: dict[str, Any], checkpoint: Path) -> Self:
        """Count as trained, with the result and the checkpoint of another run: the best trial of a sweep."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (checkpoint / JOURNAL).exists():
            record.take(self.folder, [JOURNAL])
            shutil.copy(checkpoint / JOURNAL, self.journal)
        self._write(RECIPE, self.recipe.to_json())
        fresh = {"recipe": _content_of(self.recipe), "state": "trained", "result": result, "checkpoint": str(checkpoint)}
        record.update(self.folder, fresh)
        self._checkpoint = checkpoint
        return self

    def checkpoint(self) -> Path:
        """Return the checkpoint of the last step. Raises CheckpointError if it was lost or damaged."""
        if (found := self._last()) is None:
            raise CheckpointError(f"{self.store.place} contains no complete checkpoint of the last step")
        return found

    def clear(self, store_too: bool = True) -> None:
        """Remove the files that the record names, so that another run can start; the journal is renamed.

        Args:
            store_too: Remove the checkpoints, too, if their manifests name the run or an earlier one of the folder.
        """
        note, owner = self.record, self.store.owner()
        runs = {*_runs(note), *([owner.run] if owner and owner.run else [])}
        for store in (self.store, Store(str(self.folder / CHECKPOINT))) if store_too else ():  # the second has downloads
            store.clear(runs, permanent=self.recipe.run.overwrite)
        for name in note.get(record.FILES, ()):
            (self.folder / name).unlink(missing_ok=True)
        retire(self.journal)
        shutil.rmtree(self.folder / RAY, ignore_errors=True)

    def _refuse_another(self, note: dict[str, Any]) -> None:
        try:
            other, reached = _recipe_of(note), note["state"]
        except (LookupError, ValueError) as error:
            raise RecipeError(
                f"{shown(self.folder)} contains a run of another version, or its {record.NOTE} is damaged ({error}). "
                "Set another run.output_dir, or pass --run.overwrite to replace it"
            ) from None
        if other.identity() == self.recipe.identity():
            return
        here = other.replace("run.output_dir", str(self.folder))  # the folder may have been moved
        its_store, finished = store_of(here, note.get("store") or None), reached == "delivered"
        state = "a finished" if finished else "an unfinished" if its_store.steps() else None
        if state is not None:
            differing = self.recipe.differences(other)
            different = "; ".join(f"{path}: {there} there, {here} here" for path, (here, there) in differing.items())
            hint = ""
            if finished and all(path.startswith("export.") for path in differing):
                options = " ".join(f"--{path} {value}" for path, (value, _) in differing.items())
                hint = f". Or export it once more: {command('export')} {shown(self.folder)} OUT {options}"
            raise RecipeError(
                f"{shown(self.folder)} contains {state} run with other settings: {different}. "
                f"Set another run.output_dir, or pass --run.overwrite to replace it{hint}"
            )

    def _refuse_other_inputs(self, note: dict[str, Any]) -> None:
        finished, before = note["state"] == "delivered", note.get(INPUTS)
        if before is None or not self._is_ours(note) or (not finished and self.recipe.run.resume == "never"):
            return
        again = "--run.overwrite" if finished else "--run.resume never"
        if text := difference(before, inputs(self.recipe), f"the run in {self.folder}", start_over(again)):
            raise RecipeError(text)

    def _refuse_to_start_over(self) -> None:
        for store in (self.store, Store(str(self.folder / CHECKPOINT))):
            if permanent := [str(step) for step in store.steps() if (found := store.written(step)) and found.permanent]:
                raise RecipeError(
                    f"run.resume='never': {redacted(store.place)} contains permanent checkpoints (run.keep_every) of step "
                    f"{', '.join(permanent)}. Set another run.output_dir, or pass --run.overwrite to delete them"
                )

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

    def _known(self) -> dict[str, Any]:
        """Return the record. If it is lost, its beginning is in the store, if that is of this folder or of this recipe."""
        if note := self.record:
            return note
        owner = self.store.owner()
        if owner is None or not owner.run or not owner.recipe:
            return {}
        found: dict[str, Any] = {RUN: owner.run, "recipe": owner.recipe, "state": "training"}
        here = owner.output == str(self.folder)
        # Without owner.json (and so without a host), it may be a checkpoint of an equal run that a user has copied.
        moved = bool(owner.host) and not self.recipe.run.storage and self._is_ours(found)
        return found if here or moved else {}

    def _is_ours(self, note: dict[str, Any]) -> bool:
        """Return whether a record is of this recipe."""
        with contextlib.suppress(LookupError, ValueError):
            return _recipe_of(note).identity() == self.recipe.identity()
        return False

    def _store(self) -> Store:
        """Return the store of the run's checkpoints; of a run that continues in a moved folder, the store in its record."""
        run, note = self.recipe.run, self.record
        goes_on = self._is_ours(note) and not run.overwrite and run.resume != "never"
        name = self.part.store if self.part else None
        return store_of(self.recipe, (note.get("store") or name) if goes_on else name)

    def _storage(self) -> str:
        """Return the place of the run's checkpoints without passwords; empty for its output folder."""
        return redacted(self.store.place) if self.recipe.run.storage else ""

    def _begin(self) -> None:
        """Prepare the folder: keep the files of a run to resume, or remove the files of an earlier run."""
        run, note = self.recipe.run, self._known()
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
        if not self.record:  # of a user, or of a run whose record was lost
            record.set_aside(self.folder / EXPORT)
        # The record comes first, so that whatever is found later belongs to a run that it names.
        former = [one for one in dict.fromkeys([*_runs(note), owner and owner.run]) if one not in (None, store.run)]
        fresh = {RUN: store.run, FORMER: former, "state": mine.get("state", "training"), "storage": self._storage()}
        fresh["store"] = store.name if run.storage else ""
        record.write_json(self.folder / record.NOTE, mine | fresh | {"recipe": _content_of(self.recipe)})
        self._write(RECIPE, self.recipe.replace("run.overwrite", False).to_json())
        store.claim(str(self.folder), _content_of(self.recipe))
        self.handle = self._track(mine.get("run_id"), resumed=goes_on)
        record.update(self.folder, {"run_id": self.handle.run_id, "uri": self.handle.uri})
        # A resumed run keeps the inputs of its start. If they are lost, the worker compares those in the checkpoint.
        steps = store.steps() if goes_on else []
        known = mine.get(INPUTS, None if steps else {})
        if known is not None:
            record.update(self.folder, {INPUTS: inputs(self.recipe) | known})
        if steps and not self.part:
            last = f"latest checkpoint: step {steps[0]}"  # it is verified when it is read
            print(f"Resuming the run in {shown(self.folder)}, {last} (to start over: --run.resume never)")

    def _reopen(self, note: dict[str, Any]) -> None:
        """Find out what is new for a finished run, and open its MLflow run."""
        run, uri = self.recipe.run, note["uri"]
        here, tracked = run.tracking_uri or "", run.report_to == "mlflow"
        moved = tracked and (not uri or (self.tracked and here != uri and resolve_uri(here) != uri))
        lost = not (self.folder / EXPORT / "modules.json").is_file()
        hub = run.push_to_hub if run.push_to_hub != note.get("uploaded") else None
        named = run.register_as if run.register_as != note.get("registered") else None
        wishes = {"the export": lost, f"upload to {hub}": hub, f"registration as {named}": tracked and named}
        wishes |= {f"tracking at {run.tracking_uri}": tracked and (moved or not note["summary"]["sent"])}
        self._wishes = [what for what, wanted in wishes.items() if wanted]
        if hub is not None:
            check_hub(hub, "run.push_to_hub")
        self.handle = self._track_elsewhere(note["run_id"] if uri else None) if moved else RunHandle(note["run_id"], uri)
        self.handle.journal = self.journal
        was = _recipe_of(note)
        if self._wishes:
            given = {f"run.{name}": getattr(run, name) for name in ("register_as", "push_to_hub")}
            given |= {"run.tracking_uri": self.handle.uri, "run.report_to": moved and "mlflow"}
            told = was.changed({name: value for name, value in given.items() if value})
            fresh = {"run_id": self.handle.run_id, "uri": self.handle.uri, "recipe": _content_of(told)}
            sent = note["summary"]["sent"] and not (tracked and (moved or lost or named))
            self._keep(note["summary"] | {"sent": sent}, **fresh)  # first: after a failure the same command repeats the rest
            self._write(RECIPE, told.to_json())
        changed = [name for name in IGNORED if _shown(run, name) != _shown(was.run, name)]
        if names := ", ".join(f"run.{name}" for name in changed):
            print(f"Without effect on a finished run: {names} (--run.overwrite trains again)")

    def _deliver_again(self, note: dict[str, Any]) -> None:
        """Export the model if the export was lost, and upload it if that is new."""
        summary, name = note["summary"], self.recipe.run.push_to_hub
        if not (self.folder / EXPORT / "modules.json").is_file():
            try:
                if (checkpoint := self._last() or self.store.newest()) is None:
                    raise CheckpointError(f"{self.store.place} contains no complete checkpoint")
                summary |= write_model(self.recipe, note["result"], checkpoint) | {"checkpoint": str(checkpoint)}
            except ValueError as error:
                raise RecipeError(
                    f"the export of the finished run in {self.folder} is missing and cannot be written again: {error}. "
                    "Restore it, or pass --run.overwrite to train again"
                ) from error
            self._keep(summary)
        if name is not None and name != note.get("uploaded"):
            summary |= {"hub": push(self.folder / EXPORT, name, self._exported())}
            self._keep(summary, **{"uploaded": name})

    def _last(self) -> Path | None:
        """Return the checkpoint of the last step, or None if it was lost or damaged."""
        if self._checkpoint is None:
            note = self.record
            found = (self.store.newest(), Path(note["checkpoint"]))  # the second: the store did not take it
            name = name_of(note["result"]["steps"])
            self._checkpoint = next((one for one in found if one and one.name == name and one.is_dir()), None)
        return self._checkpoint

    def _keep(self, summary: dict[str, Any], **fields: Any) -> None:
        """Write the summary and other fields to the record, and the summary to its file."""
        handle = self.handle
        summary |= {"mlflow_run_id": handle.run_id if handle.uri else None, "tracking_uri": handle.uri}
        record.update(self.folder, {**fields, "summary": summary})
        record.take(self.folder, [SUMMARY])
        record.write_json(self.folder / SUMMARY, self.summary)

    def _write(self, name: str, text: str) -> None:
        """Write a file for users."""
        record.take(self.folder, [name])
        (self.folder / name).write_text(text)

    def _exported(self) -> list[str]:
        """Return the names of the exported files."""
        start = f"{EXPORT}/"
        return [name.removeprefix(start) for name in self.record.get(record.FILES, ()) if name.startswith(start)]

    def _track(self, run_id: str | None, resumed: bool) -> RunHandle:
        """Open the MLflow run, or with ``run.report_to=none`` no more than the journal.

        Args:
            run_id: Run to open.
            resumed: If `run_id` is None, open the MLflow run that has the run's ID.
        """
        recipe, part, own = self.recipe, self.part, self.store.run or ""
        if recipe.run.report_to == "none":
            retire(self.journal, run_id or own)
            return RunHandle(run_id or own, "", self.journal)
        if run_id == own:  # not tracked until now
            run_id = None
        find, end, pause = part.find if part else {RUN: own}, time.monotonic() + (part.patience if part else 0.0), 1.0
        uri, experiment = recipe.run.tracking_uri or "", experiment_of(recipe)
        while True:
            try:
                if run_id is None and (resumed or part):
                    run_id = next((one.run_id for one in find_runs(uri, experiment, find)), None)
                try:
                    return self._open_run(run_id, self.journal, describe_shards_of(recipe))
                except NoSuchRun as error:  # not if the server is down: the steps would be split between two runs
                    if run_id is None:
                        raise
                    log.warning("%s. A new MLflow run is started; training resumes from the checkpoint", error)
                    run_id = None
            except Exception as error:
                if time.monotonic() > end:
                    raise
                log.warning("tracking server %s does not respond (%s); %s waits for it", uri, error, self.folder)
                time.sleep(pause)
                pause = min(30.0, 2 * pause)

    def _track_elsewhere(self, run_id: str | None) -> RunHandle:
        """Open a finished run on the server of ``run.tracking_uri``: the same MLflow run, its copy there, or a new one.

        The journal keeps the name of the first server. `run_id` is None if no server has the run. Raises TrackingError if
        the server cannot be used.
        """
        uri, experiment, data = self.recipe.run.tracking_uri or "", experiment_of(self.recipe), list[dict[str, Any]]()
        with contextlib.suppress(ValueError, OSError):  # moved or deleted after the run
            data = describe_shards_of(self.recipe)
        there = find_runs(uri, experiment, {RUN: self.record.get(RUN, ""), "key": key_of(self.recipe)})
        for known in (run_id, *(one.run_id for one in there)):
            with contextlib.suppress(NoSuchRun):
                if known is not None:
                    return self._open_run(known, None, data)
        return self._open_run(None, None, data)

    def _open_run(self, run_id: str | None, journal: Path | None, data: Sequence[Mapping[str, Any]]) -> RunHandle:
        recipe, part, identity = self.recipe, self.part, self.recipe.identity()
        name = part.name if part else f"{recipe.name}-{identity[:6]}-s{recipe.run.seed}"
        tags = {"identity": identity, RUN: self.record.get(RUN, "")}
        tags |= {**part.find, **part.tags} if part else {"key": key_of(recipe)}
        uri = recipe.run.tracking_uri or ""
        if part is None and "mlflow" not in sys.modules:
            announce("Opening MLflow")
        return open_run(uri, experiment_of(recipe), name, recipe.flat(), tags, run_id=run_id, journal=journal, data=data)


def _recipe_of(note: Mapping[str, Any]) -> Recipe:
    """Return the recipe in a record. Raises LookupError or ValueError if it is of another version."""
    return Recipe.from_json(json.dumps(note["recipe"]))


def _content_of(recipe: Recipe) -> dict[str, Any]:
    """Return the content of a recipe for a record."""
    content: dict[str, Any] = json.loads(recipe.replace("run.overwrite", False).to_json())
    return content


def _runs(note: Mapping[str, Any]) -> list[str]:
    """Return the IDs of a record's run and of the earlier runs in its folder."""
    return [*([note[RUN]] if RUN in note else []), *note.get(FORMER, ())]


def _shown(config: Any, name: str) -> str:
    return redacted(str(getattr(config, name)))


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
