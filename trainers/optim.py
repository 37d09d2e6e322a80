"""The optimizer of one turn: AdamW with its own schedule, loss scaling and clipping."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainers.method import Method
from trainers.recipe import OptimConfig


def schedule_factor(config: OptimConfig, kind: str, steps: int, step: int) -> float:
    """Factor on the learning rate at `step` of `steps`: linear warm-up, then linear, cosine or constant."""
    warm = config.warmup * steps if config.warmup < 1 else config.warmup
    step += config.ahead
    if step < warm:
        return (step + 1) / math.ceil(warm)
    share = (step - warm) / max(1.0, steps - warm)
    return {"linear": max(0.0, 1 - share), "cosine": 0.5 * (1 + math.cos(math.pi * share)), "constant": 1.0}[kind]


class TurnOptimizer:
    """AdamW, schedule, scaler and clipping of one turn."""

    def __init__(self, method: Method, turn: str, config: OptimConfig, steps: int, precision: str) -> None:
        groups = method.param_groups(turn)
        if unknown := set(config.groups) - set(groups):
            raise ValueError(f"optim.{turn}.groups names {sorted(unknown)}; the method has {sorted(groups)}")
        settings = []
        kinds = []
        for name, params in groups.items():
            own = config.groups.get(name)
            lr = config.lr if own is None or own.lr is None else own.lr
            decay = config.weight_decay if own is None or own.weight_decay is None else own.weight_decay
            if name == "biases_and_norms" and (own is None or own.weight_decay is None):
                decay = 0.0
            kinds.append(config.schedule if own is None or own.schedule is None else own.schedule)
            settings.append({"params": params, "lr": lr, "weight_decay": decay})
        self.config = config
        self.optimizer = torch.optim.AdamW(settings, betas=config.betas, eps=config.eps, fused=True)
        factors = [partial(schedule_factor, config, kind, steps) for kind in kinds]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, [*factors])
        self.scaler = torch.amp.GradScaler(enabled=precision == "fp16")

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def step(self) -> float:
        """Clip, update, advance the schedule. Returns the gradient's norm before clipping."""
        self.scaler.unscale_(self.optimizer)
        params = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self.config.clip is None:  # clipping at infinity would write every gradient once more
            norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        else:
            norm = torch.nn.utils.clip_grad_norm_(params, self.config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
