"""CPU versions of CUDA's two attention kernels for texts of variable length, including the inputs that they reject."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Text = tuple[slice, Tensor, Tensor, Tensor, Tensor, Tensor]


def register(library: torch.library.Library) -> None:
    """Register the four operators of the two kernels in a library of kind ``aten``, ``IMPL``."""
    flash: list[Callable[..., Any]] = [flash_attention_forward, flash_attention_backward]
    efficient: list[Callable[..., Any]] = [efficient_attention_forward, efficient_attention_backward]
    for function in flash + efficient:
        library.impl(f"_{function.__name__}", function, "CPU")


def texts(
    row: tuple[Tensor, ...], starts: Tensor, longest: int, p: float, causal: bool, scale: Any, seed: Tensor
) -> Iterator[Text]:
    """Yield for each text its slice; q, k, v (H, L, d); softmax (H, L, L); and the dropout factors (H, L, L)."""
    assert starts.dtype == torch.int32 and int(starts[-1]) == len(row[0])
    generator = torch.Generator().manual_seed(int(seed))
    for first, last in pairwise(starts.tolist()):
        assert last - first <= longest
        query, key, value = (states[first:last].transpose(0, 1).float() for states in row)
        logits = query @ key.mT * (scale or query.shape[-1] ** -0.5)
        if causal:
            logits = logits.masked_fill(torch.ones(logits.shape[1:]).triu(1) > 0, -torch.inf)
        factors = (torch.rand(logits.shape, generator=generator) >= p) / (1 - p)
        yield slice(first, last), query, key, value, logits.softmax(-1), factors


def attend(row: tuple[Tensor, ...], *how: Any) -> Tensor:
    """Return the attention (T, H, d) of q, k, v (T, H, d)."""
    out = torch.empty_like(row[0])
    for place, _, _, value, weights, factors in texts(row, *how):
        out[place] = (weights * factors @ value).transpose(0, 1).to(out)
    return out


def gradients(grad: Tensor, row: tuple[Tensor, ...], scale: Any, *how: Any) -> tuple[Tensor, ...]:
    """Return the gradients (T, H, d) of q, k and v by the formulas of the softmax."""
    found = tuple(torch.empty_like(states) for states in row)
    for place, query, key, value, weights, factors in texts(row, *how):
        above = grad[place].transpose(0, 1).float()
        of_weights = above @ value.mT * factors
        of_logits = (
            weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * (scale or query.shape[-1] ** -0.5)
        )
        for to, part in zip(found, (of_logits @ key, of_logits.mT @ query, (weights * factors).mT @ above), strict=True):
            to[place] = part.transpose(0, 1).to(to)
    return found


def seed(p: float) -> Tensor:
    """Return the seed of dropout for the backward pass; without dropout no random number is drawn, as on CUDA."""
    return torch.randint(2**62, ()) if p else torch.zeros((), dtype=torch.long)


def flash_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, _: Tensor, longest: int, __: int, p: float, causal: bool, debug: bool,
    *, scale: float | None = None, **more: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and not debug
    assert all(states.ndim == 3 and states.stride(-1) == 1 for states in (q, k, v))
    random = seed(p)
    out = attend((q, k, v), starts, longest, p, causal, scale, random)
    return out, q.new_zeros(q.shape[1], len(q), dtype=torch.float32), random, torch.zeros(()), q.new_zeros(0)


def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, starts: Tensor, _: Tensor, longest: int,
    __: int, p: float, causal: bool, random: Tensor, unused: Tensor, *, scale: float | None = None, **more: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    return gradients(grad, (q, k, v), scale, starts, longest, p, causal, scale, random)


def efficient_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, starts: Tensor, _: Tensor, longest: int, __: int, p: float,
    mask: int, with_lse: bool = False, *, scale: float | None = None, **more: Any,
) -> tuple[Any, ...]:  # fmt: skip
    assert not p, "drops other weights in the backward pass (found on an H200, torch 2.11)"
    assert longest <= q.shape[1], "Invalid max_seqlen_k: the error of the backward pass"
    assert bias is None and all(states.ndim == 4 and len(states) == 1 and states.stride(-1) == 1 for states in (q, k, v))
    random = seed(p)
    out = attend((q[0], k[0], v[0]), starts, longest, p, mask == 1, scale, random)[None]
    lse = q.new_zeros(1, q.shape[2], q.shape[1] if with_lse else 0, dtype=torch.float32)
    return out, lse, random, torch.zeros((), dtype=torch.long), longest, longest


def efficient_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, starts: Tensor, _: Tensor, longest: int,
    __: int, lse: Tensor, p: float, random: Tensor, offset: Tensor, mask: int, *args: Any,
    scale: float | None = None, **more: Any,
) -> tuple[Any, ...]:  # fmt: skip
    assert lse.numel()
    found = gradients(grad[0], (q[0], k[0], v[0]), scale, starts, longest, p, mask == 1, scale, random)
    return *(part[None] for part in found), torch.zeros(())
