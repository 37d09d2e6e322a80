"""Frozen modules, such as teachers and target encoders, LoRA adapters for frozen weights, and passes without dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import MethodType
from typing import Annotated, Any, TypeVar

from pydantic import Field
from torch import nn

from multicse.data.settings import EachOnce, Name, Settings

M = TypeVar("M", bound=nn.Module)


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al., ICLR 2022), trained while the weights of the transformer are frozen."""

    rank: int | None = Field(None, gt=0)
    """Rank of the adapters, for example 8. If None, all weights are trained, without adapters."""
    alpha: float | None = Field(None, gt=0)
    """Scale: the output of an adapter is multiplied by alpha / rank. If None, twice the rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the input of the adapters."""
    targets: Annotated[tuple[Name, ...], EachOnce] = ()
    """Names of the linear layers with an adapter, such as `query value`. If empty, all linear layers."""

    def check(self) -> None:
        """Raise ValueError if adapters are configured without a rank, or peft is not installed."""
        if self.rank is None and self != LoRASettings():
            raise ValueError(
                "encoder.lora: alpha, dropout and targets have no effect without adapters; set encoder.lora.rank"
            )
        if self.rank and find_spec("peft") is None:
            raise ValueError(f"encoder.lora.rank={self.rank} needs peft: pip install peft, or do not set it")

    def check_targets(self, model: nn.Module) -> None:
        """Raise ValueError if a name in `targets` belongs to no linear layer of the model."""
        layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
        for target in self.targets:
            if not any(f".{name}".endswith(f".{target}") for name in layers):
                known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in layers))
                raise ValueError(
                    f"encoder.lora.targets={self.targets}: no linear layer is named {target!r}; there are {known}"
                )


def add_adapters(model: nn.Module, settings: LoRASettings) -> None:
    """Freeze a Hugging Face model and add randomly initialised adapters, whose output is zero at first."""
    from peft import LoraConfig, inject_adapter_in_model

    assert settings.rank is not None  # callers check it
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,  # type: ignore[arg-type]  # peft accepts any number
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) or "all-linear",
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ValueError(f"encoder.lora.targets={settings.targets}: {error}") from None


def merged(model: M) -> M:
    """Return a copy of the model, of its original class, with the adapters merged; without adapters, `model` itself."""
    if not any(hasattr(part, "lora_A") for part in model.modules()):
        return model
    merged_model: Any = copy.deepcopy(model)
    for name, layer in [(name, part) for name, part in merged_model.named_modules() if hasattr(part, "lora_A")]:
        layer.merge()
        merged_model.set_submodule(name, layer.get_base_layer())
    return merged_model


def frozen(module: M, checkpoint: bool = True) -> M:
    """Freeze a module: no gradients, and always in evaluation mode, even after a parent's ``train()``.

    Args:
        module: Module that is changed.
        checkpoint: Include the weights in state dicts. If False, state dicts of parents do not contain the weights, which
            must come from elsewhere, and loading such a state dict does not change them.

    Returns:
        The module itself.
    """
    module.requires_grad_(False).eval()
    module.train = MethodType(_stay_in_evaluation, module)  # type: ignore[method-assign]  # of this instance only
    if not checkpoint:
        module.register_state_dict_post_hook(_leave_out)
        module.register_load_state_dict_pre_hook(_keep_own)
    return module


def frozen_copy(module: M) -> M:
    """Return a frozen copy of a module that checkpoints do not contain; parameters that are not trained are shared."""
    shared = {id(p): p for p in module.parameters() if not p.requires_grad}
    return frozen(copy.deepcopy(module, shared), checkpoint=False)


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return module


def _leave_out(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        del state[name]


def _keep_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    transient = {  # buffers that state dicts do not contain, such as position IDs
        f"{place}.{buffer}".lstrip(".")
        for place, part in module.named_modules()
        for buffer in part._non_persistent_buffers_set
    }
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if name not in transient:
            state.setdefault(prefix + name, value)


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, with gradients, and restore the mode of each of its parts afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
