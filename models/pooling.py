"""From token states to one vector a text: poolings, every layer pooled, and the head behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from multicse.models.packing import token_states

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


def pool(tokens: Tensor, layers: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool token states as sentence-transformers' Pooling does, operation by operation; importing that takes seconds.

    Args:
        tokens: States of the last layer, (B, L, d).
        layers: States of all layers, each (B, L, d), for poolings that average two of them.
        mask: 1 where a token counts, (B, L), on whichever side the padding is.
        pooling: Name of the pooling.

    Returns:
        One vector per row, (B, d).
    """
    if pooling in AVERAGED:
        first, last = AVERAGED[pooling]
        tokens = (layers[first] + layers[last]) / 2
    mode, weights = MODES[pooling], mask.unsqueeze(-1).to(tokens.dtype)
    if mode == "max":
        return tokens.masked_fill(weights == 0, float("-inf")).max(dim=1).values
    if mode == "mean":
        exact = torch.float32 if tokens.dtype in (torch.float16, torch.bfloat16) else tokens.dtype
        total, count = (tokens * weights).sum(dim=1, dtype=exact), weights.sum(dim=1, dtype=exact)
        return (total / count.clamp(min=1e-9)).to(tokens.dtype)
    counted = mask.int()
    if mode == "cls":
        place = counted.argmax(dim=1)
    else:
        place, tokens = mask.shape[1] - 1 - counted.flip(1).argmax(dim=1), tokens * weights
    return tokens.gather(1, place[:, None, None].expand(-1, 1, tokens.shape[-1])).squeeze(1)


def without_prompt(mask: Tensor, tokens: int) -> Tensor:
    """Return a mask (B, L) with zeros at its first `tokens` places; the mask itself for 0. Padding is on the right."""
    if not tokens:
        return mask
    mask = mask.clone()
    mask[:, :tokens] = 0
    return mask


@torch.no_grad()
def pooled_layers(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    pooling: Pooling,
    prompt_tokens: int = 0,
    host_mask: Tensor | None = None,
) -> Tensor:
    """Pool every layer of a Hugging Face model, without gradient; layer 0 is the embedding output.

    Args:
        model: The model, with l layers.
        input_ids: Token ids, (B, L).
        attention_mask: 1 where a token counts, (B, L).
        pooling: Name of the pooling.
        prompt_tokens: First tokens of every row that are not pooled.
        host_mask: The mask on the CPU, (B, L), if it is there.

    Returns:
        (B, l + 1, d).
    """
    _, layers = token_states(model, input_ids, attention_mask, layers=True, host_mask=host_mask)
    mask = without_prompt(attention_mask, prompt_tokens)
    return torch.stack([pool(states, (), mask, pooling) for states in layers], 1)


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


class Head(nn.Module):
    """Linear, then an activation (tanh unless told): (B, d_in) -> (B, d_out). The `mlp` and `image_mlp` of the papers.

    Freshly initialised as the Hugging Face pooler is: weights normal with std .02, bias zero.
    """

    def __init__(self, d_in: int, d_out: int | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, d_out or d_in)
        self.activation = activation or nn.Tanh()
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))
