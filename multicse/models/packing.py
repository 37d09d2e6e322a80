"""Packing: all tokens of a batch in one row without padding, with attention within each text, and a fast dropout.

Linear layers, norms and dropout process one long row of tokens. Only attention needs the boundaries of texts, and
transformers allows its attention function to be replaced. Models with hard-coded attention are computed with padding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multicse.models.segments import segment_ids

DECODERS = {"llama", "mistral", "qwen2", "qwen3"}
"""Model types with causal attention and rotary positions, so padding on either side gives the same vectors."""
PACKED = {"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta", *DECODERS}
"""Model types with replaceable attention and a `position_ids` argument."""
LAYERS_PACKED = {"clip_text_model"}
"""Model types that can process packed texts in their layers only."""
NAME = "packed"
"""Name of our attention function in transformers."""
STEPS = 2**16
"""On a CPU the dropout probability is a multiple of 1 / STEPS."""


class Packing:
    """Positions of the tokens of a batch (B, L) in one row of T tokens.

    The order depends only on the mask, so runs are reproducible. On a CPU texts are sorted by length; on other devices
    texts keep their order, so that everything is computed on the device.

    Args:
        mask: 1 for tokens, 0 for padding, (B, L).
        host_mask: Copy of the mask on the CPU, (B, L). Without it, T requires a synchronisation with the GPU.
    """

    def __init__(self, mask: Tensor, host_mask: Tensor | None = None) -> None:
        self.mask, self.shape = mask, mask.shape
        self.texts: list[tuple[int, int]] = []
        """Pairs of count and length: the number of texts of each length (CPU only)."""
        lengths = mask.sum(1)
        if mask.device.type == "cpu":
            lengths, order = lengths.sort(stable=True)
            rows, columns = mask[order].nonzero(as_tuple=True)
            found, counts = lengths[lengths > 0].unique_consecutive(return_counts=True)
            self.texts = list(zip(counts.tolist(), found.tolist(), strict=True))
            places = order[rows] * mask.shape[1] + columns
        else:
            places = first_true(mask, int((mask if host_mask is None else host_mask).sum()))
            columns = places % mask.shape[1]
        self.places = places
        """Index of each token in the flattened batch, (T,)."""
        self.positions = columns[None]
        """Position of each token in its text, (1, T)."""
        self.starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        """Index of the first token of each text in the row, and T, (B + 1,)."""

    def pack(self, batch: Tensor) -> Tensor:
        """Return the tokens (1, T, ...) of a padded batch (B, L, ...)."""
        return batch.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, row: Tensor) -> Tensor:
        """Return a padded batch (B, L, d) of tokens (1, T, d); padding is zero."""
        batch = row.new_zeros(self.shape.numel(), row.shape[-1])
        return batch.index_copy(0, self.places, row[0]).unflatten(0, self.shape)

    def arguments(self, model: Any, inputs: Tensor) -> dict[str, Any]:
        """Return the keyword arguments of a model for packed texts.

        Args:
            model: Transformer of Hugging Face.
            inputs: Token IDs (B, L), or word embeddings (B, L, d).
        """
        table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)  # RoBERTa starts to count positions after it
        positions = self.positions if padding is None else self.positions + padding + 1
        if padding is not None and not inputs.is_floating_point():  # and skips padding tokens
            counted = inputs.ne(padding).long()
            positions = self.pack(counted.cumsum(1) * counted) + padding
        arguments = {**model_kwargs(self.pack(inputs)), "position_ids": positions, "packing": self}
        arguments |= {name: self.pack(types) for name, types in segment_ids(model, self.mask).items()}
        if model.config.model_type in DECODERS:  # without a 4D mask, which our attention ignores, they would make one (T, T)
            arguments["attention_mask"] = self.mask[None, None]
        return arguments


def first_true(mask: Tensor, count: int) -> Tensor:
    """Return the first `count` indices at which a mask is not 0, without a synchronisation with the GPU.

    Args:
        mask: Any tensor, (...).
        count: Number of indices. If fewer values are not 0, indices of zeros follow.

    Returns:
        Indices in the flattened mask, (count,).
    """
    return (mask.flatten() == 0).argsort(stable=True)[:count]


def model_kwargs(inputs: Tensor) -> dict[str, Tensor]:
    """Return the keyword argument of a model for integer token IDs (B, L) or floating-point word embeddings (B, L, d)."""
    return {"inputs_embeds" if inputs.is_floating_point() else "input_ids": inputs}


def can_pack(model: Any) -> bool:
    """Return True if a model accepts packed texts, after a call of `enable_packing`."""
    return model.config.model_type in PACKED and layers_can_pack(model)


def layers_can_pack(model: Any) -> bool:
    """Return True if the layers of a model accept packed texts."""
    return model.config._attn_implementation == NAME


def enable_packing(model: Any) -> None:
    """Enable packed texts in a model if its type supports them, and replace its dropout by `Dropout`.

    The model still accepts padded batches.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    replace_dropout(model)
    config = model.config
    other = getattr(config, "sliding_window", None) or not getattr(config, "is_causal", True)  # not in our attention
    if config.model_type in PACKED | LAYERS_PACKED and config._attn_implementation == "sdpa" and not other:
        config._attn_implementation = NAME


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention: transformers' `sdpa` without `packing`, otherwise attention within each packed text.

    Queries, keys and values are (B, H, L, d), or (1, H, T, d) if packed; keys and values may have fewer heads. Returns
    (B, L, H, d) or (1, T, H, d), and None in place of the attention weights.
    """
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scaling, "is_causal": causal}
    fast = packing is not None or (dropout and attention_mask is None and query.device.type == "cpu")
    if fast and key.shape[1] != query.shape[1]:  # grouped-query attention
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
    if packing is not None:
        within = {"cpu": _within_lengths, "cuda": _within_offsets}.get(query.device.type, _within_padded)
        return within(packing, (query, key, value), options), None
    if fast:
        return _attend(query, key, value, options).transpose(1, 2), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
    return sdpa_attention_forward(module, query, key, value, attention_mask, **given)


def _attend(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """Compute `F.scaled_dot_product_attention` on a CPU, where torch's fast kernel does not support dropout."""
    p = options["dropout_p"]
    if not p or options["is_causal"]:
        return F.scaled_dot_product_attention(query, key, value, **options)
    scale = options["scale"] or query.shape[-1] ** -0.5
    return drop((query @ key.transpose(-1, -2) * scale).softmax(-1), p) @ value


# Each of the next three functions maps queries, keys and values (1, H, T, d) of packed texts to outputs (1, T, H, d).


def _within_lengths(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """Compute attention with one call per text length, without padding and mask."""
    tokens = [count * length for count, length in packing.texts]
    parts = []
    for size, *qkv in zip(packing.texts, *(states.split(tokens, 2) for states in row), strict=True):
        query, key, value = (states[0].unflatten(1, size).transpose(0, 1) for states in qkv)
        parts.append(_attend(query, key, value, options).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None]


def _within_offsets(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """Compute attention with one call of torch's CUDA kernels for variable lengths, in every precision.

    The kernels are called directly, since a NestedTensor costs more time on the host than the kernels take on the GPU. The
    flash kernel supports half precision, the memory-efficient kernel every precision. With dropout only the flash kernel is
    right: the forward pass of the other drops the same weights in every text and head, and its backward pass drops others
    (torch 2.11). If neither can be used, the batch is padded.
    """
    if torch.is_autocast_enabled("cuda"):  # the kernels have no autocast rule, and a decoder's rotated queries are float32
        query, key, value = (states.to(torch.get_autocast_dtype("cuda")) for states in row)
        row = query, key, value
    p, causal, scale = options["dropout_p"], options["is_causal"], options["scale"]
    flash = getattr(torch.ops.aten, "_flash_attention_forward", None)
    efficient = getattr(torch.ops.aten, "_efficient_attention_forward", None)
    rules = torch.backends.cuda.SDPAParams(*row, None, p, causal, False)
    query, key, value = (states[0].transpose(0, 1) for states in row)  # (T, H, d)
    longest = min(packing.shape[1], len(query))  # the kernels refuse more than all tokens
    offsets = packing.starts, packing.starts, longest, longest
    if flash and query.shape[-1] % 8 == 0 and torch.backends.cuda.can_use_flash_attention(rules):
        return flash(query, key, value, *offsets, p, causal, False, scale=scale)[0][None]
    if efficient and not p and torch.backends.cuda.can_use_efficient_attention(rules):
        return efficient(query[None], key[None], value[None], None, *offsets, p, int(causal), True, scale=scale)[0]
    return _within_padded(packing, row, options)


def _within_padded(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """Compute attention with one call for the padded batch, with a mask."""
    query, key, value = (
        packing.unpack(states.transpose(1, 2).flatten(2)).unflatten(2, (states.shape[1], -1)).transpose(1, 2)
        for states in row
    )
    seen = (packing.mask != 0)[:, None, None]
    if options["is_causal"]:
        seen = seen & seen.new_ones(seen.shape[-1], seen.shape[-1]).tril()
    out = F.scaled_dot_product_attention(query, key, value, seen, **{**options, "is_causal": False})
    return packing.pack(out.transpose(1, 2))


def token_states(
    model: Any, inputs: Tensor, mask: Tensor, layers: bool = False, host_mask: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the token states of a model; if the model can be packed, padding is not computed and its states are zero.

    Args:
        model: Transformer of Hugging Face.
        inputs: Token IDs (B, L), or word embeddings (B, L, d).
        mask: 1 for tokens, 0 for padding, (B, L).
        layers: Return the states of all layers, too.
        host_mask: Copy of the mask on the CPU, (B, L); see `Packing`.

    Returns:
        States of the last layer, (B, L, d), and with `layers` the embedding output and the states of every layer.
    """
    if can_pack(model):
        packing = Packing(mask, host_mask)
        out = model(**packing.arguments(model, inputs), output_hidden_states=layers)
        return packing.unpack(out.last_hidden_state), tuple(packing.unpack(states) for states in out.hidden_states or ())

    out = model(**model_kwargs(inputs), **segment_ids(model, mask), attention_mask=mask, output_hidden_states=layers)
    return out.last_hidden_state, tuple(out.hidden_states or ())


# ---- dropout ---------------------------------------------------------------------------------------------------------


def drop(x: Tensor, p: float) -> Tensor:
    """Apply dropout. On a CPU every element uses 16 random bits, four elements per draw; otherwise torch's dropout is used.

    Args:
        x: Any tensor, (...).
        p: Probability that an element is set to zero. The others are scaled so that the expected value is kept.

    Returns:
        Tensor, (...).
    """
    dropped = round(p * STEPS)
    if x.device.type != "cpu" or not 0 < dropped < STEPS:
        return F.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # -STEPS / 2 to STEPS / 2 - 1
    return x * (bits >= dropped - STEPS // 2).to(x.dtype).mul_(STEPS / (STEPS - dropped))


class Dropout(nn.Dropout):
    """Module that applies `drop` in training."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply dropout in training."""
        return drop(input, self.p) if self.training else input


def replace_dropout(model: nn.Module) -> None:
    """Replace torch's dropout modules in a model by `Dropout`."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
