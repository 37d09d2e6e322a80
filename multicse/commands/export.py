"""Export the model of a checkpoint: ``python pipelines/export.py runs/demo OUT``."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from multicse.models.sentence_encoder import CardText

from multicse.commands import announce_imports, read_options
from multicse.data.errors import cli_errors
from multicse.trainers.jobs import shown
from multicse.trainers.recipe import Recipe


@dataclass(frozen=True)
class Additions:
    """Settings of an export; None means the setting of the run."""

    whiten: bool | None = None
    """Append a PCA whitening layer (Su et al. 2021) to the exported model, or remove the run's."""
    dimensions: int | None = None
    """Number of leading principal components that the whitening keeps."""


@dataclass(frozen=True)
class Arguments:
    """Export a checkpoint as a model folder for SentenceTransformer(OUT) and AutoModel.from_pretrained(OUT).

    The folder contains the best weights of the run and a model card. Before it appears under its name, its embeddings are
    compared with the checkpoint. A further run starts from it with --encoder.path OUT, and for a model with images or audio
    also with --method.tower.path OUT. A model with CLIP's ResNet or with word vectors contains Python code:
    SentenceTransformer(OUT, trust_remote_code=True).

    Example: python pipelines/export.py runs/demo models/mine
    """

    checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CHECKPOINT")]
    """Output folder of a run, for its last checkpoint, or the folder of one checkpoint."""
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")]
    """Folder of the exported model."""
    overwrite: bool = False
    """Replace an earlier export."""
    export: Additions = Additions()
    """Post-processing that is fitted on the training text; its shards must still exist."""
    push_to_hub: str | None = None
    """Upload OUT to this repository of the Hugging Face Hub, USER/NAME. A new repository is private. The token is taken from
    `hf auth login` or HF_TOKEN."""


def export(arguments: Arguments) -> Path:
    """Write the model of a checkpoint and return its folder, which appears only after all checks have passed.

    Raises:
        ValueError: If the folder does not contain a checkpoint.
        ExportError: If `out` exists (with `overwrite`: if it is not an export), or if the saved model and the checkpoint
            compute different embeddings.
    """
    announce_imports()
    from multicse.trainers.engine.checkpoint import latest_checkpoint, load_method
    from multicse.trainers.engine.export import check_hub, fit_of, push, write_export

    out, name = arguments.out, arguments.push_to_hub
    if name is not None:
        check_hub(name, "--push_to_hub")
    _check_target(out, arguments.overwrite)
    encoder, checkpoint = load_method(arguments.checkpoint).sentence_encoder, latest_checkpoint(arguments.checkpoint)
    recipe = Recipe.from_json((checkpoint / "recipe.json").read_text()).replace("run.push_to_hub", name)
    given = {name: value for name, value in vars(arguments.export).items() if value is not None}
    if given.get("whiten") is False:
        given.setdefault("dimensions", None)
    used = recipe.replace("export", {**recipe.export.model_dump(), **given})
    fit = fit_of(used, used.export)
    card = partial(_card_of, checkpoint, recipe, used)
    names = write_export(encoder, out, card, fit)
    if name is not None:
        print(f"uploaded to {push(out, name, names)}")
    return out


def _check_target(out: Path, overwrite: bool) -> None:
    from multicse.trainers.engine.export import ExportError

    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    if out.exists() and not overwrite:
        raise ExportError(f"{out} exists already; give another folder, or replace it with --overwrite")
    if out.exists() and not (out / "modules.json").is_file():
        raise ExportError(
            f"{out} is not an export (it does not contain modules.json) and is not replaced; give another folder"
        )


def _card_of(checkpoint: Path, recipe: Recipe, used: Recipe, text: CardText) -> str:
    """Return the model card of `used`, the recipe with the settings of this export.

    It contains scores after training if the record of the run is in a parent folder of the checkpoint.
    """
    from multicse.trainers.engine import record
    from multicse.trainers.engine.card import library_versions, model_card
    from multicse.trainers.engine.checkpoint import read_state
    from multicse.trainers.engine.checks import describe_known_shards_of
    from multicse.trainers.engine.selection import Selection

    state = read_state(checkpoint)
    step, _ = Selection.read(recipe.evaluation, state).kept(state["progress"]["step"])
    numbers: dict[str, Any] = {"before": state["progress"]["before"], "best_step": step}
    for place in checkpoint.absolute().parents[:2]:
        found = record.read(place).get("summary", {})
        if Path(found.get("checkpoint", "")).name == checkpoint.name and found.get("identity") == recipe.identity():
            numbers = found
    return model_card(json.loads(used.to_json()), describe_known_shards_of(recipe), numbers, library_versions(), text)


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    arguments = read_options(Arguments, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from multicse.models.hub_folders import carried_files
    from multicse.trainers.engine.cluster import quiet

    quiet()
    out = export(arguments)
    trust = ", trust_remote_code=True" if carried_files(out) else ""
    place = shown(out)
    print(f"exported to {place}: SentenceTransformer({place!r}{trust}), or --encoder.path {shlex.quote(place)}")
    return 0
