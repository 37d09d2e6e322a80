"""Communication between workers; the only module that depends on their number.

Losses are means over a worker's own rows, compared with the rows of all workers, and DDP averages the gradients of the
workers. The gradient of the global batch's loss then needs the contribution of every worker to a gathered row, so the
backward pass of `gather` sums over the workers and keeps this worker's slice. (The released SimCSE gathers without
gradients, which leaves 1/world_size of the gradient: harmless with Adam alone, but not with clipping or SGD.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

ALL_GATHER, REDUCE_SCATTER = "all_gather_single", "reduce_scatter_single"
if not hasattr(dist, ALL_GATHER):  # before torch 2.13
    ALL_GATHER, REDUCE_SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"
BUCKET = 2**25
"""Bytes of gradients that are averaged per call. Calls are few, and the first ones run while later buckets are prepared."""


def world_size() -> int:
    """Return the number of workers; 1 if torch.distributed is not initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the index of this worker; 0 if torch.distributed is not initialised."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def offset(n: int) -> int:
    """Return the index of this worker's first row among the gathered rows, for n rows per worker."""
    return rank() * n


def gather(x: Tensor) -> Tensor:
    """Gather rows (N, ...), with the same N on every worker, to (world_size N, ...) in order of rank, with gradients."""
    if world_size() == 1:
        return x
    return _Gather.apply(x) if x.requires_grad else _all_gather(x)


def average(tensors: list[Tensor]) -> None:
    """Average the same tensors over all workers in place, as DDP averages gradients."""
    if world_size() == 1:
        return
    buckets: list[list[Tensor]] = []
    for tensor in tensors:
        if not buckets or buckets[-1][0].dtype != tensor.dtype or sum(t.nbytes for t in buckets[-1]) >= BUCKET:
            buckets.append([])
        buckets[-1].append(tensor)
    flat = [torch.cat([tensor.flatten() for tensor in bucket]) for bucket in buckets]
    for work in [dist.all_reduce(one, async_op=True) for one in flat]:
        work.wait()
    for bucket, one in zip(buckets, flat, strict=True):
        parts = one.div_(world_size()).split([tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [part.view_as(tensor) for part, tensor in zip(parts, bucket, strict=True)])


def synchronised(module: nn.Module) -> nn.Module:
    """Return a module whose BatchNorms share statistics over all workers, with torch's SyncBatchNorm (CUDA only).

    It is changed in place, unless it is a BatchNorm itself. Names, parameters, buffers, flags and hooks are kept;
    `convert_sync_batchnorm` would lose the hooks, for example HTSAT's SpecAugment.
    """
    for name, child in module.named_children():
        setattr(module, name, synchronised(child))
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return module
    made = nn.SyncBatchNorm(module.num_features)
    made.__dict__ = {**made.__dict__, **module.__dict__}
    return made


def _all_gather(x: Tensor) -> Tensor:
    rows = x.new_empty((world_size() * len(x), *x.shape[1:]))
    getattr(dist, ALL_GATHER)(rows, x.contiguous())
    return rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = len(x)
        return _all_gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        own = grad.new_empty((ctx.rows, *grad.shape[1:]))
        getattr(dist, REDUCE_SCATTER)(own, grad.contiguous())
        return own
