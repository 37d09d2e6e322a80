"""Training loop: reproducible, resumable in the middle of an epoch, with errors that name their cause."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from transformers import get_scheduler

import multicse.trainers.engine.loop
from multicse.evaluation.report import Report
from multicse.trainers.engine.checkpoint import load_method
from multicse.trainers.engine.optim import schedule_factor
from multicse.trainers.engine.progress import render
from multicse.trainers.engine.step import NonFiniteLoss
from multicse.trainers.method import Schedule, StepOutput
from multicse.trainers.recipe import OptimConfig, Recipe
from tests.worlds import Memory, engine, resumed_exactly, run, same_weights, text_only

FROZEN = {f"optim.{update}.lr": 0.0 for update in ("text", "image", "audio")}


def test_a_resumed_run_repeats_the_uninterrupted_one(recipe: Recipe, tmp_path: Path) -> None:
    """Stopped at step 3, in the middle of an epoch of every stream and in mini-batches, with several optimizers."""
    whole, resumed = resumed_exactly(recipe.replace("run.mini_batch_size", 3), tmp_path)
    assert sorted(resumed[0].values) == [4, 5, 6]
    assert resumed[2].baseline == whole[2].baseline and resumed[2].baseline.keys() == {"lee"}
    assert resumed[1]["changes"] == whole[1]["changes"] and resumed[1]["changes"]["lee"]["n"] == 435
    assert resumed[0].values[6]["trained_change/lee/p"] == resumed[1]["changes"]["lee"]["p"] <= 1


def test_the_untrained_encoder_is_whitened_on_the_training_text(recipe: Recipe, tmp_path: Path) -> None:
    """Unless it has too few sentences, which would give random axes."""
    _, result, _ = run(recipe)
    assert result["baseline"].keys() == {"lee"} and result["baseline"] != result["before"]
    few = recipe.replace("run.max_steps", 1).replace("streams.text.batch_size", 8)
    few = few.replace("run.output_dir", str(tmp_path / "few"))
    assert engine(few, Memory()).train()["baseline"] == {}, "8 sentences for 16 dimensions"


def test_the_progress_line_has_the_development_score(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows the score of the first task in the latest evaluation; the first line comes before any evaluation.

    Without a task for selection it is the first task of `watch`, and the last weights are kept.
    """
    lines: list[dict[str, Any]] = []
    memory = Memory()
    monkeypatch.setattr(memory, "progress", lines.append)
    watched = recipe.replace("evaluation.select", None).replace("evaluation.watch", ("lee-dev",))
    summary = engine(watched, memory).train()
    scores = {step: values["eval/lee-dev/spearman"] for step, values in memory.values.items() if step % 3 == 0}
    assert [line.get("eval/lee-dev/spearman") for line in lines] == [None] + [scores[0]] * 2 + [scores[3]] * 3
    assert f"  lee-dev {scores[3]:.2f} (step 3)  " in render(lines[-1])
    assert (summary["best_step"], summary["best_score"]) == (6, None)


def test_early_stopping_counts_evaluations_without_a_better_score(recipe: Recipe) -> None:
    changes = {**FROZEN, "evaluation.eval_steps": 1, "evaluation.patience": 2, "run.logging_steps": 5}
    memory, result, _ = run(recipe.changed(changes))
    assert result["steps"] == 2 and result["best_step"] == 0
    assert "train/text" in memory.values[2], "the steps after the last log are logged"


def scripted(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the development task return these scores, one per evaluation."""
    script, real = iter(scores), multicse.trainers.engine.loop.evaluate

    def evaluate(tasks: Any, encoder: Any) -> Report:
        dev = [task.name for task in tasks] == ["lee-dev"]
        return Report.of({"lee-dev": {"spearman": next(script)}}) if dev else real(tasks, encoder)

    monkeypatch.setattr(multicse.trainers.engine.loop, "evaluate", evaluate)


SCORES = [50.0, 60.0, 59.0, 61.0, 60.0, 62.0, 40.0]  # before training and after each of the six steps


@pytest.mark.parametrize(
    ("counts", "keep", "steps", "kept"),
    [("no_new_best", "best", 6, 5), ("decreases", "best", 4, 3), ("decreases", "last", 4, 4), ("no_new_best", "last", 6, 6)],
)
def test_disagree_3_6_what_patience_counts_and_what_is_kept(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, counts: str, keep: str, steps: int, kept: int
) -> None:
    """SG-BERT's code counts every decrease, never resets the count, and reports the last weights; ours differs."""
    scripted(monkeypatch, SCORES)
    changed = recipe.replace("evaluation.eval_steps", 1).replace("evaluation.patience", 2)
    memory, result, made = run(changed.replace("evaluation.patience_counts", counts).replace("evaluation.keep", keep))
    assert (result["steps"], result["best_step"], result["best_score"]) == (steps, kept, SCORES[kept])
    same_weights(made.method, load_method(Path(recipe.run.output_dir) / "checkpoint"))
    assert (made.selection.weights is None) == (keep == "last")
    assert made.selection.kept_score == SCORES[kept]  # the criterion of sweeps
    # A tracker's table shows the last value of a metric and should be sortable by the score of the kept weights.
    last = memory.values[steps]
    assert (last["best/lee-dev/spearman"], last["best/step"]) == (SCORES[kept], kept)


@pytest.mark.parametrize(("allowed", "chosen"), [(True, 0), (False, 3)])
def test_the_untrained_weights_can_be_excluded_from_selection(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, allowed: bool, chosen: int
) -> None:
    """The released code of NonLing-CSE first evaluates after 125 steps."""
    scripted(monkeypatch, [70.0, 50.0, 60.0, 61.0, 50.0, 50.0, 50.0])
    _, result, _ = run(recipe.replace("evaluation.eval_steps", 1).replace("evaluation.choose_untrained", allowed))
    assert result["best_step"] == chosen


def test_accumulation_averages_its_batches(recipe: Recipe, tmp_path: Path) -> None:
    """Without dropout and at learning rate 0, an accumulated step is the mean of two single steps on the same batches."""
    resting = still(recipe).changed(FROZEN)
    single, _, _ = run(resting.replace("run.output_dir", str(tmp_path / "single")))
    double, _, _ = run(resting.replace("run.gradient_accumulation_steps", 2).replace("run.max_steps", 3))
    for step in (1, 2, 3):
        for name in ("train/text", "train/image", "train/audio"):
            mean = (single.values[2 * step - 1][name] + single.values[2 * step][name]) / 2
            assert double.values[step][name] == pytest.approx(mean, rel=1e-5), (step, name)


def still(recipe: Recipe) -> Recipe:
    return recipe.replace("encoder.hidden_dropout", 0.0).replace("encoder.attention_dropout", 0.0)


@pytest.mark.cluster
@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="torch.compile needs a C++ compiler: g++")
def test_a_compiled_encoder_has_the_same_losses(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 12):  # the compiler imports setuptools, which cannot replace distutils in a test session
        monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")
    text = text_only(still(recipe)).replace("run.max_steps", 2)
    plain, _, _ = run(text)
    compiled, _, made = run(text.replace("run.compile", True).replace("run.output_dir", str(tmp_path / "compiled")))
    encoder: Any = made.method.sentence_encoder
    assert encoder.model._compiled_call_impl is not None
    for step in (1, 2):
        assert compiled.losses()[step] == pytest.approx(plain.losses()[step], rel=1e-4)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_loss_that_is_not_finite_changes_no_weights(recipe: Recipe, what: str) -> None:
    """Also not in later updates of the step. The error names update, stream and samples."""
    made = engine(recipe, Memory())
    losses, before = made.method.losses, dict[str, torch.Tensor]()

    def broken(features: Any, batches: Any) -> StepOutput:
        output = losses(features, batches)
        if made.step != 2 or "image" not in features:
            return output
        before.update({name: t.clone() for name, t in made.method.state_dict().items()})
        image = output.losses["image"]
        if what == "loss":
            return StepOutput({"image": image * math.nan})
        return StepOutput({"image": image + (image - image.detach()).sqrt()})

    made.method.losses = broken  # type: ignore[method-assign]
    with pytest.raises(
        NonFiniteLoss, match=f"step 2, update 'image': {what}.*stream 'image': .*train-000000.*optim.image.lr"
    ):
        made.train()
    for name, tensor in made.method.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_schedules_equal_those_of_transformers(kind: Schedule) -> None:
    """Theirs start at a factor of 0, so their step 1 is our step 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    theirs = get_scheduler(kind, optimizer, num_warmup_steps=10, num_training_steps=100).lr_lambdas[0]
    for step in range(100):
        ours = schedule_factor(OptimConfig(warmup=0.1), kind, 100, step)
        assert ours == pytest.approx(theirs(step + 1 if step < 10 else step))


MEMORY = """
import psutil
from multicse.trainers.engine.cluster import keep_freed_memory, return_freed_memory
used = lambda: psutil.Process().memory_info().rss // 2**20
keep_freed_memory()
before = used()
held = [(b"x" * 2**24, b"y" * 2**12) for _ in range(16)]  # the small ones stay
held = [small for _, small in held]
kept = used() - before
return_freed_memory()
print(kept, used() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide it themselves")
def test_freed_memory_is_kept_between_steps_and_returned_at_checkpoints() -> None:
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    kept, left = map(int, found.split())
    assert kept > 200 and left < 50
