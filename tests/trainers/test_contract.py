"""What every method must do: a paper is tested by being registered. Mini-batches and workers are in test_gather.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from multicse.commands.registry import NAMES
from multicse.trainers.engine.checkpoint import build_method
from multicse.trainers.recipe import Recipe
from tests.worlds import recipes, resumed_exactly, run

EXAMPLES = ("simcsepp", "tsdae", "uml")  # tests of new_method.py register copies of it


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recipe]:
    return recipes(tmp_path_factory.mktemp("contract"), *EXAMPLES)


@pytest.mark.parametrize("paper", [*NAMES, *EXAMPLES])
def test_a_method_trains_and_resumes_exactly(paper: str, world: dict[str, Recipe], tmp_path: Path) -> None:
    """After two of three steps: losses, scores and all tensors, also moving averages and queues. bf16 is close to fp32."""
    recipe = world[paper].replace("evaluation.keep", "last")
    (whole, _, _), (resumed, _, after) = resumed_exactly(recipe, tmp_path)
    assert sorted(resumed.values) == [3]
    start = build_method(recipe).state_dict()
    assert any(not torch.equal(tensor, start[name]) for name, tensor in after.method.state_dict().items())
    memory, result, _ = run(recipe.changed({"run.output_dir": str(tmp_path / "bf16"), "run.precision": "bf16"}))
    close = {
        name: pytest.approx(value, rel=0.1, abs=0.1) for name, value in whole.values[1].items() if name in whole.losses()[1]
    }
    assert {name: memory.values[1][name] for name in close} == close and result["steps"] == 3
