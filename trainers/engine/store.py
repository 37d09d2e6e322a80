"""Where the checkpoints of a run are: whole or not there, checked when read, the last ones kept."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from multicse.data.redact import redacted
from multicse.data.remote import patiently

log = logging.getLogger(__name__)

KEPT = 2
"""Checkpoints that are kept; each has the best weights so far beside those of its step."""
MANIFEST = "manifest.json"
"""Name -> SHA-256 of the other files of a checkpoint. It is written last: what has none is not whole."""
PART = ".part"
"""How the folder of a checkpoint ends that is being written or fetched."""
OTHER = "rank-"
"""How a folder begins into which another rank than the first fetches a checkpoint; its number follows."""

Fill = Callable[[Path], None]
"""Writes the files of a checkpoint into a folder that is there."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be kept or read; the text says where, why and what to do, and no URL's password."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


class Store:
    """The checkpoints of a run, ``step-00000012`` and the like, below a folder or a URL.

    A checkpoint is written beside its place and moved there in one step. Behind a URL nothing can be moved: there its
    manifest, which arrives last, says that it is whole.

    place: a folder, or any URL that pyarrow takes (``s3://…``). local: with a URL, a folder of this machine's disk for what
    is on its way.
    """

    def __init__(self, place: str, local: Path | None = None) -> None:
        self.place, self.remote = place, "://" in place
        self.local = local if local and self.remote else Path(place)
        if self.remote:
            import pyarrow.fs  # here: it takes a while, and a folder needs it not

            try:
                self._files, self._root = pyarrow.fs.FileSystem.from_uri(place)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"run.storage={place!r} cannot be used: {error}") from None
            self._disk = pyarrow.fs.LocalFileSystem()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._last: int | None = None
        self._fetched: Path | None = None

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, the newest first, whole or not.

        Raises CheckpointError for a store that does not answer: it may hold some.
        """
        if self.remote:
            from pyarrow.fs import FileSelector, FileType

            try:
                listed = patiently(lambda: self._files.get_file_info(FileSelector(self._root, allow_not_found=True)))
            except OSError as error:
                raise self._away(error) from None
            names = [info.base_name for info in listed if info.type == FileType.Directory]
        else:
            names = [folder.name for folder in self.local.glob("step-*") if folder.is_dir()]
        return sorted((step_of(name) for name in names if re.fullmatch(r"step-\d+", name)), reverse=True)

    def newest(self) -> Path | None:
        """The folder of the newest whole checkpoint, fetched when it is behind a URL; none where there is none.

        One whose files are not those of its manifest is named in the log, and the one before it is taken. Raises
        CheckpointError for a store that does not answer: what it holds may be whole.
        """
        try:
            for step in self.steps():
                try:
                    return self.get(step)
                except (FileNotFoundError, ValueError) as error:
                    log.warning("checkpoint of step %d in %s is left out: %s", step, redacted(self.place), error)
        except OSError as error:
            raise self._away(error) from None
        return None

    def _away(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"run.storage: {self.place} does not answer ({error}); the same command goes on when it does. This machine "
            "needs credentials for it (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)"
        )

    def get(self, step: int) -> Path:
        """The folder of a checkpoint, fetched when it is behind a URL. Raises CheckpointError for one that is not whole."""
        folder = self.local / name_of(step)
        if self.remote:
            if self._fetched is not None:
                remove(self._fetched)
            self._fetch(step, folder)
            self._fetched = folder
        verify(folder)
        self._last = step
        return folder

    def save(self, step: int, fill: Fill, wait: bool = False) -> None:
        """Write a checkpoint in a thread. What fails is told in the log and leaves the one before as it is.

        wait: return when it is there. Raises CheckpointError where it could not be written.
        """
        self.settle()
        self._thread = threading.Thread(target=self._attempt, args=(step, fill), name="checkpoint")
        self._thread.start()
        if wait:
            self.settle()
            if self._error is not None:
                raise CheckpointError(self._said(step)) from self._error

    def settle(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _attempt(self, step: int, fill: Fill) -> None:
        try:
            self._write(step, fill)
            self._error, self._last = None, step
        except Exception as error:  # of the disk, the store, safetensors, torch: training does not depend on them
            self._error = error
            log.error("%s. Training goes on.", redacted(self._said(step)))

    def _said(self, step: int) -> str:
        before = "there is none before it" if self._last is None else f"that of step {self._last} is as it was"
        return (
            f"the checkpoint of step {step} could not be written to {self.place} ({self._error}); {before}. "
            "Make room, or give another run.storage or run.output"
        )

    def _write(self, step: int, fill: Fill) -> None:
        self.tidy()
        part = self.local / f"{name_of(step)}{PART}"
        part.mkdir(parents=True)
        try:
            fill(part)
            (part / MANIFEST).write_text(json.dumps({file.name: _hash(file) for file in sorted(part.iterdir())}))
            if self.remote:
                patiently(lambda: self._send(part, step))
            else:
                remove(self.local / name_of(step))  # one that was not whole
                part.rename(self.local / name_of(step))
        finally:
            shutil.rmtree(part, ignore_errors=True)
        steps = self.steps()
        for other in steps[: steps.index(step)] + steps[steps.index(step) + KEPT :]:  # later ones are not whole
            self._remove(other)

    def _send(self, part: Path, step: int) -> None:
        from pyarrow.fs import copy_files

        there = f"{self._root}/{name_of(step)}"
        self._files.create_dir(there)
        names = sorted(file.name for file in part.iterdir())
        for name in [*(name for name in names if name != MANIFEST), MANIFEST]:
            copy_files(str(part / name), f"{there}/{name}", self._disk, self._files)

    def _fetch(self, step: int, folder: Path) -> None:
        there = f"{self._root}/{name_of(step)}"
        names = json.loads(patiently(lambda: self._content(f"{there}/{MANIFEST}")))
        part = folder.with_name(f"{folder.name}{PART}")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name in map(_plain, [*names, MANIFEST]):
            patiently(partial(self._copy, f"{there}/{name}", part / name))
        remove(folder)
        part.rename(folder)

    def _copy(self, place: str, file: Path) -> None:
        from pyarrow.fs import copy_files

        copy_files(place, str(file), self._files, self._disk)

    def _content(self, place: str) -> bytes:
        with self._files.open_input_stream(place) as file:
            return bytes(file.read())

    def tidy(self) -> None:
        """Remove what a killed process left of a checkpoint on its way."""
        ours = rf"step-\d+{re.escape(PART)}|{OTHER}\d+"
        for part in self.local.glob("*-*"):
            if re.fullmatch(ours, part.name):
                shutil.rmtree(part, ignore_errors=True)

    def clear(self) -> None:
        """Remove every checkpoint, and of a place in a folder nothing else."""
        self.tidy()
        for step in self.steps():
            self._remove(step)

    def _remove(self, step: int) -> None:
        if self.remote:
            self._files.delete_dir(f"{self._root}/{name_of(step)}")
        else:
            remove(self.local / name_of(step))


def whole(folder: Path) -> Path:
    """The newest checkpoint of a run's output or of its folder ``checkpoint``; `folder` where it is none of these.

    Raises CheckpointError for a checkpoint's own folder whose files are not those of its manifest.
    """
    for place in (folder, folder / "checkpoint"):
        if place.is_dir() and (found := Store(str(place)).newest()):
            return found
    if (folder / MANIFEST).is_file():
        verify(folder)
    return folder


def name_of(step: int) -> str:
    """Of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """Of the name of a checkpoint's folder."""
    return int(name.removeprefix("step-"))


def verify(folder: Path) -> None:
    """Raise CheckpointError for a checkpoint whose files are not those of its manifest."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
        wrong = [name for name, digest in listed.items() if _hash(folder / _plain(name)) != digest]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is not whole: {error}") from None
    if wrong:
        raise CheckpointError(f"{folder} is damaged: {', '.join(wrong)} is not what was written")


def remove(folder: Path) -> None:
    """Remove the files of a checkpoint and its folder, unless something else is in it."""
    try:
        names = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        names = {}
    for name in [*names, MANIFEST]:
        (folder / _plain(name)).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _plain(name: str) -> str:
    """A name in a manifest, which may be a stranger's, without a way out of the folder."""
    return Path(name).name


def _hash(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
