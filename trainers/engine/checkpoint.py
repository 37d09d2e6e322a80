"""Checkpoints of a run: the files in one, and the folder or URL that keeps the last ones, complete and checked when read."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pyarrow import fs
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from multicse.data.errors import redacted
from multicse.data.order import seed_of
from multicse.data.remote import retry
from multicse.evaluation.encoders.encoder import ModuleEncoder
from multicse.trainers.engine.sharding import full_tensors, local_part
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

METHOD, BEST, STATE, RECIPE = "method.safetensors", "best.safetensors", "state.pt", "recipe.json"
"""Files of a checkpoint's folder: the weights now, those of the best evaluation if they are kept, the rest, the recipe."""
AVERAGE = "average.safetensors"
"""The moving average of the weights, where there is one."""
KEPT = 2
"""Checkpoints that are kept; each has the best weights so far beside those of its step."""
MANIFEST = "manifest.json"
"""Name -> SHA-256 of the other files of a checkpoint. It is written last: a checkpoint without it is incomplete."""
PART = ".part"
"""Suffix of the folder of a checkpoint that is being written or downloaded."""
NODE_FOLDER = "node-"
"""Prefix of the folder into which a node other than the first downloads a checkpoint; its number follows."""

WriteFiles = Callable[[Path], None]
"""Writes the files of a checkpoint into an existing folder."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be kept or read. The text names the place, the reason and a fix, without a URL's password."""

    def __init__(self, text: str) -> None:
        super().__init__(redacted(text))


def build_method(recipe: Recipe, checkpoint: Path | None = None) -> Method:
    """The recipe's method on its encoder, initialised from the recipe's seed."""
    torch.manual_seed(seed_of(recipe.run.seed, "init") % 2**63)
    beside = [checkpoint.resolve().parent] if checkpoint else []
    if checkpoint and checkpoint.name.startswith("step-"):
        beside.append(beside[0].parent)
    method = recipe.method.build(recipe.encoder.load([*beside, Path(recipe.run.output_dir)]))
    if getattr(method.sentence_encoder, "projected", False):
        log.warning("encoder.path: its projection into another modality's space is left out")
    method.matryoshka, method.vectors = recipe.run.matryoshka, recipe.method.vectors()
    return method


def load_method(checkpoint: Path | str, recipe: Recipe | None = None) -> Method:
    """The method of a checkpoint with its best weights. Raises ValueError for a folder that is no checkpoint.

    checkpoint: its folder, or that of all of a run, or the run's output: then the newest. recipe: none: the checkpoint's
    own, whose paths are those of the machine that wrote it.
    """
    folder = latest_checkpoint(Path(checkpoint))
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} is no checkpoint: it has no recipe.json. Give the folder of one checkpoint of a run.")
    if (weights := next((folder / name for name in (BEST, AVERAGE, METHOD) if (folder / name).exists()), None)) is None:
        raise ValueError(f"{folder} holds no whole checkpoint; those of a run with run.storage are there")
    if recipe is None:
        try:
            recipe = Recipe.from_json((folder / RECIPE).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / RECIPE} is damaged, or of another version: {error}") from None
    method = build_method(recipe, folder)
    load_weights(method, weights)
    return method.eval()


def module_encoder(
    method: Method, device: torch.device, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> ModuleEncoder:
    """The method's sentence encoder as evaluation takes it: for texts, and for pictures or sounds where it has a tower."""
    encoder: Any = method.sentence_encoder
    return ModuleEncoder(
        encoder.tokenize,
        encoder,
        device,
        module=method,
        others={modality: encoder.encode_items for modality in encoder.modalities if modality != "text"},
        logit_scale=encoder.logit_factor,
        autocast=autocast,
    )


def weights_of(method: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights on the CPU, as safetensors takes them."""
    return {name: full_tensors(tensor).detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()}


def set_weights(method: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load whole weights, whichever part of them this worker has."""
    own = method.state_dict()
    method.load_state_dict(
        {name: local_part(tensor, own[name]) if name in own else tensor for name, tensor in weights.items()}
    )


def load_weights(method: nn.Module, file: Path) -> None:
    try:
        set_weights(method, load_file(file))
    except (ValueError, RuntimeError, SafetensorError, OSError) as error:  # not trained with these, or a damaged file
        raise ValueError(f"{file} cannot be used: {error}") from None


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """The same with copies of all tensors on the CPU, which training does not change."""

    def copy(x: Any) -> Any:
        return full_tensors(x).detach().to("cpu", copy=True) if isinstance(x, Tensor) else x

    copies: dict[str, Any] = tree_map(copy, state)
    return copies


def write(folder: Path, recipe: Recipe, weights: dict[str, dict[str, Tensor] | None], state: dict[str, Any]) -> None:
    """Write a checkpoint into a folder. weights: by file. state: what `torch.load` reads without unpickling code."""
    for name, tensors in weights.items():
        if tensors is not None:
            save_file(tensors, folder / name)
    buffer = io.BytesIO()  # torch's own writer ends the process where a disk is full
    torch.save(state, buffer)
    (folder / STATE).write_bytes(buffer.getbuffer())
    (folder / RECIPE).write_text(recipe.to_json())


def read_state(folder: Path) -> dict[str, Any]:
    """What a checkpoint keeps beside weights and recipe. Raises ValueError for a damaged file."""
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, EOFError, UnpicklingError whose text advises to run what is in it, ...
        raise ValueError(
            f"{folder / STATE} is damaged ({type(error).__name__}); take an earlier checkpoint, or train again"
        ) from None
    return state


class Store:
    """The checkpoints of a run, ``step-00000012`` and so on, in a folder or behind a URL.

    A checkpoint is first written to a folder of this machine. In a folder it is then renamed, which is one step. Behind a
    URL there is no such step: the files are copied, and the manifest, which is last, marks the checkpoint as complete.

    Args:
        place: Folder, or any URL that pyarrow takes (``s3://…``).
        local: With a URL, a folder of this machine's disk for checkpoints on their way.
    """

    def __init__(self, place: str, local: Path | None = None) -> None:
        self.place, self.remote = place, "://" in place
        self.local = local if local and self.remote else Path(place)
        self._files: fs.FileSystem = fs.LocalFileSystem()
        self._root: str = os.path.abspath(place)
        if self.remote:
            try:
                self._files, self._root = fs.FileSystem.from_uri(place)
            except (OSError, ValueError) as error:
                raise CheckpointError(f"run.storage={place!r} cannot be used: {error}") from None
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, complete or not, the latest first.

        Raises:
            CheckpointError: If the store does not answer, since it may contain some.
        """
        try:
            found = retry(lambda: self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True)))
        except OSError as error:
            raise self._unreachable(error) from None
        names = [info.base_name for info in found if info.type == fs.FileType.Directory]
        return sorted((step_of(name) for name in names if re.fullmatch(r"step-\d+", name)), reverse=True)

    def newest(self) -> Path | None:
        """Return a local folder with the latest complete checkpoint, or None if there is none.

        Checkpoints behind a URL are downloaded. One that does not match its manifest is named in the log, and the one before
        it is taken.

        Raises:
            CheckpointError: If the store does not answer, since its checkpoints may be complete.
        """
        try:
            for step in self.steps():
                try:
                    return self.get(step)
                except (FileNotFoundError, ValueError) as error:
                    log.warning("checkpoint of step %d in %s is left out: %s", step, redacted(self.place), error)
        except OSError as error:
            raise self._unreachable(error) from None
        return None

    def get(self, step: int) -> Path:
        """Return a local folder with the checkpoint of a step, downloaded if it is behind a URL.

        Raises:
            CheckpointError: If it is incomplete.
        """
        folder = self.local / name_of(step)
        if self.remote:
            for other in self.local.glob("step-????????"):  # downloaded before
                remove(other)
            folder.mkdir(parents=True, exist_ok=True)
            self._fetch(step, MANIFEST, folder)
            for name in json.loads((folder / MANIFEST).read_text()):
                self._fetch(step, _file_name(name), folder)
        verify(folder)
        return folder

    def save(self, step: int, write_files: WriteFiles, wait: bool = False) -> None:
        """Write a checkpoint in a thread. Errors are logged and leave the checkpoints before as they are.

        Args:
            step: Step of the checkpoint.
            write_files: Writes the files of the checkpoint into a folder.
            wait: Return when the checkpoint is complete.

        Raises:
            CheckpointError: If `wait` is set and it could not be written.
        """
        self.settle()
        self._thread = threading.Thread(target=self._attempt, args=(step, write_files), name="checkpoint")
        self._thread.start()
        if wait:
            self.settle()
            if self._error is not None:
                raise self._error

    def settle(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def tidy(self) -> None:
        """Remove the unfinished checkpoints and downloads of a killed process."""
        ours = rf"step-\d+{re.escape(PART)}|{NODE_FOLDER}\d+"
        for part in self.local.glob("*-*"):
            if re.fullmatch(ours, part.name):
                shutil.rmtree(part, ignore_errors=True)

    def clear(self) -> None:
        """Remove every checkpoint, and nothing else in their folder."""
        self.tidy()
        for step in self.steps():
            self._remove(step)

    def _attempt(self, step: int, write_files: WriteFiles) -> None:
        self._error = None
        try:
            self._write(step, write_files)
        except Exception as error:  # of the disk, the store, safetensors, torch: training does not depend on them
            self._error = CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.place} ({error}); those before are as they "
                "were. Make room, or give another run.storage or run.output_dir"
            )
            log.error("%s. Training continues.", self._error)

    def _unreachable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"run.storage: {self.place} does not answer ({error}); the same command goes on when it does. This machine "
            "needs credentials for it (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws)"
        )

    def _write(self, step: int, write_files: WriteFiles) -> None:
        self.tidy()
        part = self.local / f"{name_of(step)}{PART}"
        part.mkdir(parents=True)
        try:
            write_files(part)
            (part / MANIFEST).write_text(json.dumps({file.name: _hash(file) for file in sorted(part.iterdir())}))
            if self.remote:
                retry(lambda: self._send(part, step))
            else:
                self._remove(step)  # an incomplete one
                part.rename(self.local / name_of(step))
        finally:
            shutil.rmtree(part, ignore_errors=True)
        steps = self.steps()
        for other in steps[: steps.index(step)] + steps[steps.index(step) + KEPT :]:  # later ones are incomplete
            self._remove(other)

    def _send(self, part: Path, step: int) -> None:
        there = f"{self._root}/{name_of(step)}"
        self._files.create_dir(there)
        for file in sorted(part.iterdir(), key=lambda file: file.name == MANIFEST):
            fs.copy_files(str(file), f"{there}/{file.name}", fs.LocalFileSystem(), self._files)

    def _fetch(self, step: int, name: str, folder: Path) -> None:
        there = f"{self._root}/{name_of(step)}/{name}"
        retry(lambda: fs.copy_files(there, str(folder / name), self._files, fs.LocalFileSystem()))

    def _remove(self, step: int) -> None:
        if self.remote:
            self._files.delete_dir(f"{self._root}/{name_of(step)}")
        else:
            remove(self.local / name_of(step))


def latest_checkpoint(folder: Path) -> Path:
    """Return the latest checkpoint of a run's output or of its folder ``checkpoint``; `folder` if it is neither.

    Raises:
        CheckpointError: If `folder` is a checkpoint that does not match its manifest.
    """
    for place in (folder, folder / "checkpoint"):
        if place.is_dir() and (found := Store(str(place)).newest()):
            return found
    if (folder / MANIFEST).is_file():
        verify(folder)
    return folder


def name_of(step: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"step-{step:08d}"


def step_of(name: str) -> int:
    """Return the step of a checkpoint's folder."""
    return int(name.removeprefix("step-"))


def verify(folder: Path) -> None:
    """Raise CheckpointError for a checkpoint that does not match its manifest."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
        wrong = [name for name, digest in listed.items() if _hash(folder / _file_name(name)) != digest]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is not whole: {error}") from None
    if wrong:
        raise CheckpointError(f"{folder} is damaged: {', '.join(wrong)} is not what was written")


def remove(folder: Path) -> None:
    """Remove the files of a checkpoint, and its folder if it contains nothing else."""
    try:
        names = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        names = {}
    for name in [*names, MANIFEST]:
        (folder / _file_name(name)).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _file_name(name: str) -> str:
    """Return a name from a manifest, which may be a stranger's, without a way out of the folder."""
    return Path(name).name


def _hash(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
