"""The optimizer of one turn: AdamW or SGD with its own schedule, loss scaling and clipping."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from multicse.trainers.engine.sharding import clip_gradients, local_part, split_sharded
from multicse.trainers.method import Method, Schedule, decay
from multicse.trainers.recipe import OptimConfig, ScheduleConfig, SGDConfig


def warm_steps(warmup: float, steps: int) -> float:
    """Steps of a warm-up that is a share of `steps`, or their number."""
    return warmup * steps if warmup < 1 else warmup


def schedule_factor(config: ScheduleConfig, kind: Schedule, steps: int, step: int, warmup: float | None = None) -> float:
    """Factor on the learning rate at `step` of `steps`: linear warm-up (of the config, unless another one is given), then
    linear, cosine or constant."""
    warm = warm_steps(config.warmup if warmup is None else warmup, steps)
    step += config.ahead
    if step < warm:
        return (step + 1) / math.ceil(warm)
    share = (step - warm) / max(1.0, steps - warm)
    return decay(kind, share)


def by_depth(method: Method, params: list[nn.Parameter], decay: float) -> list[tuple[int, list[nn.Parameter]]]:
    """The parameters by how many layers of the sentence encoder there are above them, and 1; 0: behind the last layer.

    With a `decay` of 1 they stay together.
    """
    if decay == 1:
        return [(0, params)]
    layers = method.sentence_encoder.stack()
    depths = {parameter: len(layers) - i for i, layer in enumerate(layers) for parameter in layer.parameters()}
    found: dict[int, list[nn.Parameter]] = {}
    for parameter in params:
        found.setdefault(depths.get(parameter, 0), []).append(parameter)
    return sorted(found.items())


class TurnOptimizer:
    """Optimizer, schedule, scaler and clipping of one turn."""

    def __init__(self, method: Method, turn: str, config: OptimConfig | SGDConfig, steps: int, precision: str) -> None:
        groups = method.param_groups(turn)
        if unknown := set(config.groups) - set(groups):
            raise ValueError(f"optim.{turn}.groups names {sorted(unknown)}; the method has {sorted(groups)}")
        settings = []
        factors = []
        for name, params in groups.items():
            own = config.groups.get(name)
            lr = config.lr if own is None or own.lr is None else own.lr
            decay = config.weight_decay if own is None or own.weight_decay is None else own.weight_decay
            if name == "biases_and_norms" and (own is None or own.weight_decay is None):
                decay = 0.0
            kind = config.schedule if own is None or own.schedule is None else own.schedule
            depths = by_depth(method, params, config.layer_decay)
            for depth, part in [(depth, part) for depth, both in depths for part in split_sharded(both) if part]:
                factors.append(partial(schedule_factor, config, kind, steps, warmup=own.warmup if own else None))
                settings.append({"params": part, "lr": lr * config.layer_decay**depth, "weight_decay": decay})
        self.config, self.steps = config, steps
        self.optimizer: torch.optim.Optimizer
        if isinstance(config, SGDConfig):
            # Fused, a first step that overflows in fp16 is skipped and leaves its momentum uninitialised.
            fused = precision != "fp16"
            self.optimizer = torch.optim.SGD(settings, momentum=config.momentum, nesterov=config.nesterov, fused=fused)
        else:
            self.optimizer = torch.optim.AdamW(settings, betas=config.betas, eps=config.eps, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, [*factors])
        self.scaler = torch.amp.GradScaler(enabled=precision == "fp16")

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    @property
    def rate(self) -> float:
        """The learning rate of the next update, of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def clip(self) -> Tensor:
        """Clip what the backwards have made, unscaled. Returns the gradient's norm before."""
        self.scaler.unscale_(self.optimizer)
        return clip_gradients(
            [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None],
            self.config.max_grad_norm,
        )

    def update(self, broken: Tensor | None = None) -> None:
        """Update the parameters, unless `broken` is 1 (float32, scalar), and advance the schedule."""
        self._set_momentum()
        if not self.scaler.is_enabled():  # which looks for itself
            self.optimizer.found_inf = broken  # type: ignore[attr-defined]  # what torch's fused kernels ask for
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()

    def _set_momentum(self) -> None:
        config = self.config
        if not isinstance(config, SGDConfig) or config.momentum_after_warmup is None:
            return
        warming = self.schedule.last_epoch + config.ahead < warm_steps(config.warmup, self.steps)
        for group in self.optimizer.param_groups:
            group["momentum"] = config.momentum if warming else config.momentum_after_warmup

    def state_dict(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moments, the place in the schedule, the scaler. Rates and decays stay the config's, which a sweep may change."""
        rates = list(self.schedule.base_lrs)
        own = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        params = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = {
            number: {
                name: local_part(value, params[number]) if isinstance(value, Tensor) else value for name, value in of.items()
            }
            for number, of in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": moments})
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self.schedule.base_lrs = rates
        now = [rate * factor(self.schedule.last_epoch) for rate, factor in zip(rates, self.schedule.lr_lambdas, strict=True)]
        for group, settings, rate in zip(self.optimizer.param_groups, own, now, strict=True):
            group.update({**settings, "lr": rate})
