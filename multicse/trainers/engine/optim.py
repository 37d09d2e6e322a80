"""Optimizer of one update: AdamW or SGD with schedule, loss scaling and gradient clipping."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from multicse.trainers.engine.sharding import clip_gradients, local_part, split_sharded
from multicse.trainers.method import Method, Schedule, decay
from multicse.trainers.recipe import OptimConfig, ScheduleConfig, SGDConfig


def _warm_steps(warmup: float, steps: int) -> float:
    """Return the number of warm-up steps: `warmup` is a fraction of all steps if it is below 1."""
    return warmup * steps if warmup < 1 else warmup


def schedule_factor(config: ScheduleConfig, kind: Schedule, steps: int, step: int, warmup: float | None = None) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then linear, cosine or constant.

    Args:
        config: Schedule settings.
        kind: Schedule after the warm-up.
        steps: Steps of the run.
        step: Current step, from 0.
        warmup: Number of steps, or fraction of `steps` below 1. If None, the warm-up of `config`.
    """
    warm = _warm_steps(config.warmup if warmup is None else warmup, steps)
    step += config.ahead
    if step < warm:
        return (step + 1) / math.ceil(warm)
    share = (step - warm) / max(1.0, steps - warm)
    return decay(kind, share)


def _by_depth(method: Method, params: list[nn.Parameter], decay: float) -> list[tuple[int, list[nn.Parameter]]]:
    """Group parameters by depth: 1 for the last layer of the sentence encoder, 2 for the one below it, 0 outside of them."""
    if decay == 1:
        return [(0, params)]
    layers = method.sentence_encoder.stack()
    depths = {parameter: len(layers) - i for i, layer in enumerate(layers) for parameter in layer.parameters()}
    found: dict[int, list[nn.Parameter]] = {}
    for parameter in params:
        found.setdefault(depths.get(parameter, 0), []).append(parameter)
    return sorted(found.items())


class UpdateOptimizer:
    """Optimizer, schedule, loss scaler and clipping of one update.

    With fp16 an update whose gradient overflows is skipped and not counted by the schedule. To avoid waiting for the device,
    this count and the learning rates of all steps are stored on the device.

    Args:
        method: Method with the parameters.
        update: Name of the update.
        config: Settings of the optimizer.
        steps: Steps of the run.
        precision: Precision of the run; fp16 enables loss scaling.

    Raises:
        ValueError: If the config names a parameter group that the method does not have.
    """

    def __init__(self, method: Method, update: str, config: OptimConfig | SGDConfig, steps: int, precision: str) -> None:
        groups = method.param_groups(update)
        if unknown := set(config.groups) - set(groups):
            raise ValueError(f"optim.{update}.groups names {sorted(unknown)}; the method has {sorted(groups)}")
        settings = []
        self.schedules: list[tuple[Schedule, float | None]] = []
        """Schedule and warm-up of each parameter group."""
        for name, params in groups.items():
            own = config.groups.get(name)
            lr = config.lr if own is None or own.lr is None else own.lr
            decay = config.weight_decay if own is None or own.weight_decay is None else own.weight_decay
            if name == "biases_and_norms" and (own is None or own.weight_decay is None):
                decay = 0.0
            kind = config.schedule if own is None or own.schedule is None else own.schedule
            depths = _by_depth(method, params, config.layer_decay)
            for depth, part in [(depth, part) for depth, both in depths for part in split_sharded(both) if part]:
                self.schedules.append((kind, own.warmup if own else None))
                settings.append({"params": part, "lr": lr * config.layer_decay**depth, "weight_decay": decay})
        self.config, self.steps = config, steps
        self.optimizer: torch.optim.Optimizer
        if isinstance(config, SGDConfig):
            self.optimizer = torch.optim.SGD(settings, momentum=config.momentum, nesterov=config.nesterov, fused=True)
            if config.momentum or config.momentum_after_warmup:  # torch does not define them if the first update is skipped
                for parameter in self.parameters:
                    self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        else:
            self.optimizer = torch.optim.AdamW(settings, betas=config.betas, eps=config.eps, fused=True)
        self.base = [float(group["lr"]) for group in self.optimizer.param_groups]
        """Peak learning rate of each parameter group."""
        self.updates = 0
        """Number of updates so far, including skipped updates."""
        self.scaling: dict[str, Tensor] = {}
        """With fp16: ``loss_scale`` of the latest gradient, and ``skipped``: 1 if it overflowed, otherwise 0."""
        device = self.parameters[0].device
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._applied: Tensor | None = None
        if self.scaler.is_enabled():
            self._applied = torch.zeros(1, dtype=torch.long, device=device)
            factors = {one: [self._factor(one, step) for step in range(steps + 1)] for one in {*self.schedules}}
            table = torch.tensor([factors[one] for one in self.schedules], dtype=torch.float64)
            table *= torch.tensor(self.base, dtype=torch.float64)[:, None]
            self._rates = table.to(device, torch.float32)
        self._set_rates()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of all groups."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _factor(self, schedule: tuple[Schedule, float | None], step: int) -> float:
        return schedule_factor(self.config, schedule[0], self.steps, step, schedule[1])

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss, a scalar, times the loss scale."""
        self.scaler.scale(loss).backward()

    @property
    def rate(self) -> float | Tensor:
        """Learning rate of the first parameter group in the next update; with fp16 a tensor on the device."""
        rate: float | Tensor = self.optimizer.param_groups[0]["lr"]
        return rate

    def clip(self) -> Tensor:
        """Unscale and clip the gradients. Return their norm before clipping, a scalar."""
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients([p for p in self.parameters if p.grad is not None], self.config.max_grad_norm)
        if self.scaler.is_enabled():
            self.scaling = {
                "loss_scale": self.scaler.scale(torch.ones_like(norm)),
                "skipped": (~norm.isfinite()).float(),
            }
        return norm

    def update(self, broken: Tensor | None = None) -> None:
        """Update the parameters and advance the schedule, unless the gradient of `clip` overflowed in fp16.

        Args:
            broken: Flag, (), float32. If 1, nothing is updated.
        """
        self._set_momentum()
        if self._applied is not None:
            skipped = self.scaling["skipped"]
            broken = skipped if broken is None else torch.maximum(broken, skipped)
            self._applied += broken == 0
        self.optimizer.found_inf = broken  # type: ignore[attr-defined]  # read by torch's fused kernels
        self.optimizer.step()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        self._set_rates()

    def _set_rates(self) -> None:
        """Set the learning rate of the next update for every parameter group."""
        rates: Any
        if self._applied is None:
            rates = [base * self._factor(one, self.updates) for base, one in zip(self.base, self.schedules, strict=True)]
        else:
            rates = self._rates.index_select(1, self._applied).squeeze(1)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _set_momentum(self) -> None:
        """Change the momentum after the warm-up, which includes skipped updates: the host does not know them."""
        config = self.config
        if not isinstance(config, SGDConfig) or config.momentum_after_warmup is None:
            return
        warming = self.updates + config.ahead < _warm_steps(config.warmup, self.steps)
        for group in self.optimizer.param_groups:
            group["momentum"] = config.momentum if warming else config.momentum_after_warmup

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, schedule and scaler."""
        schedule = {"last_epoch": self.updates, "applied": self._applied}
        return {"optimizer": self.optimizer.state_dict(), "schedule": schedule, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore optimizer, schedule and scaler; learning rates and weight decay stay as configured."""
        own = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        params = self.parameters
        moments = {
            number: {
                name: local_part(value, params[number]) if isinstance(value, Tensor) else value for name, value in of.items()
            }
            for number, of in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": moments})
        for group, settings in zip(self.optimizer.param_groups, own, strict=True):
            group.update(settings)
        self.scaler.load_state_dict(state["scaler"])
        self.updates = state["schedule"]["last_epoch"]
        if self._applied is not None:
            self._applied.copy_(state["schedule"]["applied"])
        self._set_rates()
