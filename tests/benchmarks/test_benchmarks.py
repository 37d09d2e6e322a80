"""Every benchmark can be imported and says what it takes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPTS = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_help(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    assert end.value.code == 0 and "--" in capsys.readouterr().out
