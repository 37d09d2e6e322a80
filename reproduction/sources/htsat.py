"""HTSAT's AudioSet checkpoint as a tower. It is a pickle; nothing of it is executed, only tensors are read."""

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
"""Of the model's weights in a checkpoint of HTSAT's trainer."""
NAMES = {
    r"^bn0\.": "batch_norm.",
    r"\.norm1\.": ".layernorm_before.",
    r"\.norm2\.": ".layernorm_after.",
    r"\.attn\.proj\.": ".attention.output.dense.",
    r"\.attn\.": ".attention.self.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
"""Their names there, and in transformers."""
DROPPED = ("spectrogram_extractor.", "logmel_extractor.", "tscam_conv.", "head.")
"""What the tower does not have: the spectrogram, which the stream makes, and AudioSet's classes. It computes the masks."""
QKV = ".self.qkv."


def tower(checkpoint: Path, sizes: HTSATTower | None = None) -> ClapAudioModel:
    """The model of a checkpoint (``HTSAT-fullset-imagenet-map=0.467.ckpt``).

    Args:
        checkpoint: File of HTSAT's trainer.
        sizes: Sizes of the model. Default: HTSAT-tiny, which all published checkpoints are.

    Raises:
        DataError: If the file is no such checkpoint, or one of other sizes.
    """
    model = ClapAudioModel((sizes or HTSATTower()).config())
    weights = {f"audio_encoder.{name}": tensor for name, tensor in _renamed(read_weights(checkpoint)).items()}
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            raise DataError(f"{checkpoint} is no checkpoint of HTSAT without fusion: {name} fits nothing")
    model.load_state_dict(weights)
    return model


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The tensors below ``sed_model.`` of a checkpoint, by their names after that.

    Objects of classes that torch does not know to be harmless (a trainer's callbacks) become empty ones. Raises DataError
    for a file that cannot be read so, or holds none.
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
        raise DataError(f"{checkpoint} holds no weights below {PREFIX!r}: it is no checkpoint of HTSAT's trainer")
    return weights


class _Empty:
    """Stands for an object whose class is not imported."""

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names of transformers; queries, keys and values, one above the other there, are three tensors."""
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
