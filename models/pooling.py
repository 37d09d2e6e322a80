"""From token states to one vector a text: poolings, every layer pooled, rows of similar length together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from sentence_transformers.sentence_transformer import modules as st
from torch import Tensor, nn

Pooling = Literal["cls", "cls_before_pooler", "mean", "max", "eot", "avg_top2", "avg_first_last"]

MODES: dict[Pooling, Any] = {
    "cls": "cls",
    "cls_before_pooler": "cls",
    "mean": "mean",
    "max": "max",
    "eot": "lasttoken",
    "avg_top2": "mean",
    "avg_first_last": "mean",
}
"""What sentence-transformers' Pooling calls them."""
AVERAGED: dict[Pooling, tuple[int, int]] = {"avg_top2": (-2, -1), "avg_first_last": (0, -1)}
"""The two layers that are averaged first; 0 is the embedding output."""

GROUPS = 4  # of similar length in a batch on a CPU


def pool(tokens: Tensor, layers: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Token states (B, L, d), or those of all layers, to one vector per row (B, d), by sentence-transformers' Pooling.

    mask (B, L) is 1 where a token counts, on whichever side the padding is.
    """
    if pooling in AVERAGED:
        first, last = AVERAGED[pooling]
        tokens = (layers[first] + layers[last]) / 2
    features = {"token_embeddings": tokens, "attention_mask": mask}
    return st.Pooling(tokens.shape[-1], MODES[pooling])(features)["sentence_embedding"]


def pooled_layers(model: Any, input_ids: Tensor, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """Every layer of a Hugging Face model pooled, (B, l + 1, d), without gradient; layer 0 is the embedding output.

    The same as pooling its `hidden_states`, but each layer is pooled as soon as it is there: the token states of one
    layer are held at a time, not of all. input_ids and attention_mask (B, L).
    """
    found: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        found.append(pool(states, (), attention_mask, pooling))

    # What enters a layer is the state before it. The last state is the model's output, behind its final norm if any.
    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layer_stack(model)]
    try:
        # Autograd refuses tensors of inference mode, but not the copy that `stack` makes outside of it.
        with torch.inference_mode():
            tokens = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            found.append(pool(tokens, (), attention_mask, pooling))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found, dim=1)


def layer_stack(model: Any) -> nn.ModuleList:
    """The layers of a model: its outermost list of as many modules as the configuration has layers. Raises ValueError."""
    depth = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ValueError(
        f"encoder.path: the {depth} layers of a {model.config.model_type!r} model are not one list of modules, so they "
        "cannot be read one by one; choose a model such as BERT, RoBERTa, XLM-R, DistilBERT, DeBERTa, MPNet or ELECTRA"
    )


def by_length(forward: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, attention_mask: Tensor) -> Tensor:
    """forward(inputs, attention_mask) (B, ...), on a CPU computed in groups of rows of similar length; inputs are token ids
    (B, L) or word embeddings (B, L, d).

    Half of the tokens of a small mixed batch are padding, and on a CPU they cost as much as the others; a GPU would rather
    have one call. Only trailing padding is cut, so positions stay. Dropout draws other masks than in one call; without
    it the result is the same.
    """
    if inputs.device.type != "cpu" or len(inputs) < 2 * GROUPS:
        return forward(inputs, attention_mask)
    columns = torch.arange(1, attention_mask.shape[1] + 1)
    lengths = (attention_mask * columns).amax(1)
    order = lengths.argsort(stable=True)
    groups = [(rows, max(1, int(lengths[rows].max()))) for rows in order.tensor_split(GROUPS)]
    parts = [forward(inputs[rows, :length], attention_mask[rows, :length]) for rows, length in groups]
    return torch.cat(parts)[order.argsort()]
