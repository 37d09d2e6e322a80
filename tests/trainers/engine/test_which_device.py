"""Device of training: `run.gpus_per_worker` selects it, an unused GPU is logged, and the driver does not touch it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from multicse.commands.describe import describe_recipe
from multicse.trainers.engine import launch
from multicse.trainers.engine.checks import check_recipe, check_settings
from multicse.trainers.engine.hosts import Host
from multicse.trainers.recipe import Recipe, RecipeError
from tests.worlds import four_steps

UNUSED = "GPUs available: 1. Set --run.gpus_per_worker 1"


@pytest.fixture
def gpu() -> Iterator[None]:
    """Simulate a GPU on which creating a CUDA context is an error."""
    with (
        patch("torch.cuda.device_count", return_value=1),
        patch("torch.cuda.is_available", return_value=True),
        patch("torch.cuda._lazy_init", side_effect=AssertionError("a CUDA context was opened")),
    ):
        yield


class Trained(Exception):
    """Raised at the start of training."""


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cuda")])
@pytest.mark.usefixtures("gpu")
def test_the_recipe_selects_the_device_and_an_unused_gpu_is_logged(
    recipe: Recipe, tmp_path: Path, tables: Path, gpus: int, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one process, from the checks up to the first step."""
    seen: list[Host] = []

    def engine(recipe: Recipe, host: Host, log: object) -> None:
        seen.append(host)
        raise Trained

    uri = f"sqlite:///{shutil.copy(tables, tmp_path / 'mlflow.db')}"
    changes = {"run.tracking_uri": uri, "run.gpus_per_worker": gpus, "run.threads": None if gpus else 1}
    with patch("multicse.trainers.engine.run.Engine", engine), pytest.raises(Trained):
        launch.run_recipe(four_steps(recipe, tmp_path, changes))
    assert seen[0].device == torch.device(device)
    assert (UNUSED in caplog.text) == (device == "cpu")


@pytest.mark.usefixtures("gpu")
def test_describing_a_recipe_creates_no_cuda_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "parameters" in describe_recipe("simcse", "smoke")


def test_workers_do_not_share_a_gpu(recipe: Recipe) -> None:
    recipe = recipe.replace("run.threads", None)
    check_settings(recipe.changed({"run.num_workers": 1, "run.gpus_per_worker": 0.5}))
    with pytest.raises(RecipeError, match=r"run\.gpus_per_worker=0\.5 with run\.num_workers=2.*NCCL"):
        check_settings(recipe.changed({"run.num_workers": 2, "run.gpus_per_worker": 0.5}))


def test_few_samples_per_worker_are_a_warning(recipe: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    two = recipe.changed({"run.num_workers": 2, **{f"streams.{name}.batch_size": 32 for name in recipe.streams}})
    check_recipe(two)
    assert not caplog.text
    check_recipe(two.replace("streams.text.batch_size", 30))
    assert "streams.text.batch_size=30 with run.num_workers=2 is 15 samples per worker" in caplog.text
    assert "streams.image" not in caplog.text
