"""Dropout that costs little on a CPU, where drawing torch's mask takes several times as long as multiplying by it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16
"""A CPU's probability of dropping is a multiple of 1 / STEPS."""


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


def exchange(model: nn.Module) -> None:
    """Give a model this dropout in place of torch's."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))
