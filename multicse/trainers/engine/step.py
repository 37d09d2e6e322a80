"""One training step: losses, gradients and parameter update of every update, without waiting for the device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multicse.data.order import seed_of
from multicse.data.stream import Reader
from multicse.data.streams.base import Batch
from multicse.trainers.engine.hosts import Host, from_all_ranks
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.engine.sharding import full_tensors, reduce_gradients, sharded_layers, split_sharded
from multicse.trainers.gather import average
from multicse.trainers.method import Method, StepOutput
from multicse.trainers.recipe import Recipe, RunConfig

if TYPE_CHECKING:  # its import takes seconds, for which a driver should not wait
    from transformers import PreTrainedModel

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
DDP_DEVICES = ("cuda",)
"""Devices on which DDP exchanges gradients during the backward pass. On CPUs they are averaged after it: DDP changes its
buckets after the first step, so sums over workers would have another order after a resume."""


def set_matmul_precision(run: RunConfig) -> None:
    """Enable TF32 for fp32 matrix products on CUDA (10 bits of mantissa) if the run allows it."""
    tf32 = run.tf32 and run.precision == "fp32"  # in mixed precision, fp32 remains only where rounding would do harm
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # convolutions


class NonFiniteLoss(FloatingPointError):
    """A loss or gradient is NaN or infinite."""


class Stepper:
    """Training steps of one rank.

    Args:
        recipe: Recipe.
        method: Method on the device of `host`. Gradient checkpointing and compilation are enabled here.
        host: Host of the loop.
        steps: Steps of the run.
    """

    def __init__(self, recipe: Recipe, method: Method, host: Host, steps: int) -> None:
        run = recipe.run
        self.recipe, self.method, self.host = recipe, method, host
        for model in _transformers(method):
            if run.gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            if run.compile:
                model.compile(dynamic=True)
        # DDP supports one backward pass per step, gradient caching has several; sharded layers reduce their gradients.
        one_backward = run.mini_batch_size is None and not run.sharded
        self.parallel = host.world_size > 1 and one_backward and host.device.type in DDP_DEVICES
        self.models: dict[str, DistributedDataParallel] = {}
        """DDP module of each update, with the parameters that it trains; created in its first step."""
        self.trained: dict[str, list[str]] = {}
        """Names of the parameters that each update trains."""
        self.optimizers = {
            update: UpdateOptimizer(method, update, recipe.optim[update], steps, run.precision)
            for update in recipe.method.updates()
        }
        names = {parameter: name for name, parameter in method.named_parameters()}
        self.named = {update: {names[p]: p for p in optimizer.parameters} for update, optimizer in self.optimizers.items()}
        self.layers = sharded_layers(method)
        self.finite = FiniteCheck(host.device)

    def __call__(self, step: int, readers: dict[str, Reader], meter: Meter) -> None:
        """Run all updates once and add their metrics to the meter.

        After a loss that is not finite no parameter is updated any more. On GPUs the error is raised later, by
        `finite.check` when metrics are reported, since the host does not wait for the device here.

        Args:
            step: Number of the step, from 0.
            readers: Readers of the streams by name.
            meter: Metrics since the last report.

        Raises:
            NonFiniteLoss: On CPUs, if a loss or gradient is not finite.
            ValueError: If workers or steps train different parameters.
        """
        run, host, finite = self.recipe.run, self.host, self.finite
        meter.steps += 1
        self.method.train()
        torch.manual_seed(seed_of(run.seed, "step", host.rank, step) % 2**63)
        for update, streams in self.recipe.method.updates().items():
            optimizer = self.optimizers[update]
            self.method.zero_grad()  # also the parameters of the other updates
            for part in range(run.gradient_accumulation_steps):
                batches = {name: readers[name].on_device(next(readers[name])) for name in streams}
                output = self._backward(update, batches, last=part == run.gradient_accumulation_steps - 1)
                seen = Seen(step, update, {name: batch.keys[:8] for name, batch in batches.items()})
                finite.add(seen, output.losses)
                meter.add({**output.losses, **output.metrics}, 1 / run.gradient_accumulation_steps)
            if host.world_size > 1:
                self._average(update)
            norm = optimizer.clip()
            if optimizer.scaling:  # an update that overflows is skipped, and the scale is reduced
                norm = norm.nan_to_num(0.0, 0.0)  # `Meter.means` ignores it
            else:
                finite.add(seen, {"gradient": norm})
            meter.add({f"{name}/{update}": value for name, value in {"grad_norm": norm, **optimizer.scaling}.items()})
            meter.add({f"lr/{update}": torch.as_tensor(optimizer.rate, dtype=torch.float64)})
            optimizer.update(finite.broken)
        if host.device.type == "cpu":
            finite.check()

    def _backward(self, update: str, batches: dict[str, Batch], last: bool) -> StepOutput:
        """Compute the losses of an update and add their gradients; DDP and sharded layers reduce them with `last`."""
        chunk, weights = self.recipe.run.mini_batch_size, self.method.loss_weights

        def backward(output: StepOutput) -> None:
            loss = torch.stack([weights.get(name, 1.0) * value.float() for name, value in output.losses.items()]).sum()
            self.optimizers[update].backward(loss / self.recipe.run.gradient_accumulation_steps)

        if chunk is not None and any(len(batch) > chunk for batch in batches.values()):
            return cached_backward(self.method, batches, chunk, backward, self.autocast, last)
        model = self.models.get(update)
        reduce_gradients(self.layers, last)
        with contextlib.nullcontext() if model is None or last else model.no_sync():
            with self.autocast():
                output: StepOutput = full_tensors((model or self.method)(batches))  # a penalty on sharded weights
            backward(output)
        return output

    def _average(self, update: str) -> None:
        """Average the gradients of an update over the workers, unless DDP has done so.

        An update trains the parameters that have a gradient in its first step. DDP of these parameters alone neither has to
        search for unused ones in every step nor exchanges zeros for them.
        """
        found = [name for name, parameter in self.named[update].items() if parameter.grad is not None]
        if update not in self.trained:
            self.trained[update] = found
            everyone = from_all_ranks(found, self.host)
        else:
            everyone = [self.trained[update], found]
        if differing := {name for names in everyone for name in {*found} ^ {*names}}:
            raise ValueError(
                f"update {update!r} of method {self.recipe.method.name!r} gives {sorted(differing)[0]} a gradient only on "
                "some workers or in some steps, so it cannot be averaged. Let a loss of the update always depend on it "
                "(add 0 * parameter.sum()), or set run.num_workers to 1"
            )
        if update in self.models:
            return
        parameters = [self.named[update][name] for name in found]
        average(split_sharded([p.grad for p in parameters])[0])
        if self.parallel:
            device = self.host.device
            self.models[update] = DistributedDataParallel(
                Trained(self.method, parameters),
                device_ids=[device] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,  # otherwise every gradient is stored twice
            )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a new context with the precision of the run."""
        dtype = PRECISIONS.get(self.recipe.run.precision)
        return torch.autocast(self.host.device.type, dtype) if dtype else contextlib.nullcontext()


class Trained(nn.Module):
    """Module that runs a method but has only some of its parameters, and no buffers."""

    def __init__(self, method: Method, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_ = nn.ParameterList(parameters)
        self.call = method.__call__

    def forward(self, batches: dict[str, Batch]) -> StepOutput:
        """Return the output of the method."""
        output: StepOutput = self.call(batches)
        return output


class Seen(NamedTuple):
    """Origin of a loss: step, update, and keys of the first samples of each stream."""

    step: int
    update: str
    keys: dict[str, list[str]]


class FiniteCheck:
    """Detection of losses and gradients that are not finite, without waiting for the device in a step."""

    def __init__(self, device: torch.device) -> None:
        self.broken = torch.zeros((), device=device)
        """1 after the first value that was not finite; optimizers then no longer update."""
        self._pending: list[tuple[Seen, tuple[str, ...], Tensor]] = []

    def add(self, seen: Seen, values: dict[str, Tensor]) -> None:
        """Check scalars by name, with their origin."""
        stacked = torch.stack([value.detach().float() for value in values.values()])
        self.broken = torch.maximum(self.broken, (~stacked.isfinite().all()).float())
        self._pending.append((seen, tuple(values), stacked))

    def check(self) -> None:
        """Raise NonFiniteLoss for the first value that is not finite. This waits for the device."""
        pending, self._pending = self._pending, []
        if bool(self.broken):
            for seen, names, values in pending:
                if not bool(values.isfinite().all()):
                    _raise(seen, dict(zip(names, values.tolist(), strict=True)))


def _raise(seen: Seen, values: dict[str, float]) -> None:
    bad = {name: value for name, value in values.items() if not math.isfinite(value)}
    problem = "gradient is not finite (the loss of this worker is)" if "gradient" in bad else f"loss {bad} is not finite"
    keys = "; ".join(f"stream {name!r}: {', '.join(first)}" for name, first in seen.keys.items())
    raise NonFiniteLoss(
        f"step {seen.step}, update {seen.update!r}: {problem}. Samples of the batch (first 8): {keys}. "
        f"Lower optim.{seen.update}.lr, set optim.{seen.update}.max_grad_norm, or use run.precision fp32 or bf16."
    )


def _transformers(method: nn.Module) -> list[PreTrainedModel]:
    """Return the outermost Hugging Face models that are trained."""
    from transformers import PreTrainedModel

    trained = [
        module
        for module in method.modules()
        if isinstance(module, PreTrainedModel) and any(p.requires_grad for p in module.parameters())
    ]
    inner = {part for module in trained for part in module.modules() if part is not module}
    return [module for module in trained if module not in inner]


def cached_backward(
    method: Method,
    batches: dict[str, Batch],
    chunk: int,
    backward: Callable[[StepOutput], None],
    autocast: Callable[[], AbstractContextManager[Any]],
    last: bool = True,
) -> StepOutput:
    """Compute the losses of an update and their gradients with gradient caching (GradCache).

    Every chunk is encoded without a graph. `backward` computes the gradients of the losses with respect to all features and
    to the parameters that the losses use directly. Then every chunk is encoded again, with the same random numbers, and its
    features' gradients are propagated. The result equals one graph over the same chunks and costs one more forward pass.

    Args:
        method: Method, whose parameters get the gradients.
        batches: Batch of each stream.
        chunk: Samples per chunk.
        backward: Runs the backward pass of the losses.
        autocast: Returns a new context of mixed precision; every graph needs its own, since it caches casted weights.
        last: Let sharded layers reduce their gradients in the last chunk of each stream. If False, they are accumulated.

    Returns:
        Losses and metrics of the update.

    References:
        Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021.
    """
    layers = sharded_layers(method)
    reduce_gradients(layers, last)
    device = next(method.parameters()).device
    chunks = [
        (name, first, batch.rows(first, first + chunk))
        for name, batch in batches.items()
        for first in range(0, len(batch), chunk)
    ]
    states: list[list[Tensor]] = []
    parts: dict[str, list[dict[str, Tensor]]] = {name: [] for name in batches}
    with torch.no_grad(), autocast():
        for name, _, rows in chunks:
            states.append(_random_state(device))
            parts[name].append(method.encode(name, rows))
    features = {name: _leaves(found) for name, found in parts.items()}
    del parts
    with autocast():
        output = method.nested_losses(features, batches)
        output = full_tensors(StepOutput({**output.losses, **method.penalties()}, output.metrics))
    backward(output)
    after = _random_state(device)
    for (name, first, rows), state in zip(chunks, states, strict=True):
        _set_random_state(state, device)
        with autocast():
            again = method.encode(name, rows)
        gradients = {key: leaf.grad[first : first + chunk] for key, leaf in features[name].items() if leaf.grad is not None}
        learned = [key for key in gradients if again[key].requires_grad]
        reduce_gradients(layers, last and first + chunk >= len(batches[name]))
        torch.autograd.backward([again[key] for key in learned], [gradients[key] for key in learned])
    _set_random_state(after, device)
    return output


def _leaves(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the features of all chunks, (N, ...), as leaf tensors with gradients if they are floating-point."""
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: feature.requires_grad_(feature.is_floating_point()) for key, feature in joined.items()}


def _random_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


class Meter:
    """Metrics and times of a rank since the last report. Sums stay on the device until the means are requested."""

    def __init__(self, readers: dict[str, Reader], host: Host) -> None:
        self.readers, self.host = readers, host
        self.restart()

    def restart(self) -> None:
        """Start again, after a report."""
        self.start, self.steps = time.perf_counter(), 0
        self.sums: dict[tuple[str, ...], Tensor] = {}
        self.waited = {name: reader.wait_seconds for name, reader in self.readers.items()}

    def add(self, values: dict[str, Tensor], share: float = 1.0) -> None:
        """Add `share` times each scalar to the sum of its name."""
        names = tuple(values)
        added = torch.stack([value.detach().double() for value in values.values()]) * share
        self.sums[names] = self.sums[names].to(added.device) + added if names in self.sums else added

    def state_dict(self) -> dict[str, Any]:
        """Return the measurements of all ranks; a collective, which waits for the device."""
        sums = {names: tensor.cpu() for names, tensor in self.sums.items()}
        return {"steps": self.steps, "seconds": self.elapsed(), "sums": from_all_ranks(sums, self.host)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, on another number of ranks with the mean over the ranks, which is unchanged."""
        self.steps, self.start, sums = state["steps"], time.perf_counter() - state["seconds"], state["sums"]
        if len(sums) == self.host.world_size:
            self.sums = sums[self.host.rank]
        else:
            self.sums = {names: torch.stack([one[names] for one in sums]).mean(0) for names in sums[0]}

    def elapsed(self) -> float:
        """Return the seconds since the last report."""
        return max(1e-9, time.perf_counter() - self.start)

    def means(self) -> dict[str, float]:
        """Return the mean of every value over the steps, as ``train/<name>``. This waits for the device."""
        found: dict[str, float] = {}
        for names, sums in self.sums.items():
            found |= {f"train/{name}": value / self.steps for name, value in zip(names, sums.tolist(), strict=True)}
        for name, share in found.items():  # gradient norms are averaged over the updates that were not skipped
            if name.startswith("train/skipped/"):
                found[name.replace("skipped", "grad_norm", 1)] /= (1 - share) or 1.0
        return found

    def wait_shares(self) -> dict[str, float]:
        """Return the fraction of the time spent waiting for each stream, as ``data/<stream>/wait_share``."""
        return {
            f"data/{name}/wait_share": (reader.wait_seconds - self.waited.get(name, 0.0)) / self.elapsed()
            for name, reader in self.readers.items()
        }
