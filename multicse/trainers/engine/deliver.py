"""What a trained run leaves in its folder: the exported model with its card, and figures."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from multicse.evaluation import registry as tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.models.sentence_encoder import CardText
from multicse.trainers.engine import record
from multicse.trainers.engine.card import library_versions, model_card
from multicse.trainers.engine.checkpoint import load_method, module_encoder
from multicse.trainers.engine.checks import describe_known_shards_of
from multicse.trainers.engine.export import fit_of, write_export
from multicse.trainers.engine.journal import histories
from multicse.trainers.engine.record import EXPORT, JOURNAL
from multicse.trainers.engine.tracking import save_figure
from multicse.trainers.method import Method
from multicse.trainers.recipe import ExportConfig, Recipe

log = logging.getLogger(__name__)


def write_model(recipe: Recipe, result: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Export the selected weights with card and figures into the folder of a run.

    Args:
        recipe: Recipe with absolute paths.
        result: Result of the loop, whose scores the card shows.
        checkpoint: Folder of the last checkpoint.

    Returns:
        The result, with the scores of the whitened model if there is one.

    Raises:
        ExportError: If the exported folder does not reproduce the embeddings of the checkpoint.
    """
    output, method = Path(recipe.run.output_dir), load_method(checkpoint, recipe)

    def take(names: list[str]) -> None:
        record.take(output, [f"{EXPORT}/{name}" for name in names])

    facts = json.loads(recipe.to_json()), describe_known_shards_of(recipe), result, library_versions()
    whitened = dict[str, Any]()

    def card(text: CardText) -> str:
        if text.whitened:
            whitened["whitened"] = text.whitened
        return model_card(*facts, text)

    try:
        write_export(method.sentence_encoder, output / EXPORT, card, fit=fit_of(recipe, recipe.export), take=take)
    except ValueError as error:
        if recipe.export == ExportConfig():
            raise
        # A failed whitening must not cost the model.
        log.error("The model is exported without export.whiten: %s", error)
        write_export(method.sentence_encoder, output / EXPORT, card, take=take)
    try:
        draw_figures(recipe, method)
    except ValueError as error:  # the encoder has collapsed
        log.warning("The remaining figures are skipped: %s", error)
    return result | whitened


def draw_figures(recipe: Recipe, method: Method) -> None:
    """Draw alignment and uniformity over training, and for rated pairs the similarity by rating."""
    from multicse.evaluation.figures.basic import alignment_uniformity_figure, similarity_by_gold_figure

    if recipe.evaluation.select is None:
        return
    output = Path(recipe.run.output_dir)
    over_training = histories(output / JOURNAL)
    if found := over_training.get(f"{recipe.evaluation.select}-geometry"):
        points = [(step, values["alignment"], values["uniformity"]) for step, values in found]
        save_figure(output, "alignment_uniformity", alignment_uniformity_figure(points))
    for name, found in over_training.items():
        if found and "text_uniformity" in found[0][1]:  # items with captions
            points = [(step, values["alignment"], values["text_uniformity"]) for step, values in found]
            save_figure(output, f"{name.replace(':', '_')}_over_training", alignment_uniformity_figure(points))
    (task,) = tasks.make_tasks([recipe.evaluation.select], recipe.evaluation.data)
    if isinstance(task, PairTask):
        cosines = task.similarities(module_encoder(method, torch.device("cpu")))
        figure = similarity_by_gold_figure({"": cosines}, task.gold, gold_is=task.gold_is)
        save_figure(output, f"similarity_{task.name}", figure)
