"""Modules that are used but never learned: teachers and targets."""

from __future__ import annotations

from types import MethodType
from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def frozen(module: M, checkpoint: bool = True) -> M:
    """`module` itself, in evaluation mode for good: no gradients, and a parent's ``train()`` cannot wake its dropout.

    With ``checkpoint=False`` its weights stay out of the state dict of whatever contains it (they can be rebuilt from
    where they came), and loading such a state dict leaves them as they are.
    """
    module.requires_grad_(False).eval()
    module.train = MethodType(_stay_in_evaluation, module)  # type: ignore[method-assign]  # of this instance alone
    if not checkpoint:
        module.register_state_dict_post_hook(_leave_out)
        module.register_load_state_dict_pre_hook(_keep_own)
    return module


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return module


def _leave_out(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        del state[name]


def _keep_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    transient = {  # buffers that no state dict holds, such as position numbers
        f"{place}.{buffer}".lstrip(".")
        for place, part in module.named_modules()
        for buffer in part._non_persistent_buffers_set
    }
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if name not in transient:
            state.setdefault(prefix + name, value)
