"""Attention within packed texts on a GPU equals a formula in float64 on the CPU, with gradients, in every kernel."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from multicse.models.packing import Packing, _within_offsets, _within_padded
from tests.gpu.compare import LIMITS, assert_close

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise", "kernels")]
HEADS = 2
LENGTHS: dict[str, tuple[int, ...]] = {
    "short and empty texts": (5, 1, 17, 0, 3, 32, 1),
    "texts of one token": (1,) * 9,
    "one text": (32,),
    "one length": (16,) * 6,
    "longer than a block": (300, 512, 1, 129, 64),
}
PLAIN: dict[str, Any] = {"dropout_p": 0.0, "scale": None, "is_causal": False}


class Calls(TorchDispatchMode):
    """Mode that lists the attention operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def packing(lengths: tuple[int, ...], device: torch.device) -> Packing:
    """Return a packing whose tokens are in the order of a GPU."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    packed = Packing(mask.to(device), mask)
    if device.type == "cpu":  # a CPU sorts texts by length
        packed.places = mask.flatten().nonzero()[:, 0]
        packed.starts = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    return packed


def states(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Return queries, keys and values (1, H, T, d) as a model makes them: views of rows of tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 1, tokens, HEADS, size, generator=generator).to(dtype)
    return [row.to(device).requires_grad_() for row in rows]


def formula(rows: list[Tensor], starts: list[int], options: dict[str, Any]) -> Tensor:
    """Return attention (1, T, H, d) of queries, keys and values (1, T, H, d), text by text."""
    parts = []
    for first, last in pairwise(starts):
        query, key, value = (row[0, first:last].transpose(0, 1) for row in rows)
        logits = query @ key.mT * (options["scale"] or query.shape[-1] ** -0.5)
        if options["is_causal"]:
            logits = logits.masked_fill(torch.ones(logits.shape[1:]).triu(1) > 0, -torch.inf)
        parts.append((logits.softmax(-1) @ value).transpose(0, 1))
    return torch.cat(parts)[None]


def with_gradients(out: Tensor, rows: list[Tensor]) -> dict[str, Tensor]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (out * weights.to(out)).sum().backward()
    return {"out": out, **{name: row.grad for name, row in zip("qkv", rows, strict=True) if row.grad is not None}}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("size", "scale"), [(64, None), (64, 0.3), (32, None), (20, None), (6, 0.5), (128, None)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_packed_attention(
    dtype: torch.dtype, causal: bool, size: int, scale: float | None, lengths: tuple[int, ...], device: torch.device
) -> None:
    """A head size or precision without a kernel for variable lengths is computed with padding."""
    packed, options = packing(lengths, device), {"dropout_p": 0.0, "scale": scale, "is_causal": causal}
    rows = states(sum(lengths), size, dtype, device)
    exact = [row.detach().cpu().double().requires_grad_() for row in rows]
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    assert packed.starts.tolist() == starts
    query, key, value = (row.transpose(1, 2) for row in rows)
    with Calls() as calls:
        out = _within_offsets(packed, (query, key, value), options)
        found = with_gradients(out, rows)
    assert out.dtype == dtype and out.shape == (1, sum(lengths), HEADS, size)
    wanted = with_gradients(formula(exact, starts, options), exact)
    assert_close(found, wanted, LIMITS[dtype])
    kernel = {torch.float32: size % 4 == 0 and "efficient", torch.float64: ""}.get(dtype, size % 8 == 0 and "flash")
    if kernel:
        assert calls.names == [f"_{kernel}_attention_forward", f"_{kernel}_attention_backward"]
    else:
        assert not {"_flash_attention_forward", "_efficient_attention_forward"} & {*calls.names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padded_attention(dtype: torch.dtype, device: torch.device) -> None:
    """The way without a kernel, which packed attention replaces."""
    lengths = LENGTHS["short and empty texts"]
    packed, rows = packing(lengths, device), states(sum(lengths), 64, dtype, device)
    exact = [row.detach().cpu().double().requires_grad_() for row in rows]
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for options in (PLAIN, PLAIN | {"is_causal": True}):
        query, key, value = (row.transpose(1, 2) for row in rows)
        found = with_gradients(_within_padded(packed, (query, key, value), options), rows)
        assert_close(found, with_gradients(formula(exact, starts, options), exact), LIMITS[dtype])


@pytest.mark.parametrize("size", [64, 20])
@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout(dtype: torch.dtype, p: float, size: int, device: torch.device) -> None:
    """Weights are dropped at their rate, equally for equal seeds, and in the backward pass as in the forward pass."""
    lengths = (64,) * 16
    packed = packing(lengths, device)
    rows = states(sum(lengths), size, dtype, device)
    query, key, value = (row.transpose(1, 2) for row in rows)

    def run(seed: int, value: Tensor = value, query: Tensor = query) -> Tensor:
        torch.manual_seed(seed)
        return _within_offsets(packed, (query, key, value), PLAIN | {"dropout_p": p})

    out, other = run(3), run(4)
    assert torch.equal(out, run(3)) and not torch.equal(out, other)
    equal = run(3, torch.ones_like(value), torch.zeros_like(query))  # the share of kept weights, divided by 1 - p
    kept = equal.float() * (1 - p)
    assert kept.mean().item() == pytest.approx(1 - p, abs=0.01)
    assert kept.std().item() > 0.01
    (grad,) = torch.autograd.grad(out, rows[2], out.detach(), retain_graph=True)
    product = (grad.double() * rows[2].double()).sum().item()  # the output is linear in the values
    assert product == pytest.approx(out.double().square().sum().item(), rel=LIMITS[dtype])
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.float().square().sum(), rows))


def test_tokens_are_packed_and_unpacked(device: torch.device) -> None:
    """A mask may have holes, and texts without tokens."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(6, 9, generator=generator) < 0.6).long()
    mask[2] = 0
    batch = torch.randn(6, 9, 5, generator=generator)
    for host_mask in (mask, None):
        packed = Packing(mask.to(device), host_mask)
        assert torch.equal(packed.unpack(packed.pack(batch.to(device))).cpu(), batch * mask[..., None])
        assert packed.pack(batch.to(device)).shape == (1, int(mask.sum()), 5)
        assert torch.equal((packed.places % 9).cpu(), packed.positions[0].cpu())
        if device.type != "cpu":
            assert torch.equal(packed.places.cpu(), mask.flatten().nonzero()[:, 0])
            assert torch.equal(packed.starts.cpu(), torch.tensor([0, *mask.sum(1)]).cumsum(0))
