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
    """Where the tokens of a batch (B, L) are in one row of T: texts of one length beside each other, shorter ones first.

    mask (B, L) is 1 where a token counts. The order depends on the mask alone, so that a run can be repeated.
    """

    def __init__(self, mask: Tensor) -> None:
        host = mask.cpu()  # a GPU is waited for here, and nowhere else
        lengths, order = host.sum(1).sort(stable=True)
        rows, columns = host[order].nonzero(as_tuple=True)
        lengths = lengths[lengths > 0]
        found, counts = lengths.unique_consecutive(return_counts=True)
        self.shape = mask.shape
        self.texts: list[tuple[int, int]] = list(zip(counts.tolist(), found.tolist(), strict=True))
        """How many texts there are of each length: (count, length)."""
        self.places = (order[rows] * mask.shape[1] + columns).to(mask.device)
        """(T,), of each token in the flattened batch."""
        self.positions = columns[None].to(mask.device)
        """(1, T), of each token in its text."""
        self.starts = F.pad(lengths.cumsum(0), (1, 0)).to(mask.device)
        """Of every text in the row, and the row's end."""

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
        within = within_jagged if query.device.type == "cuda" else within_lengths
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


def within_jagged(packing: Packing, row: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Tensor:
    """One call for all texts, for which torch has kernels of variable length on CUDA, with dropout in every precision."""
    fewest, most = packing.texts[0][1], packing.texts[-1][1]
    shape: dict[str, Any] = {"offsets": packing.starts, "min_seqlen": fewest, "max_seqlen": most}
    tokens = (states[0].transpose(0, 1).contiguous() for states in row)
    query, key, value = (torch.nested.nested_tensor_from_jagged(states, **shape).transpose(1, 2) for states in tokens)
    return F.scaled_dot_product_attention(query, key, value, **options).transpose(1, 2).values()[None]


def token_states(model: Any, inputs: Tensor, mask: Tensor, layers: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Token states (B, L, d) of a model's last layer, and with `layers` of the embeddings and every layer.

    inputs: token ids (B, L) or word embeddings (B, L, d); mask (B, L). Nothing is computed for padding where the model can
    be packed; the states there mean nothing.
    """
    if can_pack(model):
        packing = Packing(mask)
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
