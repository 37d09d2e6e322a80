"""One step of a run: every turn's losses, gradients and update. The host never waits for the device in it."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multicse.data.batch import Batch
from multicse.data.order import seed_of
from multicse.data.stream import Reader
from multicse.trainers.engine.cached import cached_backward
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.optim import TurnOptimizer
from multicse.trainers.engine.sharding import apart, full_tensors
from multicse.trainers.engine.window import Window
from multicse.trainers.gather import average
from multicse.trainers.method import Method, StepOutput
from multicse.trainers.recipe import Recipe

if TYPE_CHECKING:  # seconds, which a driver need not wait before it starts Ray
    from transformers import PreTrainedModel

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NonFiniteLoss(FloatingPointError):
    """A loss, or its gradient, became NaN or infinite."""


class Stepper:
    """Carries out the steps of one rank; `optimizers` has one of every turn."""

    def __init__(self, recipe: Recipe, method: Method, host: Host, steps: int) -> None:
        run = recipe.run
        self.recipe, self.method, self.host = recipe, method, host
        for model in _transformers(method):
            if run.gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if run.compile:
                model.compile(dynamic=True)
        self.model: nn.Module = method
        # DDP is for one backward, and cached gradients have several; shared layers come with an average of their own.
        if host.world_size > 1 and run.chunk is None and not run.sharded:
            self.model = DistributedDataParallel(
                method,
                device_ids=[host.device] if host.device.type == "cuda" else None,
                broadcast_buffers=False,
                find_unused_parameters=len(recipe.turns) > 1,  # each leaves the other's parameters unused
            )
        self.optimizers = {
            turn: TurnOptimizer(method, turn, recipe.optim[turn], steps, run.precision) for turn in recipe.turns
        }
        self.watch = Watch(host.device)

    def __call__(self, step: int, readers: dict[str, Reader], window: Window) -> None:
        """All turns once; what is measured goes to the window. Random numbers depend on (seed, rank, step) alone, so that a
        resumed run repeats them.

        Raises NonFiniteLoss for a step before; `watch.check` also for this one. After such a loss nothing is updated.
        """
        run, host, watch = self.recipe.run, self.host, self.watch
        window.steps += 1
        self.model.train()
        torch.manual_seed(seed_of(run.seed, "step", host.rank, step) % 2**63)
        for turn, streams in self.recipe.turns.items():
            optimizer = self.optimizers[turn]
            for part in range(run.accumulation):
                batches = {
                    name: readers[name].on_device(next(readers[name]), host.device, step * run.accumulation + part)
                    for name in streams
                }
                output = self._backward(optimizer, batches, last=part == run.accumulation - 1)
                seen = Seen(step, turn, {name: batch.keys[:8] for name, batch in batches.items()})
                watch.add(seen, output.losses)
                window.add({**output.losses, **output.metrics}, 1 / run.accumulation)
            if self.model is self.method:
                average(apart([p.grad for p in self.method.parameters() if p.grad is not None])[0])
            norm = optimizer.clip()
            if run.precision != "fp16":  # whose scaler leaves out a step that overflows, and goes on with a smaller scale
                watch.add(seen, {"gradient": norm})
            window.add({f"grad_norm/{turn}": norm})
            window.rates[f"train/lr/{turn}"] += optimizer.rate
            optimizer.update(watch.broken)
        watch.check(before=step)

    def _backward(self, optimizer: TurnOptimizer, batches: dict[str, Batch], last: bool) -> StepOutput:
        """The losses of a turn, and their gradients added to the parameters'; with DDP those of all workers after the
        `last` batch."""
        chunk, weights = self.recipe.run.chunk, self.method.loss_weights

        def backward(output: StepOutput) -> None:
            loss = torch.stack([weights.get(name, 1.0) * value.float() for name, value in output.losses.items()]).sum()
            optimizer.backward(loss / self.recipe.run.accumulation)

        if chunk is not None and any(len(batch) > chunk for batch in batches.values()):
            return cached_backward(self.method, batches, chunk, backward, self._autocast)
        wait = not last and isinstance(self.model, DistributedDataParallel)
        with self.model.no_sync() if wait else contextlib.nullcontext():  # type: ignore[operator]  # DDP's
            with self._autocast():
                output: StepOutput = full_tensors(self.model(batches))  # a penalty of shared weights
            backward(output)
        return output

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = PRECISIONS.get(self.recipe.run.precision)
        return torch.autocast(self.host.device.type, dtype) if dtype else contextlib.nullcontext()


class Seen(NamedTuple):
    """Where a loss comes from: step, turn, and of every stream the first samples."""

    step: int
    turn: str
    keys: dict[str, list[str]]


class Watch:
    """Finds what is not finite, a step later on a GPU, whose queue of work would run empty if somebody waited for it."""

    def __init__(self, device: torch.device) -> None:
        self.broken = torch.zeros((), device=device)
        """1 once something was not finite: what an optimizer takes for a reason to change nothing."""
        self.coming: deque[tuple[Seen, tuple[str, ...], Tensor, torch.cuda.Event | None]] = deque()

    def add(self, seen: Seen, values: dict[str, Tensor]) -> None:
        """Look at these scalars."""
        stacked = torch.stack([value.detach().float() for value in values.values()])
        self.broken = torch.maximum(self.broken, (~stacked.isfinite().all()).float())
        event = torch.cuda.Event() if stacked.is_cuda else None
        self.coming.append((seen, tuple(values), stacked.to("cpu", non_blocking=True), event))
        if event:
            event.record()

    def check(self, before: int | None = None) -> None:
        """Raise NonFiniteLoss for the steps before that one; without one for all, as on a CPU."""
        while self.coming:
            seen, names, values, event = self.coming[0]
            if event and before is not None and seen.step >= before:
                return
            self.coming.popleft()
            if event:
                event.synchronize()
            if not bool(values.isfinite().all()):
                _raise(seen, dict(zip(names, values.tolist(), strict=True)))


def _raise(seen: Seen, values: dict[str, float]) -> None:
    bad = {name: value for name, value in values.items() if not math.isfinite(value)}
    what = "gradient, though this worker's loss is finite," if "gradient" in bad else f"loss {bad}"
    keys = "; ".join(f"stream {name!r}: {', '.join(first)}" for name, first in seen.keys.items())
    raise NonFiniteLoss(
        f"step {seen.step}, turn {seen.turn!r}: {what} is not finite. Samples of the batch (first 8): {keys}. "
        f"Lower optim.{seen.turn}.lr, set optim.{seen.turn}.clip, or use run.precision fp32 or bf16."
    )


def _transformers(method: nn.Module) -> list[PreTrainedModel]:
    """The outermost Hugging Face models that are trained."""
    from transformers import PreTrainedModel

    trained = [
        module
        for module in method.modules()
        if isinstance(module, PreTrainedModel) and any(p.requires_grad for p in module.parameters())
    ]
    inner = {part for module in trained for part in module.modules() if part is not module}
    return [module for module in trained if module not in inner]
