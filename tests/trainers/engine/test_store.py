"""Checkpoints are complete or do not exist, on disk and in an unreliable store; users' files are never removed."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
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


def fill(text: str) -> WriteFiles:
    def write(folder: Path) -> None:
        (folder / "weights").write_text(text)
        (folder / "recipe.json").write_text("{}")

    return write


def full(folder: Path) -> None:
    (folder / "weights").write_text("half of i")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_checkpoints_and_users_files_are_kept(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "rank-notes").mkdir()
    (tmp_path / "rank-notes" / "thesis.txt").write_text("mine")
    for step in (3, 6):
        store.save(step, fill(f"step {step}"), wait=True)
    (tmp_path / name_of(3) / "notes.txt").write_text("mine")
    for step in (9, 12):
        store.save(step, fill(f"step {step}"))
    store.settle()
    assert KEPT == 2 and sorted(file.name for file in tmp_path.rglob("*.txt")) == ["notes.txt", "thesis.txt"]
    assert [file.read_text() for file in sorted(tmp_path.rglob("weights"))] == ["step 9", "step 12"]
    newest = tmp_path / name_of(12)
    assert store.newest() == latest_checkpoint(tmp_path) == latest_checkpoint(newest) == newest
    store.clear()
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["notes.txt", "thesis.txt"]


def test_a_damaged_checkpoint_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    for step in (3, 6):
        store.save(step, fill(f"step {step}"), wait=True)
    (tmp_path / name_of(6) / "weights").write_text("step 7")
    assert store.newest() == tmp_path / name_of(3)
    assert f"{name_of(6)} is damaged: weights" in caplog.text
    for read in (lambda: store.get(6), lambda: latest_checkpoint(tmp_path / name_of(6))):
        with pytest.raises(CheckpointError, match=name_of(6)):
            read()


def test_permanent_checkpoints_stay_unless_they_are_meant(tmp_path: Path) -> None:
    store = Store(str(tmp_path), keep_every=6)
    for step in (3, 6, 9):
        store.save(step, fill(f"step {step}"), wait=True)
    store.clear(permanent=False)
    assert store.steps() == [6]
    store.clear()
    assert store.steps() == []


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    Store(str(tmp_path), run="one").save(3, fill("step 3"), wait=True)
    for run in ("one", None):
        assert Store(str(tmp_path), run=run).get(3) == tmp_path / name_of(3)
    with pytest.raises(CheckpointError, match=r"another run \(one\)"):
        Store(str(tmp_path), run="two").get(3)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_checkpoint_is_written_beside_other_files_in_its_folder(tmp_path: Path, form: str) -> None:
    """A user's file, or the files of a checkpoint whose manifest was lost, which may be a user's too."""
    folder = tmp_path / "store" / name_of(3)
    folder.mkdir(parents=True)
    for name, text in {"thesis.txt": "mine", "weights": "of a user", "manifest.json": ""}.items():
        (folder / name).write_text(text)
    store = Store(form.format(tmp_path / "store"), tmp_path / "local", run="this")
    store.save(3, fill("step 3"), wait=True)
    newest = store.newest()
    assert newest is not None and (newest / "weights").read_text() == "step 3"
    assert (folder / "thesis.txt").read_text() == "mine" and not list(tmp_path.rglob("*.part"))
    assert [file.read_text() for file in folder.glob("weights.before*")] == ["of a user"]


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


def test_files_of_a_killed_process_are_not_a_checkpoint(tmp_path: Path) -> None:
    part = tmp_path / f"{name_of(6)}.part"
    part.mkdir()
    (part / "weights").write_text("half of i")
    (tmp_path / name_of(9)).mkdir()  # started in a remote store: files without a manifest
    (tmp_path / name_of(9) / "weights").write_text("step 9")
    store = Store(str(tmp_path))
    assert store.newest() is None
    store.save(6, fill("step 6"), wait=True)
    assert store.newest() == tmp_path / name_of(6) and not part.exists()


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
