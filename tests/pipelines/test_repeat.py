"""A recipe over seeds: what is run, what is not run again, and the tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation import tables
from multicse.pipelines.repeat import _values, main, table


@pytest.fixture
def command(place: Path, tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The smoke recipe on tiny inputs, in this process."""
    monkeypatch.chdir(tmp_path)
    settings = {
        "encoder.path": place / "encoder",
        "streams.text.shards": place / "text",
        "run.num_workers": 0,
        "run.max-steps": 2,
        "run.threads": 1,
        "run.tracking-uri": tracking_uri,
        "evaluation.select": "None",  # the last step is kept, so that seeds differ
        "evaluation.final": "lee",
    }
    return ["simcse", "smoke", *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]


def test_seeds_are_run_once(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--seeds", "3", "5"]) == 0
    (folder,) = (tmp_path / "runs").glob("repeat-simcse-smoke-*")
    report = json.loads((folder / "repeat.json").read_text())
    runs = [json.loads((folder / f"seed-{seed}" / "summary.json").read_text()) for seed in (3, 5)]
    recipes = [json.loads((folder / f"seed-{seed}" / "recipe.json").read_text()) for seed in (3, 5)]
    assert [recipe["run"]["seed"] for recipe in recipes] == report["seeds"] == [3, 5]
    assert runs[0]["identity"] != runs[1]["identity"]
    after = [run["after"]["lee"]["spearman"] for run in runs]
    assert report["values"]["after"]["lee"]["spearman"] == after and after[0] != after[1]
    cell = report["summary"]["after"]["lee"]["spearman"]
    assert cell == pytest.approx({"mean": sum(after) / 2, "sd": abs(after[0] - after[1]) / 2**0.5, "n": 2})
    shown = capsys.readouterr().out
    assert "simcse/smoke, 2 seeds" in shown and f"{cell['mean']:.2f} ± {cell['sd']:.2f}" in shown

    # More seeds: those that are there are read. Another recipe does not overwrite them.
    kept = [(folder / f"seed-{seed}" / "summary.json").stat().st_mtime_ns for seed in (3, 5)]
    assert main([*command, "--seeds", "3", "5", "7"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("already finished") == 2 and "seed 7: " in shown
    assert [(folder / f"seed-{seed}" / "summary.json").stat().st_mtime_ns for seed in (3, 5)] == kept
    assert json.loads((folder / "repeat.json").read_text())["seeds"] == [3, 5, 7]

    assert main([*command, "--seeds", "3", "--output", str(folder), "--optim.text.lr", "1e-2"]) == 2
    assert "seed-3 contains a finished run with other settings" in capsys.readouterr().err


def test_the_whitened_start_is_a_column() -> None:
    after = {"lee": {"spearman": [40.0, 41.0]}, "mr": {"accuracy": [80.0, 81.0]}}
    values = {"before": after, "baseline": {"lee": {"spearman": [44.0, 46.0]}}, "after": after}
    lines = [" ".join(line.split()) for line in table({"recipe": "x/a", "seeds": [0, 1], "values": values}).splitlines()]
    assert "lee spearman 40.50 ± 0.71 45.00 ± 1.41 40.50 ± 0.71" in lines
    assert "mr accuracy 80.50 ± 0.71 - 80.50 ± 0.71" in lines


def test_the_average_over_tasks_has_sd_and_p() -> None:
    """NonLing-CSE's Table 3: 75.74 ± 0.90 against 76.96 ± 0.38 over five seeds of the average is p = .0235."""

    def runs(mean: float, sd: float) -> list[dict[str, dict[str, float]]]:
        spread = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])
        scores = mean + spread * sd / spread.std(ddof=1)
        return [{task: {"spearman": float(score)} for task in tables.SEVEN} for score in scores]

    simcse, visualcse = runs(75.74, 0.90), runs(76.96, 0.38)
    values = _values(visualcse)
    (line,) = [
        " ".join(line.split())
        for line in table({"recipe": "x", "seeds": [*range(5)], "values": {"before": values, "after": values}}).splitlines()
        if line.startswith("average of 7")
    ]
    assert line == "average of 7 spearman 76.96 ± 0.38 76.96 ± 0.38"
    marks = tables.significance([tables.Row("SimCSE", simcse), tables.Row("VisualCSE", visualcse)])
    assert marks.p["VisualCSE", tables.AVERAGE] == pytest.approx(0.0235, abs=5e-4)  # of numbers rounded to 2 decimals
