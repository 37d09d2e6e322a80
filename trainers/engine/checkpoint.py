"""A run on disk: its method made from the recipe, its weights, and the checkpoint that it goes on from."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from multicse.data.order import seed_of
from multicse.evaluation.encoders.encoder import ModuleEncoder
from multicse.trainers.engine.sharding import part_of, whole
from multicse.trainers.engine.store import whole as whole_folder
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

METHOD, BEST, STATE, RECIPE = "method.safetensors", "best.safetensors", "state.pt", "recipe.json"
"""Files of a checkpoint's folder: the weights now, those of the best evaluation if they are kept, the rest, the recipe."""
AVERAGE = "average.safetensors"
"""The moving average of the weights, where there is one."""


def build_method(recipe: Recipe, checkpoint: Path | None = None) -> Method:
    """The recipe's method on its encoder, initialised from the recipe's seed."""
    torch.manual_seed(seed_of(recipe.run.seed, "init") % 2**63)
    beside = [checkpoint.resolve().parent] if checkpoint else []
    if checkpoint and checkpoint.name.startswith("step-"):
        beside.append(beside[0].parent)
    method = recipe.method.build(recipe.encoder.load([*beside, Path(recipe.run.output)]))
    if getattr(method.sentence_encoder, "projected", False):
        log.warning("encoder.path: its projection into another modality's space is left out")
    method.matryoshka, method.vectors = recipe.run.matryoshka, recipe.method.vectors()
    return method


def load_method(checkpoint: Path | str, recipe: Recipe | None = None) -> Method:
    """The method of a checkpoint with its best weights. Raises ValueError for a folder that is no checkpoint.

    checkpoint: its folder, or that of all of a run, or the run's output: then the newest. recipe: none: the checkpoint's
    own, whose paths are those of the machine that wrote it.
    """
    folder = whole_folder(Path(checkpoint))
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} is no checkpoint: it has no recipe.json. Give the folder of one checkpoint of a run.")
    if (weights := next((folder / name for name in (BEST, AVERAGE, METHOD) if (folder / name).exists()), None)) is None:
        raise ValueError(f"{folder} holds no whole checkpoint; those of a run with run.storage are there")
    method = build_method(recipe or _read_recipe(folder / RECIPE), folder)
    load_weights(method, weights)
    return method.eval()


def _read_recipe(file: Path) -> Recipe:
    try:
        return Recipe.from_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged, or of another version: {error}") from None


def module_encoder(method: Method, device: torch.device) -> ModuleEncoder:
    """The method's sentence encoder as evaluation takes it: for texts, and for pictures or sounds where it has a tower."""
    encoder: Any = method.sentence_encoder
    return ModuleEncoder(
        encoder.tokenize,
        encoder,
        device,
        module=method,
        full_length=encoder.lengths,
        others={modality: encoder.encode_items for modality in encoder.modalities if modality != "text"},
        logit_scale=encoder.logit_factor,
    )


def weights_of(method: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights on the CPU, as safetensors takes them."""
    return {name: whole(tensor).detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()}


def set_weights(method: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load whole weights, whichever part of them this worker has."""
    own = method.state_dict()
    method.load_state_dict({name: part_of(tensor, own[name]) if name in own else tensor for name, tensor in weights.items()})


def load_weights(method: nn.Module, file: Path) -> None:
    try:
        set_weights(method, load_file(file))
    except (ValueError, RuntimeError, SafetensorError, OSError) as error:  # not trained with these, or a damaged file
        raise ValueError(f"{file} cannot be used: {error}") from None


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """The same with copies of all tensors on the CPU, which training does not change."""
    copies: dict[str, Any] = tree_map(
        lambda x: whole(x).detach().to("cpu", copy=True) if isinstance(x, Tensor) else x, state
    )
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


def read(
    folder: Path, method: nn.Module, average: nn.Module | None = None
) -> tuple[dict[str, Tensor] | None, dict[str, Any]]:
    """Load a checkpoint's weights into the method, and their average into another one; returns the best weights, where they
    were kept, and the state."""
    load_weights(method, folder / METHOD)
    if average is not None:
        load_weights(average, folder / AVERAGE)
    best = load_file(folder / BEST) if (folder / BEST).exists() else None
    return best, read_state(folder)


def read_state(folder: Path) -> dict[str, Any]:
    """What a checkpoint keeps beside weights and recipe. Raises ValueError for a damaged file."""
    try:
        state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, EOFError, UnpicklingError whose text advises to run what is in it, ...
        raise ValueError(
            f"{folder / STATE} is damaged ({type(error).__name__}); take an earlier checkpoint, or train again"
        ) from None
    return state
