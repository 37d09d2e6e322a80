"""Test docs/how-to/custom-modality.md: a modality in a user's file is checked, trained and searched as any other."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse import plugins
from multicse.commands import sweep
from multicse.commands.describe import describe_recipe
from multicse.commands.run import main
from multicse.data.errors import DecodeError
from multicse.data.shards import RawSample
from multicse.data.streams.base import Batch
from multicse.pipelines import visualcse
from multicse.trainers.engine.checks import check_recipe
from multicse.trainers.engine.journal import Journal
from multicse.trainers.engine.tracking import RunHandle
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import ImageConfig, NonLingCSEConfig, VisualCSEConfig
from multicse.trainers.recipe import Recipe
from multicse.trainers.tuning.space import check_space
from multicse.trainers.tuning.sweep import plan_of
from tests.conftest import ROOT
from tests.models import tiny_encoder
from tests.worlds import example

FILE = ROOT / "examples/new_modality.py"
OURS = "method.modalities.cells"
DIES = """
import os
from pathlib import Path

def at_step_three(step, metrics, engine):
    mark = Path({mark!r})
    if step == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)
    made: Recipe = example("new_modality").RECIPES["smoke"]()
    return made


def train(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, *more: str, steps: int = 6
) -> list[dict[str, Any]]:
    """Run ``python pipelines/run.py examples/new_modality.py smoke ...``; the losses of each step.

    Without dropout, the number of workers changes nothing but the rounding.
    """
    own = ["--encoder.path", str(place / "encoder"), "--streams.text.shards", str(place / "text")]
    own += [
        "--run.max_steps",
        str(steps),
        "--encoder.hidden_dropout",
        "0",
        "--encoder.attention_dropout",
        "0",
        "--run.logging_steps",
        "1",
    ]
    own += ["--evaluation.eval_steps", "2", "--evaluation.watch", "--evaluation.final", "lee", "--run.threads", "1"]
    own += ["--run.output_dir", output, "--run.tracking_uri", f"sqlite:///{tmp_path}/mlflow.db", *more]
    monkeypatch.setattr(sys, "argv", ["pipelines/run.py", str(FILE), "smoke", *own])
    monkeypatch.chdir(tmp_path)
    assert main() == 0
    lines = [line for _, line in Journal(tmp_path / output / "journal.jsonl").lines() if "train/cells" in line["metrics"]]
    assert [line["step"] for line in lines] == [*range(1, steps + 1)]
    return [{name: line["metrics"][name] for name in ("train/cells", "train/text")} for line in lines]


def test_the_page_shows_the_file() -> None:
    file = FILE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/how-to/custom-modality.md").read_text(), re.S)
    assert len(blocks) > 3 and all(block.strip("\n") in file for block in blocks)
    assert len(file.splitlines()) <= 120


def test_it_trains_in_process(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of the rows falls, the recipe is in the card, and the export is a text encoder."""
    from sentence_transformers import SentenceTransformer

    lr = ["--optim.cells.lr", "3e-3", "--run.num_workers", "0"]
    losses = [step["train/cells"] for step in train(place, tmp_path, monkeypatch, "run", *lr, steps=24)]
    assert np.mean(losses[12:]) < np.mean(losses[:6]) - 0.1  # means, since batches differ
    assert '"kind": "table"' in (tmp_path / "run/export/README.md").read_text()
    assert SentenceTransformer("run/export", device="cpu").encode(["a dog"]).shape == (1, 16)
    again = Recipe.from_json((tmp_path / "run/recipe.json").read_text())
    assert type(again.method.modalities["cells"]).__name__ == "TableConfig"  # type: ignore[attr-defined]
    inputs = ["--encoder.path", str(place / "encoder"), "--streams.text.shards", str(place / "text")]
    assert "  cells       569 samples of runs/tables/cells.parquet" in describe_recipe(str(FILE), "smoke", inputs)


@pytest.mark.cluster
@pytest.mark.usefixtures("local_ray")
def test_one_of_two_workers_dies(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run continues with the same losses as in one process."""
    whole = train(place, tmp_path, monkeypatch, "whole", "--run.num_workers", "0")
    (tmp_path / "dies.py").write_text(DIES.format(mark=str(tmp_path / "died")))
    two = ["--run.num_workers", "2", "--run.max_failures", "1", "--run.callbacks", f"{tmp_path}/dies.py:at_step_three"]
    broken = train(place, tmp_path, monkeypatch, "broken", *two)
    assert (tmp_path / "died").exists()
    for one, other in zip(whole, broken, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_a_sweep_varies_its_settings(smoke: Recipe, tmp_path: Path) -> None:
    """Also in the process of a trial, which has neither the file nor its module."""
    search, _ = sweep.make_sweep(sweep.Arguments(pipeline=str(FILE), recipe="smoke", trials=2), [])
    check_space(search.space, smoke)
    changes = {f"{OURS}.temperature": 0.25}
    script = "import pickle, sys; plan, changes = pickle.load(sys.stdin.buffer); print(plan.recipe(changes).method)"
    sent = pickle.dumps((plan_of(search, tmp_path, RunHandle("a run", "")), changes))
    trial = subprocess.run([sys.executable, "-c", script], input=sent, capture_output=True, cwd=ROOT)
    assert "'cells': TableConfig(" in trial.stdout.decode(), trial.stderr.decode()[-2000:]
    assert "temperature=0.25" in trial.stdout.decode()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({f"{OURS}.columns": 29}, f"streams.cells.columns=30 does not match {OURS}.columns=29"),
    "label": ({"streams.cells.label": None}, f"{OURS}.loss='supcon' requires class labels, but streams.cells.label"),
    "range": ({f"{OURS}.temperature": 0}, f"{OURS}.temperature: Input should be greater than 0"),
    "kind": ({f"{OURS}.kind": "tabel"}, f"{OURS}: unknown modality 'tabel'. Did you mean 'table'"),
    "unknown": ({f"{OURS}.colums": 1}, f"Did you mean '{OURS}.columns'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_settings_are_named(smoke: Recipe, case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        check_recipe(smoke.changed(changes))


@pytest.mark.parametrize("name", ["text", "image", "cyclic", "keys", "a+b", ""])
def test_names_that_streams_losses_or_modules_have_are_refused(name: str) -> None:
    modality = example("new_modality").TableConfig()
    with pytest.raises(ValueError, match=re.escape(f"method.modalities.{name}: ")):
        MultiCSEConfig(modalities={name: modality}).check_settings()


def test_a_stream_of_another_kind_is_refused(smoke: Recipe) -> None:
    text = smoke.streams["text"]
    with pytest.raises(ValueError, match=r"streams\.cells\.kind='text': method\.modalities\.cells needs .* 'table'"):
        check_recipe(smoke.model_copy(update={"streams": {"text": text, "cells": text}}))


@pytest.mark.parametrize("values", [None, [0.0] * 29, [*[0.0] * 29, None], [*[0.0] * 29, float("inf")]])
def test_rows_without_all_values_are_bad_samples(smoke: Recipe, values: Any) -> None:
    sample = RawSample("7", "cells", {"values": values, "cls": 1})
    with pytest.raises(DecodeError, match="sample '7': its values"):
        smoke.streams["cells"].row(sample, np.random.default_rng(0))


class Scans(ImageConfig):
    """Images under a name of their own, besides `method.image`."""

    kind: str = "scans"


@pytest.mark.parametrize(("name", "place"), [("image", "method.image"), ("scans", "method.modalities.scans")])
def test_errors_of_patches_have_the_place_of_the_modality(name: str, place: str) -> None:
    wrong, recipe = {"image_size": 32, "patch_size": 5}, visualcse.smoke()
    image = ImageConfig(**wrong) if name == "image" else None
    method = NonLingCSEConfig(image=image, audio=None, modalities={} if image else {name: Scans(**wrong)})
    streams = {"text": recipe.streams["text"], name: recipe.streams["image"]}
    with pytest.raises(ValueError, match=f"^{re.escape(place)}.patch_size: 5 does not divide"):
        method.check(recipe.model_copy(update={"streams": streams}), recipe.encoder.read())


def test_modalities_are_added_to_the_methods_with_images() -> None:
    """Each has its patches, head, update and loss, also two of one class; without any, the recipe does not mention them."""
    small = {"image_size": 8, "patch_size": 4}
    own = example("new_modality").TableConfig
    modalities = {"left": own(columns=3, loss="simclr"), "right": own(columns=5, loss="simclr"), "scans": Scans(**small)}
    config = VisualCSEConfig(image=ImageConfig(**small), modalities=modalities)
    assert list(config.updates()) == ["image", "left", "right", "scans", "text"]
    method = config.build(tiny_encoder.encoder())
    inputs = {"left": ("table", [3]), "right": ("table", [5]), "scans": ("image", [3, 8, 8])}
    for name, (tensor, shape) in inputs.items():
        batch = Batch({tensor: torch.randn(4, 2, *shape), "label": torch.tensor([0, 0, 1, 1])})
        output = method({name: batch})
        assert output.losses.keys() == {name}
        output.losses[name].backward()
        assert all(weight.grad is not None for weight in method.patches[name].parameters())
    assert method.loss_weights.keys() == {"image", *modalities}
    again = VisualCSEConfig.model_validate(config.model_dump())
    assert again == config and "modalities" not in VisualCSEConfig().model_dump()


@pytest.mark.parametrize(("kind", "group"), [("stream", "multicse.streams"), ("modality", "multicse.modalities")])
def test_packages_register_things_in_the_group_of_their_kind(kind: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def entry_points(group: str) -> list[str]:
        asked.append(group)
        return []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    plugins._load.__wrapped__(kind)
    assert asked == [group]
