"""HTSAT's AudioSet checkpoint as a tower: ``python reproduction/convert.py HTSAT-fullset-imagenet-map=0.467.ckpt OUT``.

The checkpoints are pickles; nothing of them is executed here, only tensors are read.
"""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor
from transformers import ClapAudioModel

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
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


def convert_htsat(checkpoint: str | Path, out: str | Path, tower: HTSATTower | None = None) -> None:
    """Write the model of a checkpoint (``HTSAT-fullset-imagenet-map=0.467.ckpt``) to the folder `out`: config.json and
    model.safetensors.

    Args:
        checkpoint: File of HTSAT's trainer.
        out: Folder that is made.
        tower: Sizes of the model. Default: HTSAT-tiny, which all published checkpoints are.

    Raises:
        ValueError: If the file is no such checkpoint, or one of other sizes.
    """
    model = ClapAudioModel((tower or HTSATTower()).config())
    weights = {f"audio_encoder.{name}": tensor for name, tensor in _renamed(read_weights(checkpoint)).items()}
    own = model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in own or name not in weights or own[name].shape != weights[name].shape:
            raise ValueError(f"{checkpoint} is no checkpoint of HTSAT without fusion: {name} fits nothing")
    model.load_state_dict(weights)
    model.save_pretrained(out)


def read_weights(checkpoint: str | Path) -> dict[str, Tensor]:
    """The tensors below ``sed_model.`` of a checkpoint, by their names after that.

    Objects of classes that torch does not know to be harmless (a trainer's callbacks) become empty ones. Raises ValueError
    for a file that cannot be read so, or holds none.
    """
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(checkpoint)
        with torch.serialization.safe_globals([(_Empty, name) for name in unknown]):
            content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise ValueError(f"{checkpoint} cannot be read as a checkpoint of tensors: {error}") from None
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if str(name).startswith(PREFIX)}
    if not weights:
        raise ValueError(f"{checkpoint} holds no weights below {PREFIX!r}: it is no checkpoint of HTSAT's trainer")
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


@dataclass(frozen=True)
class Arguments:
    """Turn a checkpoint of HTSAT's trainer into a folder for method.tower.path; clap's recipes have models/htsat-audioset.

    The file is a pickle; only its tensors are read, nothing of it is executed.

    Example: python reproduction/convert.py "HTSAT-fullset-imagenet-map=0.467.ckpt" models/htsat-audioset
    """

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """Checkpoint file of HTSAT's trainer (.ckpt)."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Folder that is made: config.json and model.safetensors."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    convert_htsat(arguments.checkpoint, arguments.out)
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
