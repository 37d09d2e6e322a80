"""The model of a checkpoint: ``python pipelines/export.py runs/demo OUT``."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from multicse.models.sentence_encoder import CardText

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.trainers.recipe import ExportConfig, Recipe


@dataclass(frozen=True)
class Arguments:
    """Turn a checkpoint of a run into a model folder that SentenceTransformer(OUT) and AutoModel.from_pretrained(OUT) load.

    The best weights of the run are taken. The folder gets a model card, and is compared with the checkpoint before it
    appears under its name. A further run starts from it with --encoder.path OUT, of a model of texts and pictures or sounds
    with --method.tower.path OUT as well. A model with CLIP's ResNet, or of word vectors, brings its Python along:
    SentenceTransformer(OUT, trust_remote_code=True).

    Example: python pipelines/export.py runs/demo models/mine --onnx --int8
    """

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's output, whose last checkpoint is taken, or the folder of one checkpoint: recipe.json and safetensors."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Folder that is made."""
    overwrite: bool = False
    """Replace an earlier export."""
    onnx: bool = False
    """Also write OUT/onnx/model.onnx, which SentenceTransformer(OUT, backend="onnx") loads."""
    int8: bool = False
    """Also write OUT/onnx/model_int8.onnx, with weights of 8 bits: a quarter of the size, and faster on a CPU."""
    export: ExportConfig = field(default_factory=ExportConfig)
    """What is fitted on the training text, whose shards must still be there. Default: as the run's recipe says."""
    push_to_hub: str | None = None
    """Then upload OUT to this repository of the Hugging Face hub, USER/NAME; a new one is private. The token is that of
    `hf auth login`, or HF_TOKEN."""


def export(arguments: Arguments) -> Path:
    """Write the model of a checkpoint; returns its folder. Nothing is there under that name until all is well.

    Raises ValueError for a folder that is no checkpoint, and ExportError when `out` exists (with `overwrite`: when it is
    not an export) or when the saved model does not give the vectors of the checkpoint.
    """
    from multicse.trainers.engine.checkpoint import latest_checkpoint, load_method
    from multicse.trainers.engine.export import check_hub, fit_of, push, write_export

    out, name = arguments.out, arguments.push_to_hub
    if name is not None:
        check_hub(name, "--push_to_hub")
    _check_target(out, arguments.overwrite)
    encoder, checkpoint = load_method(arguments.checkpoint).sentence_encoder, latest_checkpoint(arguments.checkpoint)
    recipe = Recipe.from_json((checkpoint / "recipe.json").read_text()).replace("run.push_to_hub", name)
    fit = fit_of(recipe, recipe.export if arguments.export == ExportConfig() else arguments.export)
    card = partial(card_of, checkpoint, recipe)
    names = write_export(encoder, out, card, arguments.onnx, arguments.int8, fit)
    if name is not None:
        print(f"uploaded to {push(out, name, names)}")
    return out


def _check_target(out: Path, overwrite: bool) -> None:
    from multicse.trainers.engine.export import ExportError

    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    if out.exists() and not overwrite:
        raise ExportError(f"{out} exists already; give another folder, or --overwrite to replace it")
    if out.exists() and not (out / "modules.json").is_file():
        raise ExportError(
            f"{out} is not an earlier export (it has no modules.json) and is not replaced; give another folder"
        )


def card_of(checkpoint: Path, recipe: Recipe, text: CardText) -> str:
    """The model card of a checkpoint, with what the encoder says of itself.

    Scores before training are the checkpoint's, those after are of the run's summary, if it is beside the checkpoint;
    names and licences come from the shards, where they can still be read.
    """
    from multicse.trainers.engine.card import library_versions, model_card
    from multicse.trainers.engine.checkpoint import read_state
    from multicse.trainers.engine.checks import describe_shards_of

    state = read_state(checkpoint)
    numbers = {"before": state["before"], "best_step": state["best"][1]}
    for summary in (place / "summary.json" for place in checkpoint.absolute().parents[:2]):
        if not summary.is_file():
            continue
        found = json.loads(summary.read_text())
        if Path(found.get("checkpoint", "")).name == checkpoint.name and found.get("identity") == recipe.identity():
            numbers = {name: found.get(name) for name in ("before", "baseline", "after", "best_step")}
    try:
        data = describe_shards_of(recipe)
    except (ValueError, OSError):  # the shards have been moved since; the model has not
        data = [{"name": name, "source": Path(stream.shards).name} for name, stream in recipe.streams.items()]
    return model_card(json.loads(recipe.to_json()), data, numbers, library_versions(), text)


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from multicse.models.hub_folders import carried_files
    from multicse.trainers.engine.cluster import quiet

    quiet()
    out = export(arguments)
    trust = ", trust_remote_code=True" if carried_files(out) else ""
    print(f"{out} is ready: SentenceTransformer({str(out)!r}{trust}), or --encoder.path {shlex.quote(str(out))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
