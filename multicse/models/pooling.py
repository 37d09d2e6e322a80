"""Pooling of token states to one vector per text, for one layer or all layers, and the head after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from multicse.models.packing import token_states

Pooling = Literal["cls", "pooler", "mean", "max", "lasttoken", "last2", "first-last"]
"""Poolings of recipes, of exports and of ``--model FOLDER@POOLING``; see `TextEncoder`."""

MODES: dict[Pooling, Any] = {
    "cls": "cls",
    "pooler": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "lasttoken",
    "last2": "mean",
    "first-last": "mean",
}
"""Name of each pooling in sentence-transformers' Pooling module."""
AVERAGED: dict[Pooling, tuple[int, int]] = {"last2": (-2, -1), "first-last": (0, -1)}
"""Two layers that are averaged before pooling; 0 is the embedding output."""


def pool(tokens: Tensor, layers: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool token states with the same operations as sentence-transformers' Pooling, which takes seconds to import.

    Args:
        tokens: States of the last layer, (B, L, d).
        layers: States of all layers, each (B, L, d), for poolings that average two of them.
        mask: 1 for tokens that are pooled, (B, L); padding may be on either side.
        pooling: Name of the pooling.

    Returns:
        One vector per text, (B, d).
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
    """Set the first tokens of a mask to zero.

    Args:
        mask: 1 for tokens, 0 for padding on either side, (B, L).
        tokens: Number of tokens. If 0, the mask itself is returned.
    """
    if not tokens:
        return mask
    first = mask.int().argmax(1, keepdim=True)
    return mask * (torch.arange(mask.shape[1], device=mask.device) >= first + tokens)


@torch.no_grad()
def pooled_layers(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    pooling: Pooling,
    prompt_tokens: int = 0,
    host_mask: Tensor | None = None,
) -> Tensor:
    """Pool every layer of a Hugging Face model without gradients; layer 0 is the embedding output.

    Args:
        model: The model, with l layers.
        input_ids: Token IDs, (B, L).
        attention_mask: 1 for tokens, 0 for padding, (B, L).
        pooling: Name of the pooling.
        prompt_tokens: Number of initial tokens that are not pooled.
        host_mask: Copy of the mask on the CPU, (B, L), if available.

    Returns:
        Vectors, (B, l + 1, d).
    """
    _, layers = token_states(model, input_ids, attention_mask, layers=True, host_mask=host_mask)
    mask = without_prompt(attention_mask, prompt_tokens)
    return torch.stack([pool(states, (), mask, pooling) for states in layers], 1)


def layer_stack(model: Any) -> nn.ModuleList:
    """Return the layers of a model: its outermost module list with the number of layers in the configuration."""
    depth = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ValueError(
        f"encoder.path: the {depth} layers of a {model.config.model_type!r} model are not one list of modules, so they "
        "cannot be read one by one; choose a model such as BERT, RoBERTa, XLM-R, DistilBERT, DeBERTa, MPNet or ELECTRA"
    )


class Head(nn.Module):
    """Linear layer with an activation, the `mlp` and `image_mlp` of the papers.

    Weights are initialised as in the Hugging Face pooler: normal with standard deviation .02, bias zero.

    Args:
        d_in: Dimension of the input.
        d_out: Dimension of the output. If None, `d_in`.
        activation: Activation. If None, tanh.
    """

    def __init__(self, d_in: int, d_out: int | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, d_out or d_in)
        self.activation = activation or nn.Tanh()
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors (B, d_in) to (B, d_out)."""
        return self.activation(self.linear(x))
