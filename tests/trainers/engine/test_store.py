"""Checkpoints are whole or not there, on a disk and in a store that errs, and nothing of a user's is removed with them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from trainers.engine import store as module
from trainers.engine.store import KEPT, CheckpointError, Store, name_of, whole


def fill(text: str) -> module.Fill:
    def write(folder: Path) -> None:
        (folder / "weights").write_text(text)
        (folder / "recipe.json").write_text("{}")

    return write


def full(folder: Path) -> None:
    (folder / "weights").write_text("half of i")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_last_ones_are_kept_beside_a_users_files(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    (tmp_path / "thesis.txt").write_text("mine")
    for step in (3, 6):
        store.save(step, fill(f"step {step}"), wait=True)
    (tmp_path / name_of(3) / "notes.txt").write_text("mine")
    for step in (9, 12):
        store.save(step, fill(f"step {step}"))
    store.settle()
    assert KEPT == 2 and sorted(file.name for file in tmp_path.rglob("*.txt")) == ["notes.txt", "thesis.txt"]
    assert [file.read_text() for file in sorted(tmp_path.rglob("weights"))] == ["step 9", "step 12"]
    assert store.newest() == whole(tmp_path) == whole(tmp_path / name_of(12)) == tmp_path / name_of(12)
    store.clear()
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["notes.txt", "thesis.txt"]


def test_a_damaged_one_is_named_and_the_one_before_it_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    for step in (3, 6):
        store.save(step, fill(f"step {step}"), wait=True)
    (tmp_path / name_of(6) / "weights").write_text("step 7")
    assert store.newest() == tmp_path / name_of(3)
    assert f"{name_of(6)} is damaged: weights" in caplog.text
    with pytest.raises(CheckpointError, match=name_of(6)):
        store.get(6)


def test_a_full_disk_leaves_the_one_before_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(str(tmp_path))
    store.save(3, fill("step 3"), wait=True)
    with caplog.at_level(logging.ERROR):
        store.save(6, full)
        store.settle()
    assert "step 6" in caplog.text and "No space left" in caplog.text and "that of step 3 is as it was" in caplog.text
    with pytest.raises(CheckpointError, match=r"step 9 could not be written to .*run\.storage"):
        store.save(9, full, wait=True)
    assert store.newest() == tmp_path / name_of(3) and not list(tmp_path.glob("*.part"))


def test_what_a_killed_process_left_is_not_a_checkpoint(tmp_path: Path) -> None:
    part = tmp_path / f"{name_of(6)}.part"
    part.mkdir()
    (part / "weights").write_text("half of i")
    (tmp_path / name_of(9)).mkdir()  # begun in a store: files, and no manifest
    (tmp_path / name_of(9) / "weights").write_text("step 9")
    store = Store(str(tmp_path))
    assert store.newest() is None
    store.save(6, fill("step 6"), wait=True)
    assert store.newest() == tmp_path / name_of(6) and not part.exists()


def test_behind_a_url_an_erring_store_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.fs

    copy, errors = pyarrow.fs.copy_files, iter([OSError("503"), OSError("503")])

    def erring(*arguments: object) -> None:
        if (error := next(errors, None)) is not None:
            raise error
        copy(*arguments)

    monkeypatch.setattr(pyarrow.fs, "copy_files", erring)
    monkeypatch.setattr(module, "PAUSE", 0.01)
    store = Store(f"file://{tmp_path}/store", tmp_path / "local")
    store.save(3, fill("step 3"), wait=True)
    assert not list((tmp_path / "local").iterdir())
    found = Store(f"file://{tmp_path}/store", tmp_path / "other").newest()
    assert found == tmp_path / "other" / name_of(3) and (found / "weights").read_text() == "step 3"
