"""Every benchmark describes its options, and a fixed part of `benchmarks/fuzz.py` has no bad outcome."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.fuzz import BAD, TARGETS, attempt
from tests.conftest import ROOT

SCRIPTS = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if "__main__" in path.read_text()]
RUNS = 200


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_help(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0 and "--" in capsys.readouterr().out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("target", range(len(TARGETS)), ids=[target.name.replace(" ", "-") for target in TARGETS])
def test_damaged_inputs(target: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end in counted bad samples, or in an error that names the file."""
    monkeypatch.setenv("MULTICSE_CACHE", str(place / "cache"))
    found = [attempt(number, place) for number in range(target, RUNS, len(TARGETS))]
    assert [outcome for outcome in found if outcome.kind in BAD] == []
