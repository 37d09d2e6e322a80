"""The papers' figures of a model on its tasks, as `evaluate.py --figures` draws them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from multicse.evaluation.encoders.word_vectors import WordVectors
from multicse.evaluation.figures.basic import COLOURS
from multicse.evaluation.report import Drawing
from multicse.evaluation.task import Encoded, Encoder, Task, embed, unit
from multicse.evaluation.tasks.classification import ClassificationTask
from multicse.evaluation.tasks.geometry import PairedGeometryTask
from multicse.evaluation.tasks.retrieval import ContrastiveTask, RetrievalTask
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction.figures.pairs import alignment_text_uniformity, similarity_matrix, text_item_uniformity
from multicse.reproduction.figures.vectors import angle_kde, pairs_tsne
from multicse.reproduction.figures.words import attention_importance, word_importance

DRAWN_PAIRS = 20  # of each kind in a t-SNE figure (SG-BERT, Figure 5)
DRAWN_ITEMS = 24  # with their captions in a matrix, as many as leave these readable
DRAWN_SENTENCES = 8  # in a figure of words
DRAWN_VECTORS = 2000  # in a figure of densities, whose cost grows with the square
DRAWN_TOKENS = 5  # of each text (MoCoUTRL, Figure 2)


def drawings(encoded: Encoded, tasks: Sequence[Task], seed: int) -> Iterator[Drawing]:
    """For pair sets t-SNE of pairs and angles, for labelled texts angles by class, for items with captions the cosines of
    some, and for word vectors the weights of words."""
    for task in tasks:
        if isinstance(encoded.encoder, WordVectors) and task.sentences():
            yield f"importance_{task.name}", partial(_importance, encoded.encoder, task.sentences())
        if isinstance(task, PairTask):
            yield f"tsne_{task.name}", partial(extreme_pairs, encoded, task, seed)
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode(_some(task.sentences(), seed)))
        elif isinstance(task, ClassificationTask):
            rows = _some([row for part in task.data.parts.values() for row in part], seed)
            texts, labels = [row.text for row in rows], [row.label for row in rows]
            few = len(set(labels)) <= len(COLOURS)  # more could not be told apart
            tokens = token_states(encoded.encoder, texts, seed)
            yield f"angles_{task.name}", partial(angle_kde, encoded.encode(texts), labels if few else None, tokens)
        elif isinstance(task, (RetrievalTask, ContrastiveTask)):
            yield f"similarity_{task.name}", partial(_cosines, encoded, task)


def scatters(task: Task, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, Figure]]:
    """For items with captions alignment, and their uniformity, against that of texts (Zhao et al. 2023, Figures 2 and 3)."""
    if isinstance(task, PairedGeometryTask):
        models = {label: [run[task.name] for run in found] for label, found in runs.items()}
        yield f"alignment_{task.name}", alignment_text_uniformity(models)
        yield f"uniformity_{task.name}", text_item_uniformity(models)


def _cosines(encoded: Encoded, task: RetrievalTask | ContrastiveTask) -> Figure:
    chosen = next(iter(task.samples.chunks(DRAWN_ITEMS)))
    captions = [sample.captions()[0] for sample in chosen]
    items = unit(embed(encoded, [sample.item for sample in chosen], task.samples.modality))
    return similarity_matrix(items @ unit(embed(encoded, captions)).T, captions, captions)


def token_states(model: Encoder, texts: list[str], seed: int = 0) -> np.ndarray | None:
    """States (N, 5, d) behind the last layer of five random tokens of each text, of which one may be drawn twice; None where
    the encoder is no transformer."""
    from multicse.evaluation.encoders.encoder import FolderEncoder

    if not isinstance(model, FolderEncoder) or not hasattr(model.model[0], "auto_model"):
        return None
    rng = np.random.default_rng(seed)
    drawn: list[np.ndarray] = []
    for start in range(0, len(texts), 64):  # the states of all tokens of all texts would be gigabytes
        states = model.model.encode(texts[start : start + 64], output_value="token_embeddings", show_progress_bar=False)
        drawn += [one[rng.integers(len(one), size=DRAWN_TOKENS)].float().cpu().numpy() for one in states]
    return np.stack(drawn)


def _importance(words: WordVectors, sentences: Sequence[str]) -> Figure:
    """Parameter-free attention over the words of the first sentences (GCLSR, Figure 3)."""
    looked_up = (words.known_words(sentence) for sentence in sentences)
    drawn = ((known, attention_importance(vectors)) for known, vectors in looked_up if known)
    return word_importance(list(islice(drawn, DRAWN_SENTENCES)))


def extreme_pairs(encoded: Encoded, task: PairTask, seed: int = 0) -> Figure:
    """t-SNE of 20 pairs with the highest rating and 20 with the lowest (SG-BERT, Figure 5), fewer of a small set.

    Where fewer than 20 are rated exactly so, those with the next ratings follow.
    """
    ties = np.random.default_rng(seed).permutation(len(task.gold))  # which of equally rated pairs are drawn
    order = ties[np.argsort(task.gold[ties], kind="stable")]
    size = min(DRAWN_PAIRS, len(order) // 2)
    rows = np.concatenate([order[len(order) - size :], order[:size]])
    first, second = ([side[i] for i in rows] for side in (task.pairs.first, task.pairs.second))
    return pairs_tsne(encoded.encode(first), encoded.encode(second), np.arange(len(rows)) < size, seed)


def _some(items: list[Any], seed: int) -> list[Any]:
    if len(items) <= DRAWN_VECTORS:
        return items
    return [items[i] for i in np.random.default_rng(seed).choice(len(items), DRAWN_VECTORS, replace=False)]
