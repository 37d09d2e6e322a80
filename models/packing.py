"""Texts without their padding: the tokens of a batch end to end in one row, and attention within each text.

Linear layers, norms and dropout see one long row of tokens; attention alone has to know where a text ends, and transformers
lets it be exchanged. Models whose attention is written into them are computed with their padding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKED = {"bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta"}
"""Types of model whose attention can be exchanged and whose positions can be given."""
LAYERS_PACKED = {"clip_text_model"}
"""Those of which this is true of the layers alone."""
NAME = "packed"
"""What transformers knows `attention` by."""
STEPS = 2**16
"""A CPU's probability of dropping is a multiple of 1 / STEPS."""


class Packing:
    """Where the tokens of a batch (B, L) are in one row of T.

    The order depends on the mask alone, so that a run can be repeated. On a CPU texts of one length are beside each other,
    shorter ones first; elsewhere texts keep their order, so that everything is computed on the device.

    Args:
        mask: 1 where a token counts, (B, L).
        host_mask: The mask on the CPU, (B, L). Without it, a GPU is waited for to know T.
    """

    def __init__(self, mask: Tensor, host_mask: Tensor | None = None) -> None:
        self.mask, self.shape = mask, mask.shape
        self.texts: list[tuple[int, int]] = []
        """How many texts there are of each length, on a CPU: (count, length)."""
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
        """(T,), of each token in the flattened batch."""
        self.positions = columns[None]
        """(1, T), of each token in its text."""
        self.starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        """Of every text in the row, and the row's end: (B + 1,)."""

    def pack(self, batch: Tensor) -> Tensor:
        """The tokens (1, T, ...) of (B, L, ...)."""
        return batch.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, row: Tensor) -> Tensor:
        """(B, L, d) of the tokens (1, T, d), zero where there is padding."""
        batch = row.new_zeros(self.shape.numel(), row.shape[-1])
        return batch.index_copy(0, self.places, row[0]).unflatten(0, self.shape)

    def arguments(self, model: Any, inputs: Tensor) -> dict[str, Any]:
        """What a model is called with for token ids (B, L) or word embeddings (B, L, d)."""
        table = getattr(model.embeddings, "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)  # RoBERTa counts positions from behind it
        positions = self.positions if padding is None else self.positions + padding + 1
        if padding is not None and not inputs.is_floating_point():  # and leaves out the tokens that are it
            counted = inputs.ne(padding).long()
            positions = self.pack(counted.cumsum(1) * counted) + padding
        return {**model_kwargs(self.pack(inputs)), "position_ids": positions, "packing": self}


def first_true(mask: Tensor, count: int) -> Tensor:
    """Find the first `count` places, (count,), at which the flattened mask is not 0.

    If it is 0 at all others, places where it is 0 follow. `nonzero` would wait for a GPU to learn how many there are.
    """
    return (mask.flatten() == 0).argsort(stable=True)[:count]


def model_kwargs(inputs: Tensor) -> dict[str, Tensor]:
    """Token ids or word embeddings under the name that a model takes them by."""
    return {"inputs_embeds" if inputs.is_floating_point() else "input_ids": inputs}


def can_pack(model: Any) -> bool:
    """Whether a model takes packed texts, once `enable_packing` has seen it."""
    return model.config.model_type in PACKED and layers_can_pack(model)


def layers_can_pack(model: Any) -> bool:
    """Whether its layers do."""
    return model.config._attn_implementation == NAME


def enable_packing(model: Any) -> None:
    """Let a model take packed texts, where its type can; whatever else it is called with it takes as before. Its dropout
    becomes a cheap one."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    replace_dropout(model)
    if model.config.model_type in PACKED | LAYERS_PACKED and model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = NAME


def attention(
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
    """transformers' `sdpa` where nothing is packed; else the attention (1, T, H, d) of queries, keys and values (1, H, T, d)
    within each text of `packing`."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    options: dict[str, Any] = {"dropout_p": dropout, "scale": scaling, "is_causal": causal}
    if packing is not None:
        within = {"cpu": within_lengths, "cuda": within_offsets}.get(query.device.type, within_padded)
        return within(packing, (query, key, value), options), None
    if dropout and attention_mask is None and query.device.type == "cpu":
        return attend(query, key, value, options).transpose(1, 2), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    given: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **kwargs}
    return sdpa_attention_forward(module, query, key, value, attention_mask, **given)


def attend(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """`F.scaled_dot_product_attention` on a CPU, written out where there is dropout, which torch's kernel there has not."""
    p = options.get("dropout_p", 0.0)
    if not p or options["is_causal"]:
        return F.scaled_dot_product_attention(query, key, value, **options)
    scale = options["scale"] or query.shape[-1] ** -0.5
    return drop((query @ key.transpose(-1, -2) * scale).softmax(-1), p) @ value


def within_lengths(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """One call for the texts of each length, which need neither padding nor a mask."""
    tokens = [count * length for count, length in packing.texts]
    parts = []
    for size, *qkv in zip(packing.texts, *(states.split(tokens, 2) for states in row), strict=True):
        query, key, value = (states[0].unflatten(1, size).transpose(0, 1) for states in qkv)
        parts.append(attend(query, key, value, options).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None]


def within_offsets(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """One call for all texts, of the kernels of variable length that torch has for CUDA, in every precision.

    They are called directly: a NestedTensor, from which torch calls them, costs more time on the host than the kernels take
    on the GPU. The flash kernel takes half precision, the memory-efficient one every precision, and both take dropout. Where
    torch does not allow them (its rules know the GPU and the size of the heads), the batch is padded.
    """
    p, causal, scale = options["dropout_p"], options["is_causal"], options["scale"]
    flash = getattr(torch.ops.aten, "_flash_attention_forward", None)
    efficient = getattr(torch.ops.aten, "_efficient_attention_forward", None)
    rules = torch.backends.cuda.SDPAParams(*row, None, p, causal, False)
    query, key, value = (states[0].transpose(0, 1) for states in row)  # (T, H, d)
    offsets = packing.starts, packing.starts, packing.shape[1], packing.shape[1]
    if flash and query.shape[-1] % 8 == 0 and torch.backends.cuda.can_use_flash_attention(rules):
        return flash(query, key, value, *offsets, p, causal, False, scale=scale)[0][None]
    if efficient and torch.backends.cuda.can_use_efficient_attention(rules):
        return efficient(query[None], key[None], value[None], None, *offsets, p, int(causal), True, scale=scale)[0]
    return within_padded(packing, row, options)


def within_padded(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """One call for the padded batch, with a mask."""
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
    """Token states (B, L, d) of a model's last layer, and with `layers` of the embeddings and every layer.

    inputs: token ids (B, L) or word embeddings (B, L, d); mask (B, L), and `host_mask` as in `Packing`. Nothing is computed
    for padding where the model can be packed; the states there mean nothing.
    """
    if can_pack(model):
        packing = Packing(mask, host_mask)
        out = model(**packing.arguments(model, inputs), output_hidden_states=layers)
        return packing.unpack(out.last_hidden_state), tuple(packing.unpack(states) for states in out.hidden_states or ())

    out = model(**model_kwargs(inputs), attention_mask=mask, output_hidden_states=layers)
    return out.last_hidden_state, tuple(out.hidden_states or ())


# ---- dropout ---------------------------------------------------------------------------------------------------------


def drop(x: Tensor, p: float) -> Tensor:
    """x with every element set to zero with probability p, and the others scaled so that the mean stays.

    On a CPU every element gets 16 bits of torch's generator, four of them to a draw. Elsewhere it is torch's own dropout.
    """
    dropped = round(p * STEPS)
    if x.device.type != "cpu" or not 0 < dropped < STEPS:
        return F.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # -STEPS / 2 to STEPS / 2 - 1
    return x * (bits >= dropped - STEPS // 2).to(x.dtype).mul_(STEPS / (STEPS - dropped))


class Dropout(nn.Dropout):
    """`drop` in training."""

    def forward(self, input: Tensor) -> Tensor:
        return drop(input, self.p) if self.training else input


def replace_dropout(model: nn.Module) -> None:
    """Give a model this dropout in place of torch's."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
