"""Checkpoints of a method: its weights and the state of its run as files, and the method that they make."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from multicse.data.order import seed_of
from multicse.evaluation.encoders.encoder import ModuleEncoder
from multicse.trainers.engine import record
from multicse.trainers.engine.guests import guest
from multicse.trainers.engine.record import CHECKPOINT, RECIPE
from multicse.trainers.engine.sharding import full_tensors, local_part
from multicse.trainers.engine.store import MANIFEST, CheckpointError, Store, verify_files
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

METHOD, BEST, STATE = "method.safetensors", "best.safetensors", "state.pt"
"""Files of a checkpoint: current weights, weights of the best evaluation (optional), remaining state; and the recipe."""
FORMAT = 2
"""Format of `STATE`, which contains it; files of other formats are not read."""
AVERAGE = "average.safetensors"
"""Moving average of the weights, if `run.ema` is set."""


def build_method(recipe: Recipe, checkpoint: Path | None = None) -> Method:
    """Build the method of a recipe with its encoder, initialised from the recipe's seed.

    Files that the encoder needs are also searched in the parent folders of a checkpoint.
    """
    torch.manual_seed(seed_of(recipe.run.seed, "init") % 2**63)
    beside = [checkpoint.resolve().parent] if checkpoint else []
    if checkpoint and checkpoint.name.startswith("step-"):
        beside.append(beside[0].parent)
    encoder = recipe.encoder.load([*beside, Path(recipe.run.output_dir)])
    with guest(f"method {recipe.method.name!r}", recipe.method):
        method = recipe.method.build(encoder)
    if getattr(method.sentence_encoder, "projected", False):
        log.warning("encoder.path: the projection of this model into the space of another modality is not used")
    method.matryoshka, method.vectors = recipe.run.matryoshka, recipe.method.vectors()
    return method


def load_method(checkpoint: Path | str, recipe: Recipe | None = None) -> Method:
    """Load the method of a checkpoint with its best weights.

    Args:
        checkpoint: Folder of a checkpoint, or a folder whose latest checkpoint is loaded: the folder of all
            checkpoints of a run, or the output folder of the run.
        recipe: Recipe. If None, the recipe in the checkpoint, with the paths of the machine that wrote it.

    Raises:
        ValueError: If the folder is not a complete checkpoint.
    """
    folder = latest_checkpoint(Path(checkpoint))
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} is not a checkpoint: it has no recipe.json. Pass the folder of a checkpoint or run")
    if (weights := next((folder / name for name in (BEST, AVERAGE, METHOD) if (folder / name).exists()), None)) is None:
        raise ValueError(f"{folder} contains no complete checkpoint. With run.storage, checkpoints are stored there")
    if recipe is None:
        try:
            recipe = Recipe.from_json((folder / RECIPE).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / RECIPE} is damaged or was written by another version: {error}") from None
    method = build_method(recipe, folder)
    load_weights(method, weights)
    return method.eval()


def module_encoder(
    method: Method, device: torch.device, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> ModuleEncoder:
    """Return the method's sentence encoder for evaluation: for texts, and for images or audio if it has a tower."""
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
    """Return contiguous copies of all weights on the CPU; a collective for sharded layers."""
    return {name: full_tensors(tensor).detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()}


def weights_left_out(method: nn.Module) -> dict[str, str]:
    """Return the digest of the weights that checkpoints do not contain, such as frozen copies; empty without any."""
    contained = method.state_dict().keys()
    left_out = {name: tensor for name, tensor in method.named_parameters() if name not in contained}
    digest = hashlib.sha256()
    for name in sorted(left_out):
        digest.update(left_out[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    parts = sorted({name.partition(".")[0] for name in left_out})
    return {f"frozen copy in method.{'/'.join(parts)}": digest.hexdigest()} if parts else {}


def set_weights(method: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load unsharded weights by name; with sharded layers each worker keeps its part."""
    own = method.state_dict()
    method.load_state_dict(
        {name: local_part(tensor, own[name]) if name in own else tensor for name, tensor in weights.items()}
    )


def load_weights(method: nn.Module, file: Path) -> None:
    """Load the weights of a safetensors file. Raises ValueError if they do not fit or it is damaged."""
    try:
        set_weights(method, load_file(file))
    except (ValueError, RuntimeError, SafetensorError, OSError) as error:  # other names or shapes, or a damaged file
        raise ValueError(f"{file} cannot be used: {error}") from None


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with copies of all tensors on the CPU, so that training does not change them."""

    def copy(x: Any) -> Any:
        return full_tensors(x).detach().to("cpu", copy=True) if isinstance(x, Tensor) else x

    copies: dict[str, Any] = tree_map(copy, state)
    return copies


def write(folder: Path, recipe: Recipe, weights: dict[str, dict[str, Tensor] | None], state: dict[str, Any]) -> None:
    """Write the files of a checkpoint into a folder.

    Args:
        folder: Existing folder.
        recipe: Recipe of the run.
        weights: Tensors by file name; files with None are not written.
        state: Remaining state, of types that `torch.load` reads with `weights_only`.
    """
    for name, tensors in weights.items():
        if tensors is not None:
            save_file(tensors, folder / name)
    buffer = io.BytesIO()  # torch's file writer ends the process if the disk is full
    torch.save({"format": FORMAT, **state}, buffer)
    (folder / STATE).write_bytes(buffer.getbuffer())
    (folder / RECIPE).write_text(recipe.to_json())


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint other than weights and recipe.

    Raises:
        ValueError: If the file is damaged, or of another format.
    """
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, EOFError, UnpicklingError (whose text advises unsafe loading), ...
        raise ValueError(
            f"{folder / STATE} is damaged ({type(error).__name__}); use an earlier checkpoint, or train again"
        ) from None
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{folder} is from another version of MultiCSE; start over: --run.resume never")
    return state


def latest_checkpoint(folder: Path) -> Path:
    """Return the latest checkpoint in a run's output or in its folder ``checkpoint``, otherwise `folder` itself.

    Raises:
        CheckpointError: If `folder` is a checkpoint that does not match its manifest.
    """
    for place in (folder, folder / CHECKPOINT):
        if place.is_dir() and (found := Store(str(place)).newest()):
            return found
    last = Path(record.read(folder).get("checkpoint", folder))  # of the best trial of a sweep, in the folder of the trial
    folder = last if last.is_dir() else folder
    if (folder / MANIFEST).is_file():
        verify_files(folder)
    return folder
