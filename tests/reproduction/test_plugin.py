"""What the kit adds is found by its name where the kit is, and is an ordinary unknown name where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, copy_code


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without the kit."""
    folder = tmp_path_factory.mktemp("product")
    copy_code(folder)
    shutil.rmtree(folder / "reproduction")
    (folder / "multicse" / "reproduction").unlink()
    return folder


MODEL = str(ROOT / "models" / "small-bert-en")


@pytest.mark.parametrize(
    ("words", "kit", "alone"),
    [
        (["--model", MODEL, "--tasks", "mr"], "needs data", "unknown task 'mr'"),
        (["--model", MODEL, "--tasks", "transfer"], "need data", "unknown task 'transfer'"),
        (["--model", MODEL, "--tasks", "finetune:x.tsv"], "x.tsv", "sets of your own are pairs:PLACE"),
        (["--model", f"{MODEL}+flw"], "Did you mean 'flow'", "It is one of +whitening"),
        (["--model", f"{MODEL}@wkk"], "wk, wk-released", "There are cls"),
        (["--model", MODEL, "--layers", "--fit", "x"], "Leave out", "Leave out"),
    ],
)
def test_names_with_and_without_it(words: list[str], kit: str, alone: str, product: Path) -> None:
    for place, message in ((ROOT, kit), (product, alone)):
        environment = {**os.environ, "PYTHONPATH": str(place)}
        done = subprocess.run(
            [sys.executable, "pipelines/evaluate.py", *words], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 2 and message in done.stderr, done.stderr


def test_commands_are_found_where_they_are(product: Path) -> None:
    for place, there in ((ROOT, True), (product, False)):
        environment = {**os.environ, "PYTHONPATH": str(place)}
        command = [sys.executable, "pipelines/run.py", "--help"]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        assert "evaluate" in done.stdout and ("reproduce" in done.stdout.split()) is there
