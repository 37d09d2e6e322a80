"""Training steps of every method on a GPU equal those on the CPU, work in every precision, and wait for nothing."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from multicse.data.streams.base import Batch
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.step import Meter, Stepper
from tests.gpu.compare import LIMITS, DrawsOfTheCPU, assert_close, gradients
from tests.method_steps import CASES, EQUAL, ROWS, TRAINED, engine, first_batches, losses, smoke

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise")]
CHUNK = 5
CHUNKED = [name for name in EQUAL if name != "pretrain"]
"""Rows with losses that do not depend on chunks. Masked tokens are drawn chunk by chunk."""
MOST = 12
"""Steps of fp16 after which the loss scale, which is halved by each overflow, must be small enough."""


class Row(NamedTuple):
    """Engines of one row on the CPU and on the GPU, with equal weights, and their first batches by update."""

    cpu: Engine
    gpu: Engine
    on_cpu: list[dict[str, Batch]]
    on_gpu: list[dict[str, Batch]]


@pytest.fixture(scope="module")
def folder(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Change to a folder for the outputs of the rows."""
    place = tmp_path_factory.mktemp("rows")
    with contextlib.chdir(place):
        yield place


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """Return the rows so far by name."""
    return {}


@pytest.fixture
def row(
    request: pytest.FixtureRequest, rows: dict[str, Row], folder: Path, device: torch.device, shards: dict[str, str]
) -> Row:
    """Return a row."""
    name = request.param
    if name not in rows:
        changes = {"run.max_steps": 8 * MOST, "run.tf32": False}
        if "encoder.vectors" in ROWS[name][1] and not Path(TRAINED["encoder.vectors"]).exists():
            smoke("gclsr", changes, shards)
        recipe = smoke(name, changes, shards)
        cpu, gpu = engine(recipe), engine(recipe, device)
        rows[name] = Row(cpu, gpu, first_batches(cpu), first_batches(gpu))
    return rows[name]


@contextlib.contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Raise RuntimeError if the host waits for the GPU, also to upload from memory that is not pinned."""
    if device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_waits_are_noticed(device: torch.device) -> None:
    """Copies from pinned memory are allowed."""
    if device.type == "cpu":
        pytest.skip("needs a GPU")
    rows, pinned = torch.ones(9), torch.ones(9).pin_memory()
    on_gpu = rows.to(device)
    for wait in (lambda: on_gpu.sum().item(), lambda: on_gpu.nonzero(), lambda: rows.to(device), lambda: on_gpu.cpu()):
        with pytest.raises(RuntimeError, match="synchroniz"), no_waits(device):
            wait()
    with no_waits(device):
        assert pinned.to(device, non_blocking=True).device == on_gpu.device


def tensors(updates: list[dict[str, Batch]]) -> dict[str, Tensor]:
    return {f"{stream}, {name}": t for batches in updates for stream, b in batches.items() for name, t in b.tensors.items()}


@pytest.mark.parametrize("row", ROWS, indirect=True)
def test_batches(row: Row) -> None:
    """With the views of images and audio that are made on the device from the same draws."""
    found, wanted = tensors(row.on_gpu), tensors(row.on_cpu)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].device.type == row.gpu.host.device.type and found[name].dtype == tensor.dtype
        if tensor.is_floating_point():
            assert_close({name: found[name]}, {name: tensor}, LIMITS[torch.float32])
        else:
            assert torch.equal(found[name].cpu(), tensor), name


@pytest.mark.parametrize("row", EQUAL, indirect=True)
def test_losses_and_gradients(row: Row) -> None:
    """Without dropout, in float32; with the random numbers of the CPU on both devices."""
    row.gpu.method.load_state_dict(row.cpu.method.state_dict())
    wanted = losses(row.cpu.method, row.on_cpu)
    with DrawsOfTheCPU():
        found = losses(row.gpu.method, row.on_gpu)
    assert found == pytest.approx(wanted, rel=1e-3)
    assert_close(gradients(row.gpu.method), gradients(row.cpu.method), 1e-3)


@pytest.mark.parametrize("row", CHUNKED, indirect=True)
def test_chunks(row: Row) -> None:
    """Gradients of chunks (GradCache) equal the gradients of the whole batch, without dropout."""
    made, found = row.gpu, []
    made.method.eval()
    for chunk in (None, CHUNK):
        stepper = Stepper(made.recipe.replace("run.mini_batch_size", chunk), made.method, made.host, made.steps)
        torch.manual_seed(0)
        with DrawsOfTheCPU():  # a GPU draws other numbers for a part of the rows than for all of them
            outputs = [
                stepper._backward(update, batches, last=True)
                for update, batches in zip(stepper.optimizers, row.on_gpu, strict=True)
            ]
        values = {name: value.detach() for output in outputs for name, value in output.losses.items()}
        found.append(values | gradients(made.method))
    assert_close(found[1], found[0], 10 * LIMITS[torch.float32])


@pytest.mark.parametrize("row", ["simcse", "visualcse", "clap"], indirect=True)
def test_chunks_are_encoded_twice_with_the_same_dropout(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    made = row.gpu
    stepper = Stepper(made.recipe.replace("run.mini_batch_size", CHUNK), made.method, made.host, made.steps)
    features: list[dict[str, Tensor]] = []
    encode = made.method.encode

    def spied(stream: str, batch: Batch) -> dict[str, Tensor]:
        features.append(encode(stream, batch))
        return features[-1]

    monkeypatch.setattr(made.method, "encode", spied)
    made.method.train()
    for update, batches in zip(stepper.optimizers, row.on_gpu, strict=True):
        features.clear()
        stepper._backward(update, batches, last=True)
        first, second = features[: len(features) // 2], features[len(features) // 2 :]
        assert len(first) >= 4
        for one, again in zip(first, second, strict=True):
            assert all(torch.equal(tensor, again[name]) for name, tensor in one.items())
    made.method.zero_grad()


@pytest.mark.parametrize(("row", "precision"), CASES, indirect=["row"])
def test_steps(row: Row, precision: str, device: torch.device) -> None:
    """Three steps are finite and change the parameters of each update; the second waits for nothing on the GPU.

    The first step may upload tables that stay on the device. With fp16, more steps follow until one does not overflow.
    """
    made = row.gpu
    recipe = made.recipe.replace("run.precision", precision)
    stepper = Stepper(recipe, made.method, made.host, made.steps)
    before = {update: [p.detach().clone() for p in named.values()] for update, named in stepper.named.items()}
    changed = set[str]()
    with made.streams as readers:
        meter = Meter(readers, made.host)
        for step in range(MOST):
            with no_waits(device) if step == 1 else contextlib.nullcontext():
                stepper(step, readers, meter)
                made.method.after_step(step + 1)
            stepper.finite.check()
            for update, named in stepper.named.items():
                if any(not torch.equal(p, old) for p, old in zip(named.values(), before[update], strict=True)):
                    changed.add(update)
            if step >= 2 and (precision != "fp16" or changed == stepper.named.keys()):
                break
    assert changed == stepper.named.keys()
    assert all(parameter.isfinite().all() for parameter in made.method.parameters())
    skipped = [f"train/grad_norm/{update}" for update in stepper.optimizers] if precision == "fp16" else []
    assert all(math.isfinite(value) for name, value in meter.means().items() if name not in skipped)
