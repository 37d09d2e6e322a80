"""HTSAT's AudioSet checkpoint as a tower: ``python reproduction/convert.py HTSAT-fullset-imagenet-map=0.467.ckpt OUT``.

The checkpoints are pickles; nothing of them is executed here, only tensors are read.
"""

from __future__ import annotations

import math
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
from multicse.data.streams.inputs import AudioInput
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
"""What the tower does not have: the spectrogram, which the stream makes, and AudioSet's classes."""
QKV = ".self.qkv."


def convert_htsat(checkpoint: str | Path, out: str | Path) -> None:
    """Write the model of a checkpoint (``HTSAT-fullset-imagenet-map=0.467.ckpt``) to the folder `out`: config.json and
    model.safetensors.

    Its sizes are those of the weights. Raises ValueError for a file that is no such checkpoint.
    """
    weights = {name: tensor for name, tensor in read_weights(checkpoint).items() if not name.startswith(DROPPED)}
    try:
        stages = 1 + max(int(found[1]) for name in weights if (found := re.match(r"layers\.(\d+)\.", name)))
        depths = [
            len({name.split(".")[3] for name in weights if name.startswith(f"layers.{i}.blocks.")}) for i in range(stages)
        ]
        tables = [weights[f"layers.{i}.blocks.0.attn.relative_position_bias_table"] for i in range(stages)]
        embed, _, patch_size, _ = weights["patch_embed.proj.weight"].shape
        (bins,) = weights["bn0.weight"].shape
        windows = math.isqrt(len(weights["layers.0.blocks.1.attn_mask"]))  # of a side
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{checkpoint} is no checkpoint of HTSAT without fusion: {error} is missing or of another form"
        ) from None
    window = (math.isqrt(len(tables[0])) + 1) // 2
    tower = HTSATTower(
        input=AudioInput(bins=bins),
        spec_size=windows * window * patch_size,
        patch_size=patch_size,
        embed=embed,
        depths=tuple(depths),
        heads=tuple(table.shape[1] for table in tables),
        window=window,
    )
    model = ClapAudioModel(tower.config())
    renamed = {f"audio_encoder.{name}": tensor for name, tensor in _renamed(weights).items()}
    own = model.state_dict()
    if wrong := sorted(name for name in own.keys() | renamed.keys() if name not in own or name not in renamed):
        raise ValueError(f"{checkpoint} is no checkpoint of HTSAT without fusion: {wrong[0]} fits nothing")
    model.load_state_dict(renamed)
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
        if name.endswith(".attn_mask"):
            continue  # which windows a shift cuts; it is computed
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
