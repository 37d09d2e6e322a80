"""The one place that knows how many workers there are.

Losses are means over a worker's own rows against the rows of all workers, and DDP averages the gradients of the
workers. The gradient of the whole batch's loss then needs every worker's contribution to a gathered row, so the
gather's backward sums over the workers and keeps the slice that came from here. (The released SimCSE gathers without
gradient, which leaves 1/world_size of the gradient: harmless to Adam alone, not to clipping or SGD.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def world_size() -> int:
    """Number of workers; 1 when torch.distributed is not initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This worker's number; 0 when torch.distributed is not initialised."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def offset(n: int) -> int:
    """Where this worker's n rows begin among the gathered rows."""
    return rank() * n


def gather(x: Tensor) -> Tensor:
    """Rows of all workers in order of rank: (N, ...) -> (world_size N, ...), carrying gradients.

    Every worker must hold equally many rows, and all must call it in the same order.
    """
    if world_size() == 1:
        return x
    return _Gather.apply(x) if x.requires_grad else _all_gather(x)


def average(tensors: list[Tensor]) -> None:
    """Put the mean over all workers into each tensor, as DDP does with gradients; all must call it with the same ones."""
    if world_size() == 1 or not tensors:
        return
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    torch._foreach_div_(tensors, world_size())


def synchronised(module: nn.Module) -> nn.Module:
    """Give every BatchNorm of a module statistics over all workers, by torch's SyncBatchNorm, which works on CUDA alone.

    Returns:
        The module itself, changed, unless it is a BatchNorm. Names, parameters, buffers, flags and hooks stay;
        `convert_sync_batchnorm` would lose the hooks, HTSAT's SpecAugment among them.
    """
    for name, child in module.named_children():
        setattr(module, name, synchronised(child))
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return module
    made = nn.SyncBatchNorm(module.num_features)
    made.__dict__ = {**made.__dict__, **module.__dict__}
    return made


def _all_gather(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = len(x)
        return _all_gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # all_reduce rather than reduce_scatter, which gloo lacks; the extra (world_size - 1) N rows are small
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad[offset(ctx.rows) :][: ctx.rows]
