"""A run on a GPU that is resumed from its checkpoint continues exactly, and its checkpoints open on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from multicse.trainers.engine.checkpoint import METHOD, load_method, module_encoder, weights_of
from multicse.trainers.engine.loop import Engine
from multicse.trainers.recipe import Recipe
from tests.gpu.compare import LIMITS, assert_close
from tests.method_steps import PRECISIONS, engine, smoke

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("precise", "deterministic")]
STEPS = {"run.max_steps": 4, "run.save_steps": 2, "run.keep_every": 2, "run.tf32": False}


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Choose deterministic algorithms; operators without one only warn."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def trained(recipe: Recipe, device: torch.device) -> Engine:
    made = engine(recipe, device)
    made.train()
    made.host.store.settle()
    return made


def moments(made: Engine) -> dict[str, Tensor]:
    """Return the state of all optimizers."""
    states = {update: optimizer.state_dict()["optimizer"]["state"] for update, optimizer in made.stepper.optimizers.items()}
    return {
        f"{update} {number} {name}": value
        for update, state in states.items()
        for number, of in state.items()
        for name, value in of.items()
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["simcse", "simcse, chunks", "visualcse"])
def test_a_resumed_run_is_equal(
    name: str, precision: str, device: torch.device, shards: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps at once, and two steps, a checkpoint and two steps: weights, moments and loss scale, bit by bit."""
    monkeypatch.chdir(tmp_path)
    recipe = smoke(name, {**STEPS, "run.precision": precision, "run.output_dir": str(tmp_path / "whole")}, shards)
    whole = trained(recipe, device)
    if not equal(weights_of(trained(recipe.replace("run.output_dir", "again"), device).method), weights_of(whole.method)):
        pytest.skip("two uninterrupted runs differ: an operator of this GPU is not deterministic")
    half = recipe.replace("run.output_dir", str(tmp_path / "half"))
    stopped = engine(half, device)
    stopped.host.stopping = lambda: stopped.step == 2  # type: ignore[method-assign]
    with pytest.raises(Exception, match="stopped after step 2"):
        stopped.train()
    stopped.host.store.settle()
    assert not equal(weights_of(stopped.method), weights_of(whole.method))
    resumed = engine(half, device)
    assert not equal(weights_of(resumed.method), weights_of(stopped.method))
    resumed.train()
    assert resumed.step == 4 and equal(weights_of(resumed.method), weights_of(whole.method))
    assert equal(moments(resumed), moments(whole))
    for update, optimizer in whole.stepper.optimizers.items():
        assert resumed.stepper.optimizers[update].scaler.state_dict() == optimizer.scaler.state_dict()
        assert float(resumed.stepper.optimizers[update].rate) == float(optimizer.rate)


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    assert found.keys() == wanted.keys()
    return all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpoint_opens_on_a_cpu(
    precision: str,
    device: torch.device,
    shards: dict[str, str],
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its vectors are equal, and training can continue there."""
    monkeypatch.chdir(tmp_path)
    recipe = smoke("simcse", {**STEPS, "run.precision": precision, "run.output_dir": str(tmp_path / "run")}, shards)
    made = trained(recipe, device)
    folder = tmp_path / "run" / "checkpoint" / "step-00000004"
    assert all(tensor.device.type == "cpu" for tensor in load_file(folder / METHOD).values())
    method = load_method(tmp_path / "run")
    assert next(method.parameters()).device.type == "cpu" and equal(weights_of(method), weights_of(made.method))
    on_gpu = module_encoder(made.method, device).encode(texts)
    on_cpu = module_encoder(method, torch.device("cpu")).encode(texts)
    assert_close({"v": torch.from_numpy(on_gpu)}, {"v": torch.from_numpy(on_cpu)}, LIMITS[torch.float32])
    longer = engine(recipe.replace("run.max_steps", 5).replace("run.precision", "fp32"))
    longer._load(folder)
    assert longer.step == 4 and equal(weights_of(longer.method), weights_of(made.method))
