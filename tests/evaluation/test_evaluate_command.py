"""`pipelines/evaluate.py`: the JSON others rely on, and what bad input is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation_helpers import rated, tiny_bert, write_raw

from evaluation.encoders import load_encoder
from evaluation.registry import SEVEN, make_tasks
from evaluation.task import evaluate
from pipelines.evaluate import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_raw(folder / "STS12.raw.tsv", [("", "a", "b"), *rated(20)], ("MSRpar", "MSRvid"))
    write_raw(folder / "STSB.test.raw.tsv", rated(20, seed=1))
    write_raw(folder / "STSB.train.raw.tsv", rated(20, seed=2))
    return folder


def test_interface_from_the_repository_and_from_elsewhere(model: Path, data: Path, tmp_path: Path) -> None:
    """As a user types it, in a fresh process whose working directory is another."""
    out = tmp_path / "scores.json"
    command = f"{ROOT}/pipelines/evaluate.py --model {model} --data {data} --tasks sts12 stsb-test --pooling mean"
    done = subprocess.run(
        [sys.executable, *command.split(), "--device", "cpu", "--json", str(out)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["model"] == str(model)
    assert list(report["results"]) == ["sts12", "stsb-test"]
    want = evaluate(make_tasks(["sts12", "stsb-test"], data), load_encoder(model, "mean", "cpu"))
    for name, scores in want.items():
        assert {metric: report["results"][name][metric] for metric in scores} == pytest.approx(scores, abs=1e-3)
        assert f"{report['results'][name]['spearman']:.2f}" in done.stdout
    assert (report["results"]["sts12"]["pairs"], report["results"]["sts12"]["skipped"]) == (20, 1)
    assert set(report["results"]["sts12"]["subsets"]) == {"MSRpar", "MSRvid"}
    assert len(report["provenance"]["model_sha256"]) == 64
    assert set(report["provenance"]["data_sha256"]) == {"sts12", "stsb-test"}
    assert report["provenance"]["protocol"]["pooling"] == "mean"
    assert {"torch", "sentence-transformers"} <= set(report["provenance"]["versions"])
    assert "Loading weights" not in done.stderr  # no chatter of the libraries


def test_default_is_everything_found_but_training_splits(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.json"
    assert main(["--model", str(model), "--data", str(data), "--device", "cpu", "--json", str(out)]) == 0
    assert list(json.loads(out.read_text())["results"]) == ["sts12", "stsb-test"]
    assert main(["--model", str(model), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "lee-dev" in shown and "1,225" in shown


def test_all_seven_give_an_average(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, file in enumerate(("STS13", "STS14", "STS15", "STS16", "SICK.test")):
        write_raw(data / f"{file}.raw.tsv", rated(20, seed=10 + i))
    out = tmp_path / "scores.json"
    assert main(["--model", str(model), "--data", str(data), "--device", "cpu", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    seven = [round(report["results"][name]["spearman"], 2) for name in SEVEN]
    assert report["average"] == pytest.approx(sum(seven) / 7)
    assert "average of the seven" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "{tmp}/none"], "no model folder"),
        (["--model", "{model}", "--data", "{tmp}/none"], "no data folder"),
        (["--model", "{model}", "--data", "{model}"], "neither a SentEval downstream folder"),
        (["--model", "{model}", "--data", "{data}", "--tasks", "stsbtest"], "did you mean 'stsb-test'?"),
        (["--model", "{model}", "--data", "{data}", "--tasks", "sts13"], "no file"),
        (["--model", "{model}", "--tasks", "sts12"], "task sts12 needs data"),
        (["--model", "{model}", "--pooling", "median"], "unknown pooling 'median'"),
        (["--model", "{model}", "--json", "{tmp}/no/such/scores.json"], "no folder"),
    ],
)
def test_bad_input(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    filled = [a.format(tmp=tmp_path, model=model, data=data) for a in arguments]
    assert main(filled) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error
