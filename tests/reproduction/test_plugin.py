"""Names that the kit registers are known with the kit, and ordinary unknown names without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from multicse import plugins
from multicse.commands import evaluate
from multicse.commands.run import VERBS
from tests.conftest import ROOT, copy_code

MODEL = str(ROOT / "models" / "small-bert-en")
CASES = (
    (["--model", MODEL, "--tasks", "mr"], "needs data", "unknown task 'mr'"),
    (["--model", MODEL, "--tasks", "transfer"], "need data", "unknown task 'transfer'"),
    (["--model", MODEL, "--tasks", "finetune:x.tsv"], "x.tsv", "Your own data: pairs:PLACE"),
    (["--model", f"{MODEL}+flw"], "Did you mean 'flow'", "It is one of +whitening"),
    (["--model", f"{MODEL}@wkk"], "wk, wk-released", "Choose from cls"),
)
"""Command lines of `evaluate.py`, and their messages with and without the kit."""


@pytest.mark.parametrize(("words", "message"), [(words, message) for words, message, _ in CASES])
def test_names_with_the_kit(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(words) == 2
    assert message in capsys.readouterr().err
    assert {"reproduce", "prepare", "translate"} <= set(VERBS)


def test_names_without_the_kit(tmp_path: Path) -> None:
    copy_code(tmp_path)
    shutil.rmtree(tmp_path / "multicse" / "reproduction")
    script = (
        "import json, sys; from multicse.commands import evaluate, run;"
        "print([evaluate.main(words) for words in json.loads(sys.argv[1])], sorted(run.VERBS))"
    )
    command = [sys.executable, "-c", script, json.dumps([words for words, _, _ in CASES])]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("[2, 2, 2, 2, 2]") and "reproduce" not in done.stdout, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for line, (_, _, message) in zip(errors, CASES, strict=True):
        assert message in line


def test_the_29_prompts_of_zhao_et_al() -> None:
    """Table 12 has 29 different prompts; two end with a space, and three contain the class twice."""
    prompts = plugins.get("templates", "clap29")
    assert len(prompts) == len(set(prompts)) == 29 and all("{label}" in prompt for prompt in prompts)
    assert [prompt for prompt in prompts if prompt.endswith(" ")] == ["A {label} ", "{label} "]
    assert sum(prompt.count("{label}") == 2 for prompt in prompts) == 3
