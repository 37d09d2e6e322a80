"""Shard transformer layers across workers (FSDP2; Zhao et al., VLDB 2023), for encoders that do not fit on one GPU.

Each worker stores an equal part of the weights, gradients and optimizer states of every layer. A layer is gathered only
while it is computed. Embeddings, heads and convolutions are replicated. Checkpoints contain unsharded tensors, so they do
not depend on the number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from multicse.models.clip_layers import whole_layers
from multicse.trainers.gather import world_size


def shard(module: nn.Module, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Shard the layers of all transformers in a module, whose weights are equal on every worker; a collective.

    Args:
        module: Module with transformers, changed in place.
        device: Device of this worker.
        dtype: Precision in which layers are gathered and computed; gradients are reduced in fp32. If None, the precision of
            the weights.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, share_comm_ctx  # takes a second

    mesh = init_device_mesh(device.type, (world_size(),))
    policy = MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32)
    layers = [fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy) for layer in whole_layers(module)]
    share_comm_ctx(layers)
    for layer in layers:  # allocates its buffers, which is not possible in torch's inference mode
        layer.unshard()
        layer.reshard()


def sharded_layers(module: nn.Module) -> list[Any]:
    """Return the sharded layers of a module."""
    return [part for part in module.modules() if hasattr(part, "set_requires_gradient_sync")]


def reduce_gradients(layers: Sequence[Any], now: bool) -> None:
    """Reduce the gradients of sharded layers over the workers in the next backward, or if not `now` accumulate them."""
    for layer in layers:
        layer.set_requires_gradient_sync(now, recurse=False)


@contextlib.contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Keep all layers gathered in the body, so that workers may call them different numbers of times; a collective."""
    layers = sharded_layers(module)
    for layer in layers:
        layer.set_reshard_after_forward(False)
        layer.unshard()
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()


def is_sharded(value: Any) -> bool:
    """Return True if a value is a DTensor; this worker has only a part."""
    return hasattr(value, "full_tensor")


def full_tensors(values: Any) -> Any:
    """Return a tree with all sharded tensors gathered; a collective if there are any."""
    return tree_map(lambda value: value.full_tensor() if is_sharded(value) else value, values)


def local_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this worker's part of a tensor, without communication.

    Args:
        tensor: Unsharded tensor, (...).
        like: Tensor with the sharding, (...). If it is not sharded or of another shape, `tensor` is returned.
    """
    if not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    parts: Any = like
    return distribute_tensor(tensor.to(like.device), parts.device_mesh, parts.placements, src_data_rank=None)


def split_sharded(tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Separate unsharded from sharded tensors, since torch's fused operations cannot mix them."""
    full, sharded = ([tensor for tensor in tensors if is_sharded(tensor) == kind] for kind in (False, True))
    return full, sharded


def clip_gradients(params: Sequence[nn.Parameter], most: float | None) -> Tensor:
    """Clip the gradients to a total norm unless it is None, and return the norm before clipping, a scalar."""
    kinds = [kind for kind in split_sharded(params) if kind]
    norms: list[Tensor] = full_tensors([nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds])
    norm = norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms)
    if most is not None:  # not with infinity, which would rewrite every gradient
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, most, norm)
    return norm
