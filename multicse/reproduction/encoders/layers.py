"""Scores of every layer with cls, mean and max pooling, from one forward pass per sentence (SG-BERT, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from multicse.evaluation.encoders.encoder import FolderEncoder, load_encoder
from multicse.evaluation.task import Encoded, Task, encode_once
from multicse.models.pooling import pool
from multicse.reproduction.encoders.layer_poolings import SINGLE, States, over_layers

Scores = dict[str, dict[str, float]]  # metrics by task


def every_layer(states: States, mask: Tensor) -> Tensor:
    """Pool every layer by cls, mean and max.

    Args:
        states: Hidden states of the layers 0 to l, each (B, T, d).
        mask: (B, T), attention mask; [CLS] and [SEP] are included.

    Returns:
        (B, (l + 1) * 3 * d), which reshapes to (B, l + 1, 3, d).
    """
    return torch.cat([pool(state, (), mask, how) for state in states for how in SINGLE], dim=1)


def layer_scores(
    folder: str | Path, tasks: Sequence[Task], device: str | None = None, batch_size: int = 128
) -> dict[str, list[Scores]]:
    """Evaluate every layer with cls, mean and max pooling, with one forward pass per sentence of a task.

    Layer 0 with cls pooling is the embedding of [CLS], which is equal for all sentences: correlations are 0, and tasks warn
    of a collapsed encoder.

    Args:
        folder: Folder of the model.
        tasks: Tasks to evaluate.
        device: Device. If None, a GPU if available.
        batch_size: Batch size in sentences.

    Returns:
        Metrics of all tasks by pooling, in a list over the layers 0 (embedding output) to l.
    """
    one = load_encoder(folder, "layer0-mean", device, batch_size)
    # All layers concatenated: (N, (l + 1) * 3 * d).
    encoder = FolderEncoder(one.model, one.path, "every layer", batch_size, over_layers(one.model, every_layer))
    config = encoder.model[0].auto_model.config
    layers, width = config.num_hidden_layers + 1, config.hidden_size
    curves: dict[str, list[Scores]] = {how: [{} for _ in range(layers)] for how in SINGLE}
    for task in tasks:  # the embeddings of several tasks at once would take gigabytes
        encoded = encode_once([task], encoder)
        for number, (how, layer) in enumerate(product(SINGLE, range(layers))):
            start = (layer * len(SINGLE) + number // layers) * width
            curves[how][layer][task.name] = task.score(_OneLayer(encoded, slice(start, start + width))).metrics
    return curves


class _OneLayer:
    """Encoder of a slice of the dimensions of another encoder."""

    def __init__(self, encoded: Encoded, columns: slice) -> None:
        self.encoded, self.columns = encoded, columns

    def encode(self, items: list[str], modality: str = "text") -> np.ndarray:
        """Return embeddings (N, d) of N texts."""
        return self.encoded.encode(items, modality)[:, self.columns]
