"""Changes to transformers' CLIP layers for training: OpenAI's initialisation, dropout, a last layer for one position."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multicse.models.packing import drop


@torch.no_grad()
def init_clip_text(model: Any) -> None:
    """Initialise a CLIPTextModel as in OpenAI's code (Radford et al. 2021)."""
    width, depth = model.config.hidden_size, model.config.num_hidden_layers
    nn.init.normal_(model.embeddings.token_embedding.weight, std=0.02)
    nn.init.normal_(model.embeddings.position_embedding.weight, std=0.01)
    for layer in model.encoder.layers:
        _init_layer(layer, width, depth)


@torch.no_grad()
def init_clip_vision(model: Any) -> None:
    """Initialise a CLIPVisionModel as in OpenAI's code."""
    width, depth = model.config.hidden_size, model.config.num_hidden_layers
    model.embeddings.patch_embedding.reset_parameters()
    nn.init.normal_(model.embeddings.class_embedding, std=width**-0.5)
    nn.init.normal_(model.embeddings.position_embedding.weight, std=width**-0.5)
    for layer in model.encoder.layers:
        _init_layer(layer, width, depth)


def _init_layer(layer: Any, width: int, depth: int) -> None:
    """Initialise a layer; transformers swaps the standard deviations of query, key and value and of the output."""
    attention, mlp = layer.self_attn, layer.mlp
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
        nn.init.normal_(linear.weight, std=width**-0.5)
    nn.init.normal_(mlp.fc1.weight, std=(2 * width) ** -0.5)
    for linear in (attention.out_proj, mlp.fc2):
        nn.init.normal_(linear.weight, std=width**-0.5 * (2 * depth) ** -0.5)


def add_dropout(model: Any, p: float) -> None:
    """Add dropout to CLIP's text transformer: after the embeddings and, as in BERT, after attention and feed-forward.

    State dicts do not change.

    Args:
        model: CLIPTextModel, which is changed.
        p: Dropout probability.

    References:
        Zhao et al. 2023 use 0.1 in the language encoder and do not specify where.
    """

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return drop(output, p) if module.training else output

    layers = [part for layer in model.encoder.layers for part in (layer.self_attn.out_proj, layer.mlp)]
    for module in (model.embeddings, *layers):
        module.register_forward_hook(hook)


def last_clip_layer(layer: nn.Module, states: Tensor, index: Tensor, causal: bool = False) -> Tensor:
    """Compute the output of a transformers CLIPEncoderLayer for one position per row, for last layers.

    Output and gradients equal ``layer(states)[arange(B), index]``; only the random numbers of attention dropout differ.

    Args:
        layer: CLIPEncoderLayer.
        states: Input of the layer, (B, L, d).
        index: Position per row, (B,).
        causal: Attend only to positions up to `index`, as in CLIP's text transformer.

    Returns:
        Output at the positions, (B, d).
    """
    parts: Any = layer
    attention = parts.self_attn
    rows = torch.arange(len(states), device=states.device)
    own = states[rows, index]
    normed = parts.layer_norm1(states)
    query, key, value = (
        linear(tokens).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for linear, tokens in (
            (attention.q_proj, normed[rows, index][:, None]),
            (attention.k_proj, normed),
            (attention.v_proj, normed),
        )
    )
    seen = None
    if causal:
        seen = (torch.arange(states.shape[1], device=states.device) <= index[:, None])[:, None, None]
    answer = F.scaled_dot_product_attention(
        query, key, value, seen, attention.dropout if layer.training else 0.0, scale=attention.scale
    )
    own = own + attention.out_proj(answer.flatten(1))
    return own + parts.mlp(parts.layer_norm2(own))


def whole_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all transformers in a module, except CLIP's last layers, which `last_clip_layer` computes."""
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.models.clip.modeling_clip import CLIPEncoder

    lasts = {part.layers[-1] for part in module.modules() if isinstance(part, CLIPEncoder)}
    layers = [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]
    return [layer for layer in layers if layer not in lasts]
