"""Every benchmark can be imported and says what it takes."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import tyro

from tests.conftest import ROOT

SCRIPTS = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_help(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(".".join(script.relative_to(ROOT).with_suffix("").parts))
    with pytest.raises(SystemExit) as end:
        tyro.cli(module.main, args=["--help"], description=module.__doc__)
    assert end.value.code == 0 and "--" in capsys.readouterr().out
