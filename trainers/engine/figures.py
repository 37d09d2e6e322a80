"""The figures of a run: what its journal and its export have to show on the development tasks."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import torch

from multicse.evaluation.encoders.encoder import ModuleEncoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import embed, encode_once
from multicse.evaluation.tasks.contrastive import ContrastiveTask
from multicse.evaluation.tasks.retrieval import RetrievalTask, unit
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.engine.checkpoint import module_encoder
from multicse.trainers.engine.tracking import Journal, RunHandle
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

SENTENCES = 8  # whose words are coloured
PAIRS = 24  # pairs of a similarity matrix, as many as leave their captions readable

History = list[tuple[int, dict[str, float]]]
"""Step and metrics of one task, in the order of the steps."""


def log_figures(recipe: Recipe, method: Method, handle: RunHandle, output: Path, export: Path) -> None:
    """Over training: alignment against uniformity of sentence pairs, or alignment and uniformities of items and captions.

    Of the trained model on the development task: for sentence pairs similarity by rating, a t-SNE and angles, and where
    the encoder has them the score of every layer and the weights of words; for items with captions the cosines of some
    pairs. Raises ValueError where a figure cannot be drawn.
    """
    if recipe.evaluation.select is None:
        return
    _over_training(recipe, handle, output)
    (task,) = make_tasks([recipe.evaluation.select], recipe.evaluation.data)
    encoder = module_encoder(method, torch.device("cpu"))
    if isinstance(task, PairTask):
        _sentences(recipe, task, method, encoder, handle, export)
    elif isinstance(task, (RetrievalTask, ContrastiveTask)):
        _pairs(task, encoder, handle)


def _over_training(recipe: Recipe, handle: RunHandle, output: Path) -> None:
    from multicse.evaluation.figures.basic import alignment_uniformity_figure
    from multicse.evaluation.figures.pairs import pair_geometry_over_training

    over_training = histories(output / "journal.jsonl")
    if found := over_training.get(f"{recipe.evaluation.select}-geometry"):
        points = [(step, values["alignment"], values["uniformity"]) for step, values in found]
        handle.log_figure("alignment_uniformity", alignment_uniformity_figure(points))
    for task, found in over_training.items():
        if found and "text_uniformity" in found[0][1]:
            handle.log_figure(f"{task.replace(':', '_')}_over_training", pair_geometry_over_training(found))


def histories(journal: Path) -> dict[str, History]:
    """Metrics of every task at every evaluation; of a step that was repeated after a restart the last ones."""
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for _, entry in Journal(journal).lines():
        for name, value in entry.get("metrics", {}).items():
            if name.startswith("eval/"):
                task, _, metric = name.removeprefix("eval/").rpartition("/")
                steps.setdefault(task, {}).setdefault(entry["step"], {})[metric] = value
    return {task: sorted(values.items()) for task, values in steps.items()}


def _pairs(task: RetrievalTask | ContrastiveTask, encoder: ModuleEncoder, handle: RunHandle) -> None:
    from multicse.evaluation.figures.pairs import similarity_matrix

    chosen = next(iter(task.samples.chunks(PAIRS)))
    captions = [sample.captions()[0] for sample in chosen]
    items = unit(embed(encoder, [sample.item for sample in chosen], task.samples.modality))
    cosines: np.ndarray = items @ unit(embed(encoder, captions)).T
    handle.log_figure("similarity_of_pairs", similarity_matrix(cosines, captions, captions))


def _sentences(
    recipe: Recipe, task: PairTask, method: Method, encoder: ModuleEncoder, handle: RunHandle, export: Path
) -> None:
    from multicse.evaluation.encoders.layers import layer_scores
    from multicse.evaluation.figures.basic import layer_curves
    from multicse.evaluation.figures.words import word_importance
    from multicse.evaluation.report import figures

    for name, figure in figures(encode_once([task], encoder), [task], recipe.run.seed):
        handle.log_figure(name, figure)
    weighed = (method.sentence_encoder.word_weights(text) for text in dict.fromkeys(task.pairs.first))
    if some := list(islice((words for words in weighed if words), SENTENCES)):
        handle.log_figure("attention", word_importance(some))
    if method.sentence_encoder.layered:
        curves = layer_scores(export, [task])
        scores = {pool: [layer[task.name][task.primary] for layer in curve] for pool, curve in curves.items()}
        handle.log_figure(f"layers_{task.name}", layer_curves(scores, ylabel=f"{task.primary} x 100 on {task.name}"))
