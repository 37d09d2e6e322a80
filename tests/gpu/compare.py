"""Comparison of tensors of two devices by norms, and random numbers that are equal on both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Largest distance, as a share of the norm. Rounding errors are about 1e-6 in float32 without TF32, where a sum has some
hundred terms. Half precision rounds each operand: by 4e-3 in bfloat16 and 5e-4 in float16, which some layers amplify."""
FLOOR = 1e-2
"""Share of the norm of all tensors below which a tensor counts as zero with rounding errors: gradients of key biases."""


def assert_close(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], limit: float) -> None:
    """Check that no tensor differs from the tensor of its name by more than `limit` times its norm.

    Args:
        found: Tensors by name on any device, (...).
        wanted: Tensors of the same names and shapes.
        limit: Largest distance, as a share of the norm plus `FLOOR` times the norm of all wanted tensors.
    """
    assert found.keys() == wanted.keys()
    exact = {name: tensor.detach().cpu().double() for name, tensor in wanted.items()}
    floor = FLOOR * float(torch.stack([tensor.square().sum() for tensor in exact.values()]).sum().sqrt())
    for name, tensor in exact.items():
        assert found[name].shape == tensor.shape, name
        distance = float((found[name].detach().cpu().double() - tensor).norm())
        assert distance <= limit * (float(tensor.norm()) + floor), f"{name}: {distance:.3g} of {float(tensor.norm()):.3g}"


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of all gradients by the name of the parameter, and set them to None."""
    found = {name: p.grad.detach().clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return found


class DrawsOfTheCPU(TorchDispatchMode):
    """Mode in which random tensors of every device are drawn by the CPU's generator; without it they differ by device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = kwargs.get("device") or next((x.device for x in args if isinstance(x, Tensor)), torch.device("cpu"))
        drawn = torch.Tag.nondeterministic_seeded in func.tags and "attention" not in str(func)
        if not drawn or kwargs.get("generator") is not None or torch.device(place).type == "cpu":
            return func(*args, **kwargs)
        there = torch.device(place)
        on_cpu = tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, args)
        result = func(*on_cpu, **(kwargs | ({"device": "cpu"} if "device" in kwargs else {})))
        if func._schema.is_mutable:
            return args[0].copy_(on_cpu[0])
        return tree_map(lambda x: x.to(there) if isinstance(x, Tensor) else x, result)
