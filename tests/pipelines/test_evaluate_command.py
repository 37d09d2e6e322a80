"""Test `pipelines/evaluate.py`: tables, JSON reports, figures, MLflow and errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multicse.commands.evaluate import Arguments, main, run
from multicse.evaluation.encoders.encoder import load_encoder
from multicse.evaluation.load import load_model
from multicse.evaluation.registry import is_development, make_tasks
from multicse.evaluation.report import Report, evaluate
from multicse.evaluation.statistics import holm, paired_bootstrap
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction import layers
from tests.conftest import ROOT
from tests.evaluation.evaluation_helpers import rated, tiny_bert, write_raw
from tests.evaluation.paired_helpers import Coded, image_shards


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
    """Run the command in a new process with another working directory."""
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


def test_default_without_data_is_lee(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(model), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "lee-dev" in shown and "1,225" in shown


@pytest.fixture
def single(model: Path, data: Path, tmp_path: Path) -> Path:
    """Return the JSON report of one model."""
    out = tmp_path / "mean.json"
    assert main(["--model", f"{model}@mean", "--data", str(data), "--device", "cpu", "--json", str(out)]) == 0
    return out


def test_models_side_by_side(
    model: Path, data: Path, tmp_path: Path, single: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows equal evaluations of single models; marks equal a paired bootstrap with Holm's correction."""
    out = tmp_path / "comparison.json"
    command = ["--compare", f"mean={model}@mean", f"max={model}@max", f"whitened={model}@mean+whitening4:target"]
    assert main([*command, "--data", str(data), "--device", "cpu", "--json", str(out), "--style", "markdown"]) == 0
    shown = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert list(report["models"]["mean"][0]["results"]) == ["sts12", "stsb-test"]  # without the training split
    assert report["models"]["mean"][0]["results"] == json.loads(single.read_text())["results"]
    rows = [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("| ")]
    assert rows[1:] == ["---", "mean", "max", "whitened"]
    assert report["models"]["whitened"][0]["provenance"]["protocol"]["post_processing"]
    (task,) = make_tasks(["stsb-test"], data)
    assert isinstance(task, PairTask)
    sentences = task.sentences()
    sentences += [text for name in ("sts12",) for other in make_tasks([name], data) for text in other.sentences()]
    mean, most, white = (
        task.similarities(load_model(f"{model}@{spec}", device="cpu", fit=list(dict.fromkeys(sentences))))
        for spec in ("mean", "max", "mean+whitening4")
    )
    want = holm([paired_bootstrap(mean, other, task.gold).p for other in (most, white)])
    p = {(entry["model"], entry["column"]): entry["p"] for entry in report["significance"]["p"]}
    assert report["significance"]["reference"] == "mean"
    assert [p["max", "stsb-test"], p["whitened", "stsb-test"]] == pytest.approx(
        want, abs=0.05
    )  # the fit sums in a different order


def test_reports_are_compared_like_models(
    model: Path, data: Path, tmp_path: Path, single: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reports with their .npz have the marks of the models; without it, the table gives a reason for missing marks."""
    other = tmp_path / "max.json"
    ours = ["--data", str(data), "--device", "cpu"]
    assert main(["--model", f"{model}@max", *ours, "--json", str(other)]) == 0
    capsys.readouterr()
    shown = []
    for entries in ((f"a={model}@mean", f"b={model}@max"), (f"a={single}", f"b={other}")):
        out = tmp_path / "both.json"
        assert main(["--compare", *entries, *ours, "--tasks", "stsb-test", "--json", str(out)]) == 0
        shown.append((capsys.readouterr().out, json.loads(out.read_text())["significance"]))
    assert shown[0] == shown[1] and len(shown[0][1]["p"]) == 1 and "STS12" not in shown[0][0]
    single.with_suffix(".npz").unlink()
    assert main(["--compare", f"a={single}", f"b={other}", *ours, "--tasks", "stsb-test"]) == 0
    assert "no p values: a test needs" in capsys.readouterr().out


def test_a_task_may_have_the_name_of_a_parameter_of_numpy(tmp_path: Path) -> None:
    """``--tasks pairs:file.tsv``: `numpy.savez` has a parameter ``file``."""
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"results": {"file": {}}}))
    Report.of({"file": {}}, {"file": np.arange(3.0)}).write_examples(report)
    task: Any = SimpleNamespace(name="file")
    assert Report.read(report, [task]).examples["file"].tolist() == [0, 1, 2]


def test_scores_of_different_data_are_not_compared(
    data: Path, tmp_path: Path, single: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads(single.read_text())
    report["provenance"]["data_sha256"]["stsb-test"] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(report))
    entries = [f"a={single}", f"b={tmp_path / 'other.json'}"]
    assert main(["--compare", *entries, "--data", str(data), "--tasks", "stsb-test"]) == 2
    assert "stsb-test was measured with different data" in capsys.readouterr().err
    assert main(["--compare", *entries, "--data", str(data), "--tasks", "stsb-train"]) == 2
    assert "contains none of the tasks stsb-train" in capsys.readouterr().err
    write_raw(data / "STSB.test.raw.tsv", rated(20, seed=5))  # the ratings of a paired test are from this data
    assert main(["--compare", entries[0], f"b={single}", "--data", str(data), "--tasks", "stsb-test"]) == 2
    assert "--data cannot be compared: stsb-test was measured with different data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "development"),
    [
        ("stsb-dev", True),
        ("stsb-test", False),
        ("stsb-regression", False),
        ("pairs:/home/tester/contest-dev.tsv", True),
        ("pairs:stsb-de-test.tsv.gz", False),
        ("hub:mteb/stsbenchmark-sts", False),
        ("hub:mteb/stsbenchmark-sts:validation", True),
        ("classify:dev.tsv", False),
        ("retrieval:shards/coco-val?primary=mean_map10&shared=true", True),
        ("retrieval:shards/clotho-test?primary=mean_map10", False),
    ],
)
def test_tasks_for_checkpoint_selection(name: str, development: bool) -> None:
    assert is_development(name) is development


def test_layers_and_figures(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--model", str(model), "--data", str(data), "--device", "cpu", "--tasks", "stsb-test"]
    assert layers.main([*command, "--figures", str(tmp_path / "layers")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:5]]
    mean = make_tasks(["stsb-test"], data)[0].score(load_encoder(model, "layer1-mean", "cpu")).metrics["spearman"]
    assert [row[0] for row in rows] == ["0", "1", "2"] and rows[1][2] == f"{mean:.2f}"
    assert {file.name for file in (tmp_path / "layers").iterdir()} == {"layers_stsb-test.png", "layers_stsb-test.svg"}
    assert main([*command, "stsb-test-geometry", "--figures", str(tmp_path / "one")]) == 0
    names = {file.stem for file in (tmp_path / "one").iterdir()}
    assert names == {"similarity_stsb-test", "tsne_stsb-test"}
    several = ["--compare", f"a={model}@mean", f"b={model}@max", *command[2:], "stsb-test-geometry"]
    assert main([*several, "--figures", str(tmp_path / "two")]) == 0
    assert {file.stem for file in (tmp_path / "two").iterdir()} == {
        "scatter_stsb-test-geometry",
        "scatter_similarity_stsb-test",
    }


def test_figures_2_and_3_of_models_with_images(tmp_path: Path) -> None:
    """The figures (Zhao et al. 2023) have a mark for each run, and one for the mean of several runs of a model."""
    shards = image_shards(tmp_path / "coco", [["c0"], ["c1"], ["c2"]])
    (task,) = make_tasks([f"geometry:{shards}"])
    entries, found = [], []
    for label, shift in (("CLIP", 0), ("CLIP", 1), ("CyCLIP", 2)):
        found.append(task.score(Coded(shift)).metrics)
        entries.append(f"{label}={tmp_path / f'{shift}.json'}")
        (tmp_path / f"{shift}.json").write_text(json.dumps({"model": label, "results": {task.name: found[-1]}}))
    figures = run(Arguments(compare=tuple(entries), tasks=(f"geometry:{shards}",), figures=tmp_path)).figures
    for kind, metric in (("alignment", "alignment"), ("uniformity", "image_uniformity")):
        (axes,) = figures[f"scatter_{kind}_geometry:coco"].axes
        marks = [np.asarray(points.get_offsets()) for points in axes.collections]
        assert marks[0] == pytest.approx(np.array([[run["text_uniformity"], run[metric]] for run in found[:2]]))
        assert [len(points) for points in marks] == [2, 1, 1]  # the runs of CLIP and their mean; CyCLIP
    assert len(figures) == 2


def test_logged_to_mlflow(model: Path, data: Path, tracking_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri)
    command = ["--model", str(model), "--data", str(data), "--tasks", "stsb-test", "--device", "cpu"]
    assert main([*command, "--experiment", "evaluation"]) == 0
    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name("evaluation")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    want = make_tasks(["stsb-test"], data)[0].score(load_encoder(model, device="cpu")).metrics
    assert logged.data.metrics["stsb-test/spearman"] == pytest.approx(want["spearman"])
    assert logged.info.status == "FINISHED"
    found = {file.path for file in client.list_artifacts(logged.info.run_id, "figures")}
    assert {"figures/tsne_stsb-test.png", "figures/tsne_stsb-test.svg"} <= found


def test_the_worst_pairs_are_below_the_table(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = ["--data", str(data), "--tasks", "stsb-test", "stsb-test-geometry", "--device", "cpu"]
    assert main(["--model", str(model), *ours, "--worst", "3"]) == 0
    title, head, *lines = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert title == "stsb-test: pairs that the encoder ranks differently from the human ratings" and len(lines) == 2 * 3
    assert head.split() == ["off", "rating", "cosine"]


def test_the_table_says_what_a_whitening_was_fitted_on(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the evaluated sentences only if that is asked for."""
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(text for _, *both in rated(40, seed=9) for text in both))
    ours = ["--data", str(data), "--tasks", "stsb-test", "--device", "cpu"]
    assert main(["--model", f"{model}+whitening4", *ours]) == 2
    assert "+whitening4:target for the evaluated sentences" in capsys.readouterr().err
    assert main(["--compare", f"a={model}+whitening4:target", f"b={model}+whitening4", "--fit", str(file), *ours]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2].startswith("a: fitted on ") and "the sentences of the evaluated tasks" in shown[-2]
    assert shown[-1].startswith("b: fitted on ") and shown[-1].endswith(f"sentences: {file}")
