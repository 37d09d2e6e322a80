"""Store of a run's checkpoints: the folder or URL with the latest ones, which are verified when they are read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from pyarrow import fs

from multicse.data.errors import redacted
from multicse.data.remote import retry
from multicse.trainers.engine.record import CHECKPOINT, RECIPE
from multicse.trainers.jobs import refuse_unwritable

log = logging.getLogger(__name__)

KEPT = 2
"""Number of latest checkpoints that are kept; permanent ones before them are kept as well."""
MANIFEST = "manifest.json"
"""SHA-256 of the other files of a checkpoint by name, the ID of its run, and whether it is permanent (`Written`)."""
OWNER = "owner.json"
"""File of a store that names the run that it belongs to (`Owner`)."""
PART = ".part"
"""Suffix of the folder of a checkpoint that is being written."""
CREDENTIALS = "S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws"
"""Where credentials of a store are searched, for errors."""
NODE_FOLDER = "node-"
"""Prefix of the download folder of a node other than the first."""

WriteFiles = Callable[[Path], None]
"""Function that writes the files of a checkpoint into an existing folder."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read. The message is redacted: passwords in URLs are removed."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


class Written(NamedTuple):
    """Content of the manifest of a checkpoint."""

    files: dict[str, str]
    """SHA-256 by file name."""
    run: str | None
    """ID of the run that wrote it. None: of a trial of a sweep."""
    permanent: bool
    """Only ``--run.overwrite`` deletes it."""


class Owner(NamedTuple):
    """The run to which the checkpoints of a store belong."""

    run: str | None
    """Its ID. None: of a trial of a sweep, or unknown."""
    output: str
    """Its output folder."""
    host: str
    """Machine of this folder."""
    recipe: dict[str, Any] | None
    """Its recipe."""


class Store:
    """Checkpoints of a run, ``step-00000012`` and so on, in a folder or at a URL.

    A checkpoint is first written to a temporary folder, which is then renamed, or copied to the URL. It is complete if all
    files match its manifest. Only checkpoints with the run's ID, or without one as in trials, are read or removed.

    Args:
        place: Folder, or any URL that pyarrow supports (``s3://…``).
        local: Local folder for uploads and downloads, if `place` is a URL.
        keep_every: Checkpoints of all steps that it divides are permanent. Permanent ones and the latest `KEPT` are kept.
        run: ID of the run. If None, checkpoints of every run are read, and those without an ID removed.
    """

    def __init__(self, place: str, local: Path | None = None, keep_every: int | None = None, run: str | None = None) -> None:
        self.place, self.remote, self.keep_every, self.run = place, "://" in place, keep_every, run
        self.local = local if local and self.remote else Path(place)
        self.saved: int | None = None
        """Step of the latest checkpoint that this process wrote."""
        self._files: fs.FileSystem = fs.LocalFileSystem()
        self._root: str = os.path.abspath(place)
        if self.remote:
            self._files, self._root = opened(place)
        self._known: dict[int, Written] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._error: CheckpointError | None = None

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self._root.rstrip("/").rpartition("/")[2]

    @property
    def trouble(self) -> str | None:
        """Text for the progress line while checkpoints cannot be written, otherwise None."""
        if self._error is None:
            return None
        return "NO CHECKPOINT could be written" + ("" if self.saved is None else f" since step {self.saved}")

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, complete or not, the latest first."""
        try:
            found = retry(lambda: self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True)))
        except OSError as error:
            raise self._unreachable(error) from None
        names = [info.base_name for info in found if info.type == fs.FileType.Directory]
        return sorted((step_of(name) for name in names if re.fullmatch(r"step-\d+", name)), reverse=True)

    def newest(self) -> Path | None:
        """Return a local folder with the latest complete checkpoint, or None; others are logged and skipped.

        Raises:
            CheckpointError: If the store cannot be reached, since it may contain a complete checkpoint.
        """
        try:
            for step in self.steps():
                try:
                    return self.get(step)
                except (FileNotFoundError, ValueError) as error:
                    log.warning("The checkpoint of step %d in %s is skipped: %s", step, redacted(self.place), error)
        except OSError as error:
            raise self._unreachable(error) from None
        return None

    def get(self, step: int) -> Path:
        """Return a local folder with the checkpoint of a step; remote checkpoints are downloaded.

        Raises:
            CheckpointError: If it is incomplete, or of another run.
        """
        folder = self.local / name_of(step)
        if self.remote:
            there, here = self.steps(), Store(str(self.local), run=self.run)
            for other, written in here.own():  # downloaded before
                if other in there or not written.permanent:
                    here.remove(other)
            listed = _parsed(self._text(f"{name_of(step)}/{MANIFEST}")).files
            here.make_way(step, [MANIFEST, *listed])
            folder.mkdir(parents=True, exist_ok=True)
            for name in (MANIFEST, *listed):
                self._fetch(step, _file_name(name), folder)
        verify_files(folder)
        run = _parsed((folder / MANIFEST).read_text()).run
        if self.run is not None and run not in (None, self.run):
            raise CheckpointError(f"{folder} belongs to another run ({run})")
        return folder

    def fetch(self, name: str, folder: Path) -> None:
        """Copy a file of the latest checkpoint that contains it into a folder; nothing if there is none."""
        for step in self.steps():
            with contextlib.suppress(OSError, ValueError), tempfile.TemporaryDirectory() as place:
                self._fetch(step, name, Path(place))
                folder.mkdir(parents=True, exist_ok=True)
                shutil.move(Path(place) / name, folder / name)
                return

    def save(self, step: int, write_files: WriteFiles, wait: bool = False) -> None:
        """Write a checkpoint in a thread. Errors are logged; earlier checkpoints remain unchanged.

        Args:
            step: Step of the checkpoint.
            write_files: Writes its files into a folder.
            wait: Wait until the checkpoint is complete, and raise CheckpointError if it could not be written.
        """
        self.settle()
        # One thread for all checkpoints: glibc gives each thread its own heap, which keeps what a checkpoint took.
        self._writer = self._writer or ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._writer.submit(self._attempt, step, write_files)
        if wait:
            self.settle()
            if self._error is not None:
                raise self._error

    def settle(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def tidy(self) -> None:
        """Remove the unfinished checkpoints and downloads of a killed process."""
        ours = rf"step-\d+{re.escape(PART)}|{NODE_FOLDER}\d+"
        for part in self.local.glob("*-*"):
            if re.fullmatch(ours, part.name):
                shutil.rmtree(part, ignore_errors=True)

    def owner(self) -> Owner | None:
        """Return the run that the checkpoints belong to, or None if there are none and no run has claimed the store.

        If the store has no record of it, it is read from the latest checkpoint.
        """
        try:
            with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
                content = json.loads(self._text(OWNER))
                return Owner(content["run"], content["output"], content["host"], content["recipe"])
            steps = self.steps()
            for step in steps:
                with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
                    recipe = json.loads(self._text(f"{name_of(step)}/{RECIPE}"))
                    written = self._read_manifest(step)
                    return Owner(written.run, recipe["run"]["output_dir"], "", recipe)
        except OSError as error:
            raise self._unreachable(error) from None
        return Owner(None, "", "", None) if steps else None

    def claim(self, output: str, recipe: dict[str, Any]) -> None:
        """Record that the store belongs to the run `self.run` of a recipe with this output folder."""
        owner = json.dumps({"run": self.run, "output": output, "host": socket.gethostname(), "recipe": recipe})

        def write() -> None:
            self._files.create_dir(self._root)
            with self._files.open_output_stream(f"{self._root}/{OWNER}") as stream:
                stream.write(owner.encode())

        try:
            retry(write)
        except OSError as error:
            raise self._unreachable(error) from None

    def written(self, step: int) -> Written | None:
        """Return the content of the manifest of a step, or None if it cannot be read."""
        if step not in self._known:
            try:
                self._known[step] = self._read_manifest(step)
            except (FileNotFoundError, ValueError):
                return None
            except OSError as error:
                raise self._unreachable(error) from None
        return self._known[step]

    def _read_manifest(self, step: int) -> Written:
        return _parsed(self._text(f"{name_of(step)}/{MANIFEST}"))

    def own(self) -> list[tuple[int, Written]]:
        """Return the steps and manifests of the run's checkpoints, and of those without an ID, the latest first."""
        found = [(step, self.written(step)) for step in self.steps()]
        return [(step, written) for step, written in found if written and written.run in (None, self.run)]

    def remove(self, step: int) -> None:
        """Remove the files of a checkpoint, and its folder if it contains nothing else."""
        folder, written = f"{self._root}/{name_of(step)}", self.written(step)
        self._known.pop(step, None)
        for name in [*written.files, MANIFEST] if written else ():
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(f"{folder}/{_file_name(name)}")
        if not self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_dir(folder)

    def clear(self, runs: Collection[str] = (), permanent: bool = True) -> None:
        """Remove the checkpoints of this run and of other runs by ID, and also permanent ones if `permanent`."""
        self.tidy()
        for step in self.steps():
            written = self.written(step)
            if written and written.run in (None, self.run, *runs) and (permanent or not written.permanent):
                self.remove(step)

    def make_way(self, step: int, names: Collection[str]) -> None:
        """Remove the run's own checkpoint of a step, and rename other files of these names in its folder."""
        if (written := self.written(step)) and written.run in (None, self.run):
            self.remove(step)
        listing = fs.FileSelector(f"{self._root}/{name_of(step)}", allow_not_found=True)
        for info in self._files.get_file_info(listing):
            if info.base_name in names:
                self._files.move(info.path, f"{info.path}.before-{uuid4().hex[:8]}")
                log.warning("%s was not written by this run; it is renamed", info.path)

    def _attempt(self, step: int, write_files: WriteFiles) -> None:
        try:
            self._write(step, write_files)
            self.saved, self._error = step, None
        except Exception as error:  # disk, store, safetensors, torch: none of them stops training
            self._error = CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.place} ({error}); earlier checkpoints "
                "are unchanged. Free some space, or set another run.storage or run.output_dir"
            )
            log.error("%s. Training continues", self._error)

    def _unreachable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"run.storage: {self.place} cannot be reached ({error}). Run the same command again when it can. This machine "
            f"needs its credentials ({CREDENTIALS})"
        )

    def _write(self, step: int, write_files: WriteFiles) -> None:
        self.tidy()
        part = self.local / f"{name_of(step)}{PART}"
        part.mkdir(parents=True)
        before = self.written(step)  # of an attempt that continued from an earlier step, since this one was damaged
        permanent = bool((before and before.permanent) or (self.keep_every and step % self.keep_every == 0))
        try:
            write_files(part)
            written = Written({file.name: _hash(file) for file in sorted(part.iterdir())}, self.run, permanent)
            (part / MANIFEST).write_text(json.dumps(written._asdict()))
            self.make_way(step, [MANIFEST, *written.files])
            if self.remote:
                retry(lambda: self._send(part, step))
            else:
                folder = self.local / name_of(step)
                if not folder.exists():
                    part.rename(folder)
                else:  # other files of the user stay in its folder
                    for file in _manifest_first(part):
                        os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self._known[step] = written
        own = self.own()
        kept = [other for other, _ in own if other <= step][:KEPT]
        for other, one in own:  # later ones are incomplete
            if other not in kept and not one.permanent:
                self.remove(other)

    def _send(self, part: Path, step: int) -> None:
        there = f"{self._root}/{name_of(step)}"
        self._files.create_dir(there)
        for file in _manifest_first(part):
            fs.copy_files(str(file), f"{there}/{file.name}", fs.LocalFileSystem(), self._files)

    def _fetch(self, step: int, name: str, folder: Path) -> None:
        there = f"{self._root}/{name_of(step)}/{name}"
        retry(lambda: fs.copy_files(there, str(folder / name), self._files, fs.LocalFileSystem()))

    def _text(self, name: str) -> str:
        def read() -> str:
            with self._files.open_input_stream(f"{self._root}/{name}") as stream:
                return str(stream.read().decode())

        return retry(read)


def opened(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it. Raises CheckpointError if pyarrow does not support it."""
    try:
        files, path = fs.FileSystem.from_uri(url)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"run.storage={url!r} cannot be used: {error}") from None
    return files, path


def refuse_unwritable_storage(storage: str) -> None:
    """Raise ValueError if ``run.storage`` cannot be written to. It writes a small file or object, and removes it."""
    files, root = opened(storage) if "://" in storage else (fs.LocalFileSystem(), storage)
    if isinstance(files, fs.LocalFileSystem):
        refuse_unwritable("run.storage", Path(root))
        return
    probe = f"{root.rstrip('/')}/.writable-{uuid4().hex}"

    def write_and_remove() -> None:
        with files.open_output_stream(probe) as stream:
            stream.write(b"multicse")
        files.delete_file(probe)

    try:
        retry(write_and_remove)
    except OSError as error:
        raise CheckpointError(
            f"run.storage: {storage} cannot be written to ({error}). Check its address, and that this machine has its "
            f"credentials ({CREDENTIALS}), or set another run.storage"
        ) from None


def name_of(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """Return the step of a checkpoint's folder."""
    return int(name.removeprefix("step-"))


def rescue(step: int, write_files: WriteFiles, output: Path, run: str | None) -> Path:
    """Write the last checkpoint, which its store did not take, to another folder, so that the trained model is not lost.

    Args:
        step: Step of the checkpoint.
        write_files: Writes its files into a folder.
        output: Output folder of the run, which is tried first; then the system's folder for temporary files.
        run: ID of the run.

    Raises:
        CheckpointError: If it cannot be written there either.
    """
    folder, elsewhere = output / CHECKPOINT, Path(tempfile.gettempdir()) / f"multicse-{uuid4().hex[:8]}"
    try:
        Store(str(folder), run=run).save(step, write_files, wait=True)
    except CheckpointError:
        folder = elsewhere
        Store(str(folder), run=run).save(step, write_files, wait=True)
    log.error("The last checkpoint was written to %s instead; the model is exported from it", folder / name_of(step))
    return folder / name_of(step)


def verify_files(folder: Path) -> None:
    """Raise CheckpointError if a checkpoint does not match its manifest."""
    try:
        listed = _parsed((folder / MANIFEST).read_text()).files
        wrong = [name for name, digest in listed.items() if _hash(folder / _file_name(name)) != digest]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is incomplete: {error}") from None
    if wrong:
        raise CheckpointError(f"{folder} is damaged: {', '.join(wrong)} does not match the manifest")


def remove(folder: Path) -> None:
    """Remove the files of a downloaded checkpoint, and its folder if it contains nothing else."""
    Store(str(folder.parent)).remove(step_of(folder.name))


def _parsed(manifest: str) -> Written:
    """Return the content of a manifest. Raises ValueError if it is damaged."""
    content = json.loads(manifest)
    try:
        return Written(dict(content["files"]), content["run"], bool(content["permanent"]))
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the manifest is damaged: {error}") from None


def _manifest_first(folder: Path) -> list[Path]:
    """Return the files of a checkpoint; the manifest is sent first, so that it names whatever a killed process sent."""
    return sorted(folder.iterdir(), key=lambda file: file.name != MANIFEST)


def _file_name(name: str) -> str:
    """Return the last part of a name in a manifest, so that an untrusted manifest cannot leave the folder."""
    return Path(name).name


def _hash(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
