"""Code of users: callbacks and methods cannot change what is recorded, and their errors name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multicse.plugins import load_file
from multicse.trainers.engine.guests import GuestError
from multicse.trainers.recipe import Recipe
from tests.worlds import Memory, run, text_only

CALLBACKS = """
import json

def clears(step, metrics, engine):
    metrics.clear()
    metrics["train/text"] = 0.0

def fails(step, metrics, engine):
    return helper(metrics)

def helper(metrics):
    return metrics["absent"]

def invalid(step, metrics, engine):
    json.loads("not JSON")

class Unmade:
    def __init__(self):
        raise RuntimeError("no server")
    def __call__(self, step, metrics, engine): ...

class Forgetful:
    def __call__(self, step, metrics, engine): ...
    def state_dict(self): return {"a": 1}
    def load_state_dict(self, state): state["b"]

"""


@pytest.fixture
def text(recipe: Recipe) -> Recipe:
    return text_only(recipe).replace("run.max_steps", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(CALLBACKS)
    return file


def test_a_callback_gets_a_copy_of_the_metrics(text: Recipe, file: Path, tmp_path: Path) -> None:
    """Of all steps and evaluations. Neither the tracker nor a later callback sees what a callback does with it."""
    later = tmp_path / "later.py"
    later.write_text("seen = []\ndef note(step, metrics, engine): seen.append((step, metrics, engine.recipe.name))")
    evaluated = text.replace("evaluation.select", "lee-dev")
    plain, _, _ = run(evaluated)
    changed = evaluated.changed(
        {"run.callbacks": (f"{file}:clears", f"{later}:note"), "run.output_dir": str(tmp_path / "two")}
    )
    memory, _, made = run(changed)
    assert memory.losses() == plain.losses()
    seen = Memory()
    for step, metrics, name in made.callbacks[f"{later}:note"].__globals__["seen"]:
        assert name == text.name
        seen.log(step, {key: value for key, value in metrics.items() if key.startswith(("train/", "eval/"))})
    assert {step: values | seen.values[step] for step, values in plain.losses().items()} == plain.losses()
    assert "eval/lee-dev/spearman" in seen.values[0] and "train/text" in seen.values[1]


@pytest.mark.parametrize(
    ("name", "error", "lines"),
    [
        ("fails", "KeyError: 'absent'", ["in fails", "in helper", 'return metrics["absent"]']),
        ("invalid", "JSONDecodeError: ", ["in invalid"]),
        ("Unmade", "RuntimeError: no server", ["in __init__"]),
        ("Forgetful", "KeyError: 'b'", ["in load_state_dict"]),
    ],
)
def test_an_error_of_a_callback_names_it_and_the_line(
    name: str, error: str, lines: list[str], text: Recipe, file: Path
) -> None:
    with pytest.raises(GuestError) as caught:
        for _ in range(2):  # the second run resumes
            run(text.replace("run.callbacks", (f"{file}:{name}",)))
    message = str(caught.value)
    assert message.startswith(f"run.callbacks: {file}:{name} failed: {error}") and caught.value.exit_code == 1
    assert all(line in message for line in lines) and "multicse/trainers" not in message


METHOD = """
from typing import Literal
from multicse.trainers.simcse import SimCSE, SimCSEConfig

class FailingConfig(SimCSEConfig):
    name: Literal["failing"] = "failing"
    def build(self, encoder):
        if self.temperature == 1:
            raise ValueError("no such head")
        return Failing(encoder, self)

class Failing(SimCSE):
    def losses(self, features, batches):
        return {}["loss"]
"""


@pytest.mark.parametrize(("temperature", "error"), [(0.5, "KeyError: 'loss'"), (1, "ValueError: no such head")])
def test_an_error_of_a_users_method_names_it(temperature: float, error: str, text: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(METHOD)
    config: Any = load_file(file).FailingConfig(head="none", temperature=temperature)
    with pytest.raises(GuestError) as caught:
        run(text.model_copy(update={"method": config}))
    assert str(caught.value).startswith(f"method 'failing' failed: {error}") and f'"{file}", line' in str(caught.value)


def test_an_error_of_a_bundled_method_stays(text: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multicse.trainers.simcse.SimCSE.losses", lambda *_: json.loads("x"))
    with pytest.raises(json.JSONDecodeError):
        run(text)
