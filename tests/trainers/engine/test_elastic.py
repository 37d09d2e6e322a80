"""A run continues on another number of workers with the losses of an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from multicse.trainers.engine import checkpoint
from multicse.trainers.engine.hosts import Host, Stopped
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.store import CheckpointError, Store
from multicse.trainers.recipe import Recipe
from tests.worlds import Memory, in_processes, text_only

STEPS, STOP = 8, 3


def losses(rank: int, folder: str, recipe: Recipe, stop: int) -> dict[str, float]:
    """Train one rank in float64, resuming from the folder's checkpoint; after `stop` steps a stop is requested.

    Returns the logged losses by step.
    """
    log: Any = Memory()
    host = Host(Store(f"{folder}/checkpoint"))
    host._stop = lambda: engine.step >= stop
    host._question = lambda asked, _: asked  # type: ignore[assignment]  # at once: all ranks are at the same step
    built = checkpoint.build_method
    with patch.object(checkpoint, "build_method", lambda recipe: built(recipe).double()):
        engine = Engine(recipe, host, None if rank else log)
    try:
        engine.train()
    except Stopped:
        assert engine.step == stop < STEPS
    return {str(step): values["train/text"] for step, values in log.values.items() if "train/text" in values}


def test_two_workers_and_one_have_equal_losses(recipe: Recipe, tmp_path: Path) -> None:
    """The runs are stopped between two logged means of the losses, in the first epoch of 10 steps."""
    quiet = {"run.max_steps": STEPS, "run.logging_steps": 2, "encoder.hidden_dropout": 0.0, "encoder.attention_dropout": 0.0}
    plain = text_only(recipe).changed({**quiet, "streams.text.batch_size": 8})
    expected = losses(0, str(tmp_path / "whole"), plain, STEPS)
    assert len(set(expected.values())) == STEPS / 2
    found: dict[str, float] = {}
    for world, stop in ((2, STOP), (1, STOP + 2), (2, STEPS)):
        found |= in_processes(losses, tmp_path, plain, stop, count=world)[0]
    assert found.keys() == expected.keys()
    assert list(found.values()) == pytest.approx([expected[step] for step in found], abs=1e-6)


def test_a_checkpoint_of_another_version_is_named(recipe: Recipe, tmp_path: Path) -> None:
    plain = text_only(recipe).changed({"run.max_steps": STEPS, "streams.text.batch_size": 8})
    losses(0, str(tmp_path), plain, STOP)
    folder = Store(f"{tmp_path}/checkpoint").get(STOP)
    state = checkpoint.read_state(folder)
    assert state["streams"]["positions"] == {"text": {"number": STOP, "position": dict.fromkeys(range(8), STOP)}}
    state["format"] -= 1
    torch.save(state, folder / checkpoint.STATE)
    with pytest.raises(CheckpointError, match=r"another version of MultiCSE.*run\.resume never"):
        Engine(plain, Host(Store(f"{tmp_path}/other")), None)._load(folder)
