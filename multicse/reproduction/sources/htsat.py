"""Conversion of HTSAT's AudioSet checkpoint to a tower. Only tensors of the pickle are read, no code is executed."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import torch
from torch import Tensor
from transformers import ClapAudioModel

from multicse.data.errors import DataError
from multicse.models.audio_towers import HTSATTower

PREFIX = "sed_model."
"""Prefix of the model's weights in a checkpoint of HTSAT's trainer."""
NAMES = {
    r"^bn0\.": "batch_norm.",
    r"\.norm1\.": ".layernorm_before.",
    r"\.norm2\.": ".layernorm_after.",
    r"\.attn\.proj\.": ".attention.output.dense.",
    r"\.attn\.": ".attention.self.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
"""Patterns of weight names, and their replacements in transformers."""
DROPPED = ("spectrogram_extractor.", "logmel_extractor.", "tscam_conv.", "head.")
"""Weights that the tower does not have: the spectrogram (computed by the stream) and the classes of AudioSet."""
QKV = ".self.qkv."


def tower(checkpoint: Path, sizes: HTSATTower | None = None) -> ClapAudioModel:
    """Load a checkpoint such as ``HTSAT-fullset-imagenet-map=0.467.ckpt``.

    Args:
        checkpoint: File of HTSAT's trainer.
        sizes: Sizes of the model. Default: HTSAT-tiny, the size of all published checkpoints.
    """
    model = ClapAudioModel((sizes or HTSATTower()).config())
    weights = {f"audio_encoder.{name}": tensor for name, tensor in _renamed(_read_weights(checkpoint)).items()}
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            raise DataError(f"{checkpoint} is not a checkpoint of HTSAT without fusion: {name} does not match")
    model.load_state_dict(weights)
    return model


def _read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with the prefix ``sed_model.``, by their names without it.

    Objects of classes that torch does not list as safe, such as callbacks of a trainer, are replaced by empty objects.
    """
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(checkpoint)
        with torch.serialization.safe_globals([(_Empty, name) for name in unknown]):
            content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise DataError(f"{checkpoint} cannot be read as a checkpoint of tensors: {error}") from None
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if str(name).startswith(PREFIX)}
    if not weights:
        raise DataError(f"{checkpoint} has no weights with the prefix {PREFIX!r}, so it is not from HTSAT's trainer")
    return weights


class _Empty:
    """Replacement of an object of a class that is not imported."""

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights as in transformers, and split the stacked queries, keys and values."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.startswith(DROPPED) or name.endswith(".attn_mask"):
            continue
        for theirs, ours in NAMES.items():
            name = re.sub(theirs, ours, name)
        if QKV in name:
            parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
            renamed |= {name.replace(QKV, f".self.{part}."): part_tensor.clone() for part, part_tensor in parts}
        else:
            renamed[name] = tensor
    return renamed
