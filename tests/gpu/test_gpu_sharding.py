"""Sharded layers, DDP and gathered rows of a single process on a GPU give the gradients of the plain method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from multicse.trainers.engine.checkpoint import set_weights, weights_of
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.sharding import full_tensors, is_sharded, sharded_layers
from multicse.trainers.engine.step import Stepper
from multicse.trainers.gather import _Gather
from multicse.trainers.recipe import Recipe
from tests.gpu.compare import DTYPES, LIMITS, assert_close, gradients
from tests.method_steps import engine, first_batches, smoke

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise", "group")]
SETTINGS = {"run.max_steps": 8, "run.tf32": False}


@pytest.fixture
def group(device: torch.device, tmp_path: Path) -> Iterator[None]:
    """Start a process group of this process alone."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recipe(shards: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)
    return smoke("visualcse", {**SETTINGS, "run.output_dir": str(tmp_path / "run")}, shards)


def backward(made: Engine, stepper: Stepper) -> dict[str, Tensor]:
    """Return the losses of all updates and the gradients, without dropout; gradients are not divided by a loss scale."""
    made.method.eval()
    torch.manual_seed(0)
    found: dict[str, Tensor] = {}
    for update, batches in zip(stepper.optimizers, first_batches(made), strict=True):
        output = stepper._backward(update, batches, last=True)
        found |= {name: value.detach() for name, value in output.losses.items()}
    return {name: full_tensors(tensor) for name, tensor in (found | gradients(made.method)).items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("chunk", [None, 5])
def test_sharded_layers(precision: str, chunk: int | None, recipe: Recipe, device: torch.device) -> None:
    """FSDP: gradients, a step, and weights that are gathered and restored."""
    changed = recipe.changed({"run.precision": precision, "run.mini_batch_size": chunk})
    plain, made = engine(changed, device), engine(changed.replace("run.sharded", True), device)
    assert sharded_layers(made.method) and any(is_sharded(p) for p in made.method.parameters())
    before = weights_of(made.method)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(plain.method).items())
    found, wanted = backward(made, made.stepper), backward(plain, plain.stepper)
    assert_close(found, wanted, 2 * LIMITS[DTYPES[precision]])
    with made.streams as readers:
        for step in range(2):
            made.stepper(step, readers, made.meter)
    made.stepper.finite.check()
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights_of(made.method).items())
    set_weights(made.method, before)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(made.method).items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ddp(precision: str, recipe: Recipe, device: torch.device) -> None:
    """The module of DDP, which is made after the first backward pass of an update, gives the same gradients."""
    made = engine(recipe.replace("run.precision", precision), device)
    stepper = Stepper(made.recipe, made.method, made.host, made.steps)
    wanted = backward(made, stepper)
    stepper.parallel = True
    made.method.eval()
    for update, batches in zip(stepper.optimizers, first_batches(made), strict=True):
        stepper._backward(update, batches, last=True)
        stepper._average(update)
        made.method.zero_grad()
    assert stepper.models.keys() == stepper.optimizers.keys()
    assert_close(backward(made, stepper), wanted, LIMITS[DTYPES[precision]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathered_rows(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(device, dtype).requires_grad_()
    rows = _Gather.apply(x)
    assert torch.equal(rows, x)
    rows.square().sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.detach())
