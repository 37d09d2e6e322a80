"""The figures of a run: what its journal and its export have to show on the development tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainers.engine.journal import Journal
from trainers.engine.tracking import RunHandle
from trainers.recipe import Recipe

SENTENCES = 8  # whose words are coloured
PAIRS = 24  # pairs of a similarity matrix, as many as leave their captions readable

History = list[tuple[int, dict[str, float]]]
"""Step and metrics of one task, in the order of the steps."""


def log_figures(recipe: Recipe, handle: RunHandle, output: Path, export: Path) -> None:
    """Over training: alignment against uniformity of sentence pairs, or alignment and uniformities of items and captions.

    Of the exported model on the development task: for sentence pairs similarity by rating, a t-SNE, angles and the score of
    every layer; for items with captions the cosines of some pairs. Raises ValueError where a figure cannot be drawn.
    """
    if recipe.evaluation.select is None:
        return
    _over_training(recipe, handle, output)
    kind = recipe.evaluation.select.partition(":")[0]
    if kind in ("retrieval", "contrastive"):
        _pairs(recipe, handle, export)
    elif kind != "zero-shot":
        _sentences(recipe, handle, export)


def _over_training(recipe: Recipe, handle: RunHandle, output: Path) -> None:
    from evaluation.figures.basic import alignment_uniformity_figure
    from evaluation.figures.pairs import pair_geometry_over_training

    histories = _histories(output / "journal.jsonl")
    if found := histories.get(f"{recipe.evaluation.select}-geometry"):
        points = [(step, values["alignment"], values["uniformity"]) for step, values in found]
        handle.log_figure("alignment_uniformity", alignment_uniformity_figure(points))
    for task, found in histories.items():
        if found and "text_uniformity" in found[0][1]:
            handle.log_figure(f"{task.replace(':', '_')}_over_training", pair_geometry_over_training(found))


def _histories(journal: Path) -> dict[str, History]:
    """Metrics of every task at every evaluation; of a step that was repeated after a restart the last ones."""
    steps: dict[str, dict[int, dict[str, float]]] = {}
    for _, entry in Journal(journal).lines():
        for name, value in entry.get("metrics", {}).items():
            if name.startswith("eval/"):
                task, _, metric = name.removeprefix("eval/").rpartition("/")
                steps.setdefault(task, {}).setdefault(entry["step"], {})[metric] = value
    return {task: sorted(values.items()) for task, values in steps.items()}


def _pairs(recipe: Recipe, handle: RunHandle, export: Path) -> None:
    from evaluation.figures.pairs import similarity_matrix
    from evaluation.load import load_model
    from evaluation.task import embed
    from evaluation.tasks.paired_items import Samples
    from evaluation.tasks.retrieval import unit

    select = str(recipe.evaluation.select)
    place = select.partition(":")[2]
    samples = Samples(select, place if Path(place).exists() else place.partition("?")[0])
    chosen = next(iter(samples.chunks(PAIRS)))
    captions = [sample.captions()[0] for sample in chosen]
    encoder: Any = load_model(str(export))
    items = unit(embed(encoder, [sample.item for sample in chosen], samples.modality))
    cosines: np.ndarray = items @ unit(embed(encoder, captions)).T
    handle.log_figure("similarity_of_pairs", similarity_matrix(cosines, captions, captions))


def _sentences(recipe: Recipe, handle: RunHandle, export: Path) -> None:
    from evaluation.encoders.encoder import load_encoder
    from evaluation.encoders.layers import layer_scores
    from evaluation.figures.basic import layer_curves
    from evaluation.load import load_model
    from evaluation.registry import make_tasks
    from evaluation.report import figures
    from evaluation.task import encode_once
    from evaluation.tasks.sts import PairTask

    (task,) = make_tasks([str(recipe.evaluation.select)], recipe.evaluation.data)
    if not isinstance(task, PairTask):
        return
    plain = recipe.method.name not in ("clip", "gclsr")
    load: Callable[[Path], Any] = load_encoder if plain else lambda folder: load_model(str(folder))
    for name, figure in figures(encode_once([task], load(export)), [task], recipe.run.seed):
        handle.log_figure(name, figure)
    if recipe.method.name == "gclsr":
        _attention(task, handle, export)
    if not plain:  # sentence vectors behind a projection or a convolution: single layers are none
        return
    curves = layer_scores(export, [task])
    scores = {pool: [layer[task.name][task.primary] for layer in curve] for pool, curve in curves.items()}
    handle.log_figure(f"layers_{task.name}", layer_curves(scores, ylabel=f"{task.primary} x 100 on {task.name}"))


def _attention(task: Any, handle: RunHandle, export: Path) -> None:
    """What GCLSR's attention weighs in some sentences of the task (the paper's Figure 3)."""
    from evaluation.figures.words import attention_importance, word_importance
    from models.word_module import load_words, split

    model = load_words(export)
    weighed = []
    for text in dict.fromkeys(task.pairs.first):
        if words := split(text, model.letters)[: model.max_words]:
            vectors = model.look_up(model.tokenize([text])["input_ids"])[0]
            weighed.append((words, attention_importance(vectors.numpy())))
        if len(weighed) == SENTENCES:
            break
    if weighed:
        handle.log_figure("attention", word_importance(weighed))
