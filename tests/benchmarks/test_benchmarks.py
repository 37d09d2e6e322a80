"""The benchmarks of evaluation: a clone measures itself, and a missed bound is told and makes them fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import evaluation_share, retrieval, sts_speed, transfer
from benchmarks.sts_speed import Spent

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize("name", ["transfer", "sts_speed", "evaluation_share", "retrieval"])
def test_a_clone_measures_itself(name: str, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    script = shutil.copy(FOLDER / f"{name}.py", tmp_path / "benchmarks")
    for room in ("evaluation", "pipelines"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("raise SystemExit('this is the clone')")
    options = ["--one", "blocks", "10"] if name == "retrieval" else ["--help"]
    result = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, cwd="/")
    assert (result.returncode, result.stderr.strip()) == (1, "this is the clone")


def test_transfer_bounds() -> None:
    assert transfer.missed({"mr": 0.5, "trec": -1.0}, 10, 30) == transfer.missed({}, 5) == []
    assert len(transfer.missed({"mr": -0.51, "trec": 1.01, "cr": float("nan")}, 10.1, 30)) == 4


def test_speed_and_share_bounds() -> None:
    assert sts_speed.missed(Spent(1.3, 1.0), 1e-6) == sts_speed.missed(Spent(1.0, 1.3), 0.0) == []
    assert len(sts_speed.missed(Spent(1.29, 1.29), 0.1)) == len(sts_speed.missed(Spent(1.2, 0.9), float("nan"))) == 2
    assert evaluation_share.missed(5.0, 100) == []
    assert evaluation_share.missed(5.2, 100) == ["evaluation took 5.2 % of the loop, 5 % are allowed"]


def test_retrieval_bounds() -> None:
    flat: dict[str, Any] = {"MB": 20.0, "forward": 50.0, "backward": 40.0}
    both = {"blocks": flat, "whole": {**flat, "MB": 900.0}}
    assert retrieval.missed({25_000: both, 100_000: {"blocks": {**flat, "MB": 40.0}}}) == []
    grown = retrieval.missed({25_000: both, 100_000: {"blocks": {**flat, "MB": 80.0}}})
    assert grown == ["memory: 60 MB more for 100,000 texts than for 25,000, 38 are allowed"]
    assert len(retrieval.missed({25_000: {**both, "whole": {**flat, "backward": 41.0}}})) == 1


def test_a_missed_bound_is_an_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(retrieval, "NOISE", -1e6)
    with pytest.raises(SystemExit, match="bounds missed:\nmemory: "):
        retrieval.main(retrieval.Arguments(items=20, texts=(40,), width=8))
    assert "| 20 x 40 | blocks |" in capsys.readouterr().out
