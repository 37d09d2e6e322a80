"""HTSAT's AudioSet checkpoint as a tower: ``python reproduction/convert.py HTSAT-fullset-imagenet-map=0.467.ckpt OUT``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.reproduction.htsat_checkpoint import convert_htsat


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
