"""Poolings over any layers of a transformer, which are baselines of papers.

``layer<k>-cls|mean|max``  one layer; k = 0 is the embedding output, the largest k the last layer
``first1-last``            mean over tokens of the first and the last transformer layer (as in SimCSE's current code)
``ditto<k>-<h>``           as ``first-last``, but the sum over tokens, weighted by the attention of each token to itself in
                           head h of layer k, counted from 1 (Chen et al., Ditto, EMNLP 2023)

They skip all modules after the transformer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor

from multicse.evaluation.encoders.encoder import Features, Forward
from multicse.evaluation.task import EvaluationError
from multicse.models.pooling import pool

SINGLE: tuple[Literal["cls", "mean", "max"], ...] = ("cls", "mean", "max")
"""Poolings of the tokens of one layer."""
LAYER = r"layer(\d+)-(cls|mean|max)"
DITTO = r"ditto(?:(\d+)-(\d+))?"
"""Layer and head of the attention; without numbers, `DITTO_BERT_BASE`."""
DITTO_BERT_BASE = (1, 10)

States = Sequence[Tensor]
"""Embedding output and states of l layers: l + 1 tensors (B, T, d)."""


def depth_of(model: Any) -> int:
    """Return the number of layers of a SentenceTransformer's transformer, or raise EvaluationError if it has none."""
    depth = getattr(getattr(getattr(model[0], "auto_model", None), "config", None), "num_hidden_layers", None)
    if not isinstance(depth, int):
        raise EvaluationError(f"the model starts with {type(model[0]).__name__}, which has no layers; use its own pooling")
    return depth


def over_layers(model: Any, pool_states: Callable[[States, Tensor], Tensor]) -> Forward:
    """Return the forward function of a pooling of the states of all layers with a mask (B, T).

    The last state includes a final norm, if there is one.
    """
    model[0].auto_model.config.output_hidden_states = True

    def forward(features: Features, mask: Tensor) -> Tensor:
        out = model[0](features)
        return pool_states([*out["all_layer_embeddings"][:-1], out["token_embeddings"]], mask)

    return forward


def one_layer(match: re.Match[str], model: Any) -> Forward:
    """Return the pooling ``layer<k>-<how>``, or raise EvaluationError if the layer does not exist."""
    layer, how, depth = int(match[1]), next(how for how in SINGLE if how == match[2]), depth_of(model)
    if layer > depth:
        raise EvaluationError(f"pooling {match[0]!r}: layer {layer} does not exist; choose 0 (embedding output) to {depth}")
    return over_layers(model, lambda states, mask: pool(states[layer], (), mask, how))


def first1_last(match: re.Match[str], model: Any) -> Forward:
    """Return the pooling ``first1-last``."""
    depth_of(model)
    return over_layers(model, lambda states, mask: pool((states[1] + states[-1]) / 2, (), mask, "mean"))


def ditto(match: re.Match[str], model: Any) -> Forward:
    """Return the pooling ``ditto<k>-<h>``, or raise EvaluationError if layer or head do not exist."""
    layer, head = (int(match[1]), int(match[2])) if match[1] else DITTO_BERT_BASE
    depth, network = depth_of(model), model[0].auto_model
    heads = network.config.num_attention_heads
    if not (1 <= layer <= depth and 1 <= head <= heads):
        raise EvaluationError(
            f"pooling {match[0]!r}: head {head} of layer {layer} does not exist; choose ditto1-1 to ditto{depth}-{heads}"
        )
    network.set_attn_implementation("eager")  # other implementations return no attention weights

    def forward(features: Features, mask: Tensor) -> Tensor:
        out = network(
            input_ids=features["input_ids"],
            attention_mask=features["attention_mask"],
            output_hidden_states=True,
            output_attentions=True,
        )
        weights = out.attentions[layer - 1][:, head - 1].diagonal(0, 1, 2) * mask
        return ((out.hidden_states[0] + out.last_hidden_state) / 2 * weights.unsqueeze(-1)).sum(1)

    return forward
