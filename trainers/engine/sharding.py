"""Transformers shared out among the workers (FSDP2; Zhao et al., VLDB 2023), for encoders that do not fit one GPU.

Of every layer each worker holds an equal part of weights, gradients and moments, and a layer is whole only while it is
computed. Embeddings, heads and convolutions stay whole everywhere, and so is what a checkpoint keeps: it does not tell how
many workers wrote it.
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
    """Share out the layers of all transformers in a module, whose weights are the same on every worker; a collective.

    Args:
        module: Module with transformers, changed in place.
        device: Device of this worker.
        dtype: Precision in which layers are gathered and computed; gradients are reduced in fp32. If None, the weights'.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, share_comm_ctx  # a second, in few runs

    mesh = init_device_mesh(device.type, (world_size(),))
    policy = MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32)
    layers = [fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=policy) for layer in whole_layers(module)]
    share_comm_ctx(layers)
    for layer in layers:  # what it is gathered into is made the first time, which must not be in torch's inference mode
        layer.unshard()
        layer.reshard()


def sharded_layers(module: nn.Module) -> list[Any]:
    """Return the layers that `shard` has shared out."""
    return [part for part in module.modules() if hasattr(part, "set_requires_gradient_sync")]


def reduce_gradients(layers: Sequence[Any], now: bool) -> None:
    """Let the next backward reduce the gradients of these layers over the workers, or only add them up on this one."""
    for layer in layers:
        layer.set_requires_gradient_sync(now, recurse=False)


@contextlib.contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """The layers stay whole inside, so that workers may call them as often as each likes; a collective."""
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
    """Whether this worker has a part of it alone, as a DTensor."""
    return hasattr(value, "full_tensor")


def full_tensors(values: Any) -> Any:
    """The same tree with whole tensors; a collective where there are shared ones."""
    return tree_map(lambda value: value.full_tensor() if is_sharded(value) else value, values)


def local_part(tensor: Tensor, like: Tensor) -> Tensor:
    """This worker's part of a whole tensor, where `like` is a part of one of its shape; no communication."""
    if not is_sharded(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    parts: Any = like
    return distribute_tensor(tensor.to(like.device), parts.device_mesh, parts.placements, src_data_rank=None)


def split_sharded(tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The whole and the shared ones: torch's fused operations take one kind at a time."""
    full, sharded = ([tensor for tensor in tensors if is_sharded(tensor) == kind] for kind in (False, True))
    return full, sharded


def clip_gradients(params: Sequence[nn.Parameter], most: float | None) -> Tensor:
    """Scale the gradients down to a norm of `most`, where that is given. Returns their norm before."""
    kinds = [kind for kind in split_sharded(params) if kind]
    norms: list[Tensor] = full_tensors([nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds])
    norm = norms[0] if len(norms) == 1 else nn.utils.get_total_norm(norms)
    if most is not None:  # at infinity every gradient would be written once more
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, most, norm)
    return norm
