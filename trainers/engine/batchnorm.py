"""BatchNorm over the batches of all workers: what a worker sees of a batch must not change what is learned."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multicse.trainers.gather import world_size


def synchronised(module: nn.Module) -> nn.Module:
    """`module` with statistics over all workers in every BatchNorm1d, 2d and 3d; itself changed, unless it is one.

    On CUDA by torch's SyncBatchNorm, elsewhere by `SyncedBatchNorm`; so call it when the module is on its device. Names,
    parameters, buffers and hooks stay. In evaluation, and with one worker, a BatchNorm does what it did.
    """
    for name, child in module.named_children():
        setattr(module, name, synchronised(child))
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        return module
    made: nn.Module = SyncedBatchNorm(module.num_features)
    if _on_cuda(module):
        made = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    # All of it, not what a constructor knows: hooks, flags, and the very tensors that an optimizer may hold.
    made.__dict__ = {**made.__dict__, **module.__dict__}
    return made


def _on_cuda(module: nn.Module) -> bool:
    return any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers()))


class SyncedBatchNorm(_BatchNorm):
    """BatchNorm whose training statistics are those of all workers' values together, with any backend.

    x (N, C, ...) of any length N >= 0 per worker. As in torch's own, the output is normalised by the biased variance, and
    the running variance is the unbiased one. Every worker must call it, and its backward, in the same order. DDP's mean
    of the gradients is then that of the whole batch.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"BatchNorm: the input is {tuple(input.shape)}; it must be (N, C, ...)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training or world_size() == 1:
            return super().forward(input)
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        channels = values.transpose(0, 1).flatten(1)  # (C, values of a channel)
        # In two rounds, since the mean of squares minus the squared mean loses all digits where the mean is large.
        sums = _Sum.apply(torch.cat([channels.sum(1), channels.new_tensor([channels.shape[1]])]))
        count = sums[-1].detach()
        shape = (1, -1, *[1] * (input.ndim - 2))
        centred = values - (sums[:-1] / count).view(shape)
        variance = _Sum.apply(centred.transpose(0, 1).flatten(1).square().sum(1)) / count
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        self._remember(sums[:-1].detach() / count, variance.detach() * count / (count - 1).clamp(min=1))
        return out.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics by `momentum`, or to their mean over all batches where that is None."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None  # torch makes all three or none
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


class _Sum(torch.autograd.Function):
    """Sum over the workers, forward and backward: every worker's loss depends on the others' values through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total
