"""The callbacks of examples/ for TensorBoard and W&B, with the real packages: every step once, also after a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicse.trainers.engine.checks import find_callback
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.recipe import Recipe
from tests.conftest import ROOT

TENSORBOARD = f"{ROOT}/examples/tensorboard_callback.py:TensorBoard"
WANDB = f"{ROOT}/examples/wandb_callback.py:WandB"


def values_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the values that TensorBoard reads, by metric."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_has_every_step_once(recipe: Recipe, tmp_path: Path) -> None:
    """A process died after step 9, and another one continues from step 4; then a whole run."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    here = SimpleNamespace(recipe=recipe.replace("run.output_dir", str(tmp_path / "died")))
    for steps, value in ((range(1, 10), -1.0), (range(5, 13), 1.0)):
        note: Any = find_callback(TENSORBOARD)
        note = note()
        for step in steps:
            note(step, {"m": value}, here)
    want = [(step, -1.0 if step < 5 else 1.0) for step in range(1, 13)]
    assert values_of(tmp_path / "died" / "tensorboard")["m"] == want
    run_recipe(recipe.changed({"run.callbacks": (TENSORBOARD,), "run.max_steps": 2}))
    found = values_of(Path(recipe.run.output_dir) / "tensorboard")
    assert [step for step, _ in found["train/text"]] == [1, 2] and "trained/lee/spearman" in found


def test_a_resumed_run_of_wandb_is_the_same_run(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    for name in ("WANDB_ERROR_REPORTING", "WANDB_CONSOLE"):
        monkeypatch.setenv(name, "off" if name == "WANDB_CONSOLE" else "false")
    monkeypatch.setenv("WANDB_MODE", "offline")
    here = SimpleNamespace(recipe=recipe.replace("run.output_dir", str(tmp_path)))
    made: Any = find_callback(WANDB)
    first, second = made(), made()
    assert first.id != second.id
    for note in (first, second):
        note(1, {"m": 1.0}, here)
        note(0, {"m": 0.5}, here)  # the evaluation before training comes later
        assert note.run.summary["m"] == 0.5 and note.run.config["method"]["name"] == recipe.method.name
        assert note.run.project == recipe.paper
        note.run.finish()
        second.load_state_dict(first.state_dict())
    ids = {file.stem.removeprefix("run-") for file in tmp_path.glob("wandb/offline-run-*/run-*.wandb")}
    assert ids == {first.id} and wandb.run is None
