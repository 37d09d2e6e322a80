"""Errors of users: each line of docs/reference/errors.toml ends with a message that names the setting or the file.

The same lines are the page docs/reference/errors.md.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docs.hooks import refused_setting
from multicse.commands import registry, run
from multicse.data.errors import DataError
from multicse.data.shards import ShardSet
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError
from multicse.trainers.engine.checks import check_cluster, check_recipe
from multicse.trainers.recipe import Recipe
from tests.conftest import ROOT
from tests.evaluation.paired_helpers import image_shards

ERRORS = tomllib.loads((ROOT / "docs/reference/errors.toml").read_text())


@pytest.mark.parametrize("entry", ERRORS["setting"], ids=lambda entry: f"{entry['recipe']} {' '.join(entry['set'])}")
def test_a_setting_that_does_not_fit_is_named(entry: dict[str, Any]) -> None:
    text = refused_setting(entry["recipe"], entry["set"])
    assert [part for part in entry["message"] if part not in text] == [] and "validation error" not in text, text


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(text.encode("latin-1"))


@pytest.fixture
def files(recipe: Recipe, offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the input files of the commands to the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/offline").symlink_to(offline / "runs" / "offline")
    content = {
        "sentences.txt": "a sentence\nanother one\n",
        "blank.txt": "\n\n",
        "quotes.csv": 'left,"ri"ght\na,b\n',
        "rows.jsonl": '{"left": "a", "right": "b"}\n',
        "rows.csv": "left,right\na,b\n",
        "lee.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n",
        "ragged.csv": "left,right\na,b,c\n",
        "empty.py": "",
        "small.json": recipe.to_json(),
        "sts/STS12.raw.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n",
        "made/made-train-000000.tar": "",
        "broken/a.png": "not an image",
    }
    newer = json.loads(content["small.json"])
    newer["run"]["colour"] = "red"
    for name, text in {**content, "newer.json": json.dumps(newer)}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("latin.txt").write_bytes("für\n".encode("latin-1"))
    for name in ("photos/a.png", "mixed/b.png", "mixed/cats/a.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(name)
    return tmp_path


@pytest.mark.parametrize("entry", ERRORS["command"], ids=lambda entry: entry["run"])
def test_a_wrong_command_names_setting_and_remedy(
    entry: dict[str, Any],
    files: Path,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(entry.get("files", {}))
    name, *words = shlex.split(entry["run"].replace("ENCODER", recipe.flat()["encoder.path"]))
    if name in registry.NAMES and "--run.num_workers" not in words and "mine" not in words:
        words += ["--run.num_workers", "0"]  # no Ray
    monkeypatch.setattr(sys, "argv", ["multicse", name, *words])
    try:
        code: object = run.main()
    except SystemExit as end:  # other exceptions are tracebacks
        code = end.code
    said = capsys.readouterr()
    text = " ".join(f"{said.out} {said.err} {code}".replace("│", " ").split())
    assert code == 2 and "validation error" not in text and "Traceback" not in text, text
    assert [part for part in entry["message"] if part not in text] == [], text


@pytest.mark.parametrize("entry", ERRORS["data"], ids=lambda entry: entry.get("open") or str(entry["files"])[:60])
def test_data_that_cannot_be_read_is_named_with_the_remedy(
    entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(entry["files"])
    with pytest.raises(DataError) as refused:
        ShardSet.open(entry.get("open") or next(iter(entry["files"])))
    assert [part for part in entry["message"] if part not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize("entry", ERRORS["task"], ids=lambda entry: f"{entry['task']} {entry['message'][-1]}")
def test_a_task_that_cannot_be_read_is_named_with_the_remedy(
    entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(entry["files"])
    image_shards(Path("images"), [["c0"], ["c1"]])
    with pytest.raises(EvaluationError) as refused:
        make_tasks([entry["task"]], entry.get("data"))
    assert [part for part in entry["message"] if part not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize(
    ("changes", "cluster", "named"),
    [
        ({"streams": {}}, {}, "streams.audio"),
        ({"optim": {}}, {}, "optim.audio"),
        ({"run.push_to_hub": "no name"}, {}, "run.push_to_hub='no name'"),
        ({"export.dimensions": 5}, {}, "export.whiten"),
        ({"export": {"whiten": True, "dimensions": 17}}, {}, "export.dimensions=17"),
        ({"run.num_workers": 8, "streams.text.batch_size": 64}, {}, "run.num_workers=8"),
        (
            {"run.num_workers": 3, **{f"streams.{name}.batch_size": 24 for name in ("text", "image", "audio")}},
            {},
            "streams.text.segments=8 with batch_size=24",
        ),
        ({}, {"nodes": 2}, "run.storage=None cannot be reached from several nodes; set it, or MULTICSE_STORAGE"),
        ({"run.storage": "file://FOLDER"}, {"nodes": 2}, "run.tracking_uri"),
        ({"run.storage": "file://FOLDER", "streams.text.shards": "hf://SET"}, {"nodes": 2}, "streams.text.shards"),
    ],
)
def test_settings_that_do_not_fit_recipe_or_cluster_are_named(
    recipe: Recipe, changes: dict[str, Any], cluster: dict[str, int], named: str, tmp_path: Path
) -> None:
    """A Hugging Face data set is cached only on the node that loaded it."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(f'{{"text": "Number {i}"}}\n' for i in range(64)))
    if "hf://SET" in changes.values():
        changes = {**changes, "streams.text.shards": f"hf://{tmp_path}/set"}
    if changes.get("run.storage") == "file://FOLDER":
        changes = {**changes, "run.storage": f"file://{tmp_path}/runs"}
    with pytest.raises(ValueError, match=re.escape(named)):
        check_recipe(recipe.changed(changes))
        check_cluster(recipe.changed(changes), **{"cpus": 4, **cluster})
