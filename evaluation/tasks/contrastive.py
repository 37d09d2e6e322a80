"""The contrastive loss on held-out pairs: what CLIP-like models are selected on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy

from multicse.evaluation.task import Encoder, EvaluationError, Score, look_up, unit
from multicse.evaluation.tasks.paired_items import PairedTask, encode_pairs

BATCH = 80  # pairs, unless said otherwise


def symmetric_cross_entropy(items: np.ndarray, texts: np.ndarray, scale: float) -> float:
    """(CE(s I T', diagonal) + CE(s T I', diagonal)) / 2, each the mean over the N pairs of items I and texts T (N, d), which
    are brought to unit length first; s is `scale` (Radford et al. 2021, Figure 3). ln N for vectors that say nothing.
    """
    if items.shape != texts.shape:
        raise EvaluationError(f"the loss is of pairs, in one space; {items.shape} and {texts.shape} vectors were given")
    logits = scale * unit(items) @ unit(texts).T
    both = scipy.special.logsumexp(logits, axis=1) + scipy.special.logsumexp(logits, axis=0)
    return float((both / 2 - logits.diagonal()).mean())


class ContrastiveTask(PairedTask):
    """The validation loss by which CyCLIP's code, which Zhao et al. follows, chooses a checkpoint: of pictures or sounds of
    shards, each with its first caption, in the shards' order and in batches of `batch`; lower is better.

    ``loss`` is the mean over batches of `symmetric_cross_entropy` at the encoder's own logit scale. The targets are the
    other pairs of the batch, so that losses compare at equal `batch` only. A last, incomplete batch is left out, as in
    training, unless it is the only one. Not in points.

    Raises EvaluationError for a batch of less than 2, and for an encoder without logit scale (no CLIP, no CLAP).
    """

    primary = "loss"
    lower_is_better = True

    def __init__(self, name: str, shards: str | Path | Sequence[str], batch: int = BATCH) -> None:
        super().__init__(name, shards)
        if batch < 2:
            raise EvaluationError(f"task {name}: batch={batch}; a loss over the pairs of a batch needs at least 2")
        self.batch = batch

    def score(self, encoder: Encoder) -> Score:
        """The loss; in the details the scale, what is in a batch, and the loss of a model that knows nothing."""
        scale = getattr(encoder, "logit_scale", None)
        if scale is None:
            raise EvaluationError(
                f"task {self.name}: the encoder has no logit scale, so it has no contrastive loss; give a model with one "
                "(CLIP, CLAP), or use retrieval: on the same shards, which needs none"
            )
        items, captions, owners = encode_pairs(self.samples, encoder)
        (texts,) = look_up(encoder, [captions[i] for i in np.unique(owners, return_index=True)[1]])
        size = min(self.batch, len(items))
        starts = range(0, len(items) - size + 1, size)
        losses = [symmetric_cross_entropy(items[i : i + size], texts[i : i + size], scale) for i in starts]
        details = {"items": len(items), "batch": size, "batches": len(losses), "left_out": len(items) - size * len(losses)}
        return Score({"loss": float(np.mean(losses))}, {**details, "logit_scale": scale, "chance": float(np.log(size))})
