"""Modules that do not learn: frozen teachers and targets, and LoRA's frozen weights with small trained matrices beside."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from types import MethodType
from typing import Any, TypeVar

from pydantic import Field
from torch import nn

from multicse.models.sentence_encoder import Settings

M = TypeVar("M", bound=nn.Module)


class LoRASettings(Settings):
    """Low-rank adapters (Hu et al., ICLR 2022), in place of which the weights of the transformer stay as they are."""

    rank: int | None = Field(None, gt=0)
    """Width of the adapters, 8 for example; none: no adapters, all weights are trained."""
    alpha: float | None = Field(None, gt=0)
    """An adapter's output is multiplied by alpha / rank; none: twice the rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of what goes into an adapter."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter, such as `query value`; none: all."""

    def check(self) -> None:
        """Raise ValueError where adapters are asked for and peft is not installed, or are described and not asked for."""
        if self.rank is None and self != LoRASettings():
            raise ValueError("encoder.lora: alpha, dropout and targets are those of adapters; set encoder.lora.rank")
        if self.rank and find_spec("peft") is None:
            raise ValueError(f"encoder.lora.rank={self.rank} needs peft: pip install 'multicse[lora]', or leave it out")


def add_adapters(model: nn.Module, settings: LoRASettings) -> None:
    """Freeze a Hugging Face model and put adapters into it, drawn from torch's random numbers. They add nothing at first.

    Raises ValueError where a target is no linear layer of the model.
    """
    from peft import LoraConfig, inject_adapter_in_model

    assert settings.rank is not None  # whoever calls wants adapters
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,  # type: ignore[arg-type]  # any number, though peft says int
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) or "all-linear",
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ValueError(f"encoder.lora.targets={settings.targets}: {error}") from None


def merged(model: M) -> M:
    """A copy of the model whose weights contain its adapters, of the class that it was before; without any, `model`."""
    if not any(hasattr(part, "lora_A") for part in model.modules()):
        return model
    whole: Any = copy.deepcopy(model)
    for name, layer in [(name, part) for name, part in whole.named_modules() if hasattr(part, "lora_A")]:
        layer.merge()
        whole.set_submodule(name, layer.get_base_layer())
    return whole


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
