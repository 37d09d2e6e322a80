"""Two workers: DDP of the parameters of each update, and stopping in the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from multicse.trainers.engine import step
from multicse.trainers.engine.hosts import StopQuestion
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.engine.step import Stepper
from multicse.trainers.nonling import NonLingCSE
from multicse.trainers.recipe import Recipe
from tests.worlds import in_processes, run, same_weights


class Searching(Stepper):
    """Stepper with DDP of all parameters, which searches for unused ones in every step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        found = DistributedDataParallel(self.method, broadcast_buffers=False, find_unused_parameters=True)
        self.models = dict.fromkeys(self.optimizers, found)

    def _average(self, update: str) -> None:
        """Leave averaging to DDP."""


def _updates(recipe: Recipe, folder: str) -> None:
    """Compare with a DDP that searches for unused parameters: the weights are equal."""
    made = {}
    buffers: dict[str, list[tuple[int, int]]] = {"known": [], "searching": []}
    """Number of gradients, and of the memory blocks that contain them, at every clipping."""
    clip = UpdateOptimizer.clip
    for name, kind in {"known": Stepper, "searching": Searching}.items():

        def counted(optimizer: UpdateOptimizer, seen: list[tuple[int, int]] = buffers[name]) -> torch.Tensor:
            gradients = [p.grad for p in optimizer.parameters if p.grad is not None]
            seen.append((len(gradients), len({gradient.untyped_storage().data_ptr() for gradient in gradients})))
            return clip(optimizer)

        with (
            patch("multicse.trainers.engine.loop.Stepper", kind),
            patch.object(step, "DDP_DEVICES", ("cpu",)),
            patch.object(UpdateOptimizer, "clip", counted),
        ):
            made[name] = run(recipe.replace("run.output_dir", f"{folder}/{name}"))[2]
    assert all(blocks == count for count, blocks in buffers["searching"]), buffers
    assert all(blocks == 1 for _, blocks in buffers["known"]), "gradients are stored in DDP's bucket only"
    same_weights(made["known"].method, made["searching"].method)
    stepper = made["known"].stepper
    assert stepper.models.keys() == {"image", "audio", "text"}
    for update, model in stepper.models.items():
        trained = {id(made["known"].method.get_parameter(name)) for name in stepper.trained[update]}
        assert {id(parameter) for parameter in model.parameters()} == trained
        assert not model.find_unused_parameters
    assert not any("word_embeddings" in name or "patches.audio" in name for name in stepper.trained["image"])
    assert any("patches.image" in name for name in stepper.trained["image"])
    assert any("word_embeddings" in name for name in stepper.trained["text"])


def _changing(recipe: Recipe, folder: str) -> None:
    """An update that trains a parameter only in some steps raises an error."""
    encode = NonLingCSE.encode

    def sometimes(method: NonLingCSE, stream: str, batch: Any) -> Any:
        found = encode(method, stream, batch)
        if stream == "image" and method.progress > 0:
            found["views"] = found["views"] + method.heads["audio"](found["views"])
        return found

    with (
        patch.object(NonLingCSE, "encode", sometimes),
        pytest.raises(ValueError, match=r"update 'image' of method 'nonling' gives heads\.audio.* a gradient"),
    ):
        run(recipe.replace("run.output_dir", f"{folder}/changing"))


def _stop(rank: int) -> None:
    """Request a stop on the first rank between two exchanges: both ranks stop in the same step, at most ten later."""
    question, calls = StopQuestion(), 0
    with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as exchanged:
        while not question(rank == 0 and calls >= 25, 2):
            calls += 1
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, calls)
    assert 25 <= calls <= 35 and everyone == [calls, calls]
    assert exchanged.call_count <= 5


def _worker(rank: int, folder: str, recipe: Recipe) -> None:
    _updates(recipe, f"{folder}/{rank}")
    _changing(recipe, f"{folder}/{rank}")
    _stop(rank)


def test_two_workers(recipe: Recipe, tmp_path: Path) -> None:
    quick = recipe.changed({"evaluation.select": None, "evaluation.final": (), "run.gradient_accumulation_steps": 2})
    in_processes(_worker, tmp_path, quick)


def test_ranks_exchange_after_every_slow_step() -> None:
    question, exchanges = StopQuestion(), 0
    clock = iter(range(100))
    torch_reduce = patch.object(dist, "all_reduce")
    with patch("time.monotonic", lambda: float(next(clock))), torch_reduce as exchanged:
        question._since = -1.0
        for _ in range(5):
            assert not question(False, 2)
            exchanges += 1
            assert exchanged.call_count == exchanges
    assert torch.is_tensor(exchanged.call_args.args[0])
