"""Checkpoints are complete or do not exist, on disk and in an unreliable store; users' files are never removed."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow import fs

from multicse.data import remote
from multicse.trainers.engine import record
from multicse.trainers.engine.checkpoint import latest_checkpoint, read_state
from multicse.trainers.engine.launch import resolve, run_recipe
from multicse.trainers.engine.run import Run
from multicse.trainers.engine.store import KEPT, CheckpointError, Store, WriteFiles, name_of, refuse_unwritable_storage
from multicse.trainers.recipe import Recipe, RecipeError

pytest.importorskip("hypothesis", reason="random sequences are made by the package hypothesis (extra `test`)")
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test


def fill(text: str) -> WriteFiles:
    def write(folder: Path) -> None:
        (folder / "weights").write_text(text)
        (folder / "recipe.json").write_text("{}")

    return write


def full(folder: Path) -> None:
    (folder / "weights").write_text("half of i")
    raise OSError(errno.ENOSPC, "No space left on device")


RUNS, STEPS = ("one", "two"), st.integers(1, 6)
SEQUENCES = int(os.environ.get("MULTICSE_SEQUENCES", "60"))


@dataclass
class Kept:
    """Expected state of a checkpoint."""

    text: str
    run: str
    permanent: bool
    readable: bool = True
    """Its manifest is intact."""
    whole: bool = True
    """All its files are as they were written."""


class Stores(RuleBasedStateMachine):
    """Saves of two runs into one folder or URL, with damage, deaths, full disks and files of users between them.

    * The newest checkpoint of a run is its latest one whose files are all as they were written.
    * A save keeps the latest `KEPT` of its run and permanent ones, and nothing of another run is removed.
    * Whatever else lies in the folders stays, under its name or, where a checkpoint needs it, renamed.
    """

    @initialize(remote=st.booleans())
    def begin(self, remote: bool) -> None:
        self.folder, self.remote = Path(tempfile.mkdtemp()), remote
        self.place = self.folder / "store"
        self.known: dict[int, Kept] = {}
        self.numbers = itertools.count()
        self.texts: list[str] = []
        """Contents that must be in some file."""

    def store(self, run: str | None, keep_every: int | None = None) -> Store:
        """Return the store as a new process of a run opens it."""
        here = f"file://{self.place}" if self.remote else str(self.place)
        return Store(here, self.folder / f"local-{run}", keep_every, run)

    def part(self, run: str, step: int) -> Path:
        """Return the folder of a checkpoint that is being written."""
        return (self.folder / f"local-{run}" if self.remote else self.place) / f"{name_of(step)}.part"

    @rule(run=st.sampled_from(RUNS), step=STEPS, keep_every=st.sampled_from((2, 3, None)))
    def save(self, run: str, step: int, keep_every: int | None) -> None:
        text = f"{run} {step} {next(self.numbers)}"
        self.store(run, keep_every).save(step, fill(text), wait=True)
        assert not list(self.part(run, step).parent.glob("*.part"))
        before = self.known.get(step)
        permanent = bool(keep_every and step % keep_every == 0)
        if before is not None and before.readable:
            permanent |= before.permanent
        if before is not None and not (before.readable and before.run == run):
            self.texts.append(before.text)
        self.known[step] = Kept(text, run, permanent)
        own = sorted((other for other, one in self.known.items() if one.run == run and one.readable), reverse=True)
        kept = [other for other in own if other <= step][:KEPT]
        for other in own:
            if other not in kept and not self.known[other].permanent:
                del self.known[other]

    @rule(run=st.sampled_from(RUNS), step=STEPS)
    def save_on_a_full_disk(self, run: str, step: int) -> None:
        with pytest.raises(CheckpointError, match=f"step {step} could not be written"):
            self.store(run).save(step, full, wait=True)
        assert not list(self.part(run, step).parent.glob("*.part"))

    @rule(step=STEPS, lost=st.booleans(), shorter=st.booleans())
    def damage(self, step: int, lost: bool, shorter: bool) -> None:
        if (one := self.known.get(step)) is None or not one.whole:
            return
        file = self.place / name_of(step) / ("manifest.json" if lost else "weights")
        if lost:
            file.write_text("" if shorter else "{}")
            one.readable = False
        elif shorter:
            file.write_text(one.text[:-1])
            one.text = one.text[:-1]
        else:
            (self.place / name_of(step) / "recipe.json").unlink()
        one.whole = False

    @rule(step=STEPS, name=st.sampled_from(("notes.txt", "weights")))
    def a_user_writes(self, step: int, name: str) -> None:
        file = self.place / name_of(step) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            self.texts.append(f"a user's {next(self.numbers)}")
            file.write_text(self.texts[-1])

    @rule(run=st.sampled_from(RUNS), step=STEPS)
    def a_process_dies_in_a_save(self, run: str, step: int) -> None:
        self.part(run, step).mkdir(parents=True, exist_ok=True)
        (self.part(run, step) / "weights").write_text("half of i")

    @rule(run=st.sampled_from(RUNS), permanent=st.sampled_from((False, False, True)))
    def clear(self, run: str, permanent: bool) -> None:
        self.store(run).clear(permanent=permanent)
        for step, one in list(self.known.items()):
            if one.readable and one.run == run and (permanent or not one.permanent):
                del self.known[step]

    @invariant()
    def the_newest_is_read_and_nothing_is_lost(self) -> None:
        for run in (*RUNS, None):
            good = [step for step, one in self.known.items() if one.whole and run in (None, one.run)]
            found = self.store(run).newest()
            if not good:
                assert found is None
            else:
                assert found is not None and found.name == name_of(max(good))
                assert (found / "weights").read_text() == self.known[max(good)].text
        there = [file.read_text() for file in self.place.rglob("*") if file.is_file()]
        assert {*self.texts, *(one.text for one in self.known.values())} <= {*there}

    @invariant()
    def what_is_listed_as_written_is_permanent_as_it_was(self) -> None:
        listed = {step: written for run in RUNS for step, written in self.store(run).own()}
        wanted = {step: (one.run, one.permanent) for step, one in self.known.items() if one.readable}
        assert {step: (one.run, one.permanent) for step, one in listed.items()} == wanted

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def test_a_store_survives_every_order_of_saves_deaths_and_damage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    own = settings(max_examples=SEQUENCES, stateful_step_count=20, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(Stores, settings=settings(own, suppress_health_check=list(HealthCheck)))


def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    for step in (3, 6):
        store.save(step, fill(f"step {step}"), wait=True)
    (tmp_path / name_of(6) / "weights").write_text("step 7")
    assert store.newest() == latest_checkpoint(tmp_path) == latest_checkpoint(tmp_path / name_of(3)) == tmp_path / name_of(3)
    assert f"{name_of(6)} is damaged: weights" in caplog.text
    for read in (lambda: store.get(6), lambda: latest_checkpoint(tmp_path / name_of(6))):
        with pytest.raises(CheckpointError, match=name_of(6)):
            read()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    Store(str(tmp_path), run="one").save(3, fill("step 3"), wait=True)
    for run in ("one", None):
        assert Store(str(tmp_path), run=run).get(3) == tmp_path / name_of(3)
    with pytest.raises(CheckpointError, match=r"another run \(one\)"):
        Store(str(tmp_path), run="two").get(3)


def test_a_full_disk_is_logged_and_earlier_checkpoints_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    store.save(3, fill("step 3"), wait=True)
    with caplog.at_level(logging.ERROR):
        store.save(6, full)
        store.settle()
    assert "step 6" in caplog.text and "No space left" in caplog.text
    with pytest.raises(CheckpointError, match=r"step 9 could not be written to .*run\.storage"):
        store.save(9, full, wait=True)
    assert store.newest() == tmp_path / name_of(3) and not list(tmp_path.glob("*.part"))


WRITES = """
import resource, sys
from pathlib import Path
import torch
from multicse.trainers.engine.checkpoint import BEST, METHOD, write
from multicse.trainers.engine.store import Store
from multicse.trainers.recipe import Recipe
folder, recipe = Path(sys.argv[1]), Recipe.from_json(Path(sys.argv[2]).read_text())
weights = {"w": torch.arange(1000.0)}
now = {METHOD: weights}
large = torch.zeros(200_000)
store = Store(str(folder))
store.save(3, lambda place: write(place, recipe, now, {"step": 3}), wait=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store.save(6, lambda place: write(place, recipe, {METHOD: {"w": large}}, {"step": 6}))
store.save(9, lambda place: write(place, recipe, now, {"step": 9, "large": large}))
store.save(12, lambda place: write(place, recipe, {**now, BEST: weights}, {"step": 12}), wait=True)
"""


def test_a_full_disk_does_not_end_the_process(recipe: Recipe, tmp_path: Path) -> None:
    """Neither if the weights do not fit nor if the optimizers do not. A limit of file sizes acts as the full disk."""
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    place = tmp_path / "checkpoint"
    command = [sys.executable, "-c", WRITES, str(place), str(tmp_path / "recipe.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for step in (6, 9):
        assert f"step {step} could not be written to {place}" in done.stderr
    assert Store(str(place)).steps() == [12, 3] and not list(place.glob("*.part"))
    for step in (3, 12):
        assert read_state(Store(str(place)).get(step))["step"] == step


def test_errors_of_a_remote_store_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.fs

    copy, errors = pyarrow.fs.copy_files, iter([OSError("503"), OSError("503")])

    def erring(*arguments: object) -> None:
        if (error := next(errors, None)) is not None:
            raise error
        copy(*arguments)

    monkeypatch.setattr(pyarrow.fs, "copy_files", erring)
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    store = Store(f"file://{tmp_path}/store", tmp_path / "local")
    store.save(3, fill("step 3"), wait=True)
    assert not list((tmp_path / "local").iterdir())
    found = Store(f"file://{tmp_path}/store", tmp_path / "other").newest()
    assert found == tmp_path / "other" / name_of(3) and (found / "weights").read_text() == "step 3"

    def away(*_: object) -> None:
        raise OSError("503")

    monkeypatch.setattr(pyarrow.fs, "copy_files", away)  # this does not mean that no checkpoint exists
    with pytest.raises(CheckpointError, match=r"run\.storage: .*cannot be reached \(503\)\. Run the same command again"):
        store.newest()


def test_an_unreachable_store_does_not_count_as_empty(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.fs

    def away(*_: object, **__: object) -> None:
        raise OSError("503")

    there = recipe.replace("run.storage", f"file://{tmp_path}/store")
    note = {"run": "1a2b", "recipe": json.loads(there.to_json()), "state": "training"}
    Path(recipe.run.output_dir).mkdir()
    record.write_json(tmp_path / "run" / record.NOTE, note)
    other = there.replace("run.seed", 7)
    assert Run(other).state() == "training"
    monkeypatch.setattr(pyarrow.fs, "FileSelector", away)
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    with pytest.raises(CheckpointError, match=r"cannot be reached \(503\)"):
        Run(other).state()


@pytest.mark.parametrize("form", ["{}", "file://{}"])
@pytest.mark.parametrize("storage", ["file/run", "/proc/none"])
def test_a_storage_that_cannot_be_written_is_refused_before_the_run(
    recipe: Recipe, tmp_path: Path, form: str, storage: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RecipeError, match=r"run\.storage: .*(is a file|cannot be written to)"):
        run_recipe(recipe.replace("run.storage", form.format(tmp_path / storage)))
    assert not Path(recipe.run.output_dir).exists() and (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of an empty bucket, with the options that pyarrow needs."""
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    address = "{}:{}".format(*store.get_host_and_port())
    fs.S3FileSystem(endpoint_override=address, scheme="http", region="us-east-1", allow_bucket_creation=True).create_dir(
        "runs"
    )
    yield f"s3://runs/all?endpoint_override={address}&scheme=http&region=us-east-1"
    store.stop()


def test_a_bucket_is_checked_by_an_object_that_is_removed(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unwritable_storage(bucket)
    files, _ = fs.FileSystem.from_uri(bucket)
    assert not [info for info in files.get_file_info(fs.FileSelector("runs", recursive=True)) if info.is_file]
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    with pytest.raises(CheckpointError, match=r"run\.storage: s3://others/all.* cannot be written to .*credentials"):
        refuse_unwritable_storage(bucket.replace("runs", "others", 1))


def test_a_relative_storage_is_the_same_folder_for_driver_and_workers(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(recipe.replace("run.storage", "store")).run.storage == str(tmp_path / "store")
    monkeypatch.setenv("MULTICSE_STORAGE", "there/../store")
    assert resolve(recipe).run.storage == str(tmp_path / "store")
    monkeypatch.setenv("MULTICSE_STORAGE", "s3://bucket/store")
    assert resolve(recipe).run.storage == "s3://bucket/store"
