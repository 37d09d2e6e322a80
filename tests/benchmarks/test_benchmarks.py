"""Every benchmark can be imported and says what it takes; what was measured becomes a row and a part of the page."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import tyro

from benchmarks import targets
from benchmarks.timer import ROWS, Target

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_help(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(".".join(script.relative_to(ROOT).with_suffix("").parts))
    with pytest.raises(SystemExit) as end:
        tyro.cli(module.main, args=["--help"], description=module.__doc__)
    assert end.value.code == 0 and "--" in capsys.readouterr().out


def test_a_target_is_a_row_that_says_whether_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROWS, str(tmp_path / "rows"))
    Target(area="text", what="a / b", at_least=1.3, measured=[1.2, 1.4, 1.5], peak_mb={"a": 1024.4}).report()
    Target(area="text", what="c / d", at_most=1.1, measured=[1.2, 1.2, 1.0], why="imports").report()
    Target(area="limit", what="e", at_least=2, why="needs a GPU").report()
    rows = [Target(**json.loads(line)) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [row.reached for row in rows] == [True, False, None]
    first, second, third = targets.table(rows).splitlines()[2:]
    assert first == "| text | a / b | ≥ 1.3 | 1.40 ± 11 % | yes | a 1,024 |  |"
    assert "| ≤ 1.1 | 1.20" in second and "**no**" in second and second.endswith("| imports |")
    assert "| - | not here |" in third


def test_the_page_has_the_last_measurement_of_an_area_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(targets, "FIGURES", tmp_path)
    (tmp_path / "page.md").write_text(
        "# Performance\n\n## text\n\nWords.\n\n<!-- text: measured -->\n<!-- end -->\n\nMore.\n"
    )
    for value in (1.0, 2.0):
        targets.update([Target(area="text", what="a / b", at_least=1.3, measured=[value])])
    page = (tmp_path / "page.md").read_text()
    assert "2.00 ±" in page and "1.00 ±" not in page and "Words." in page and page.endswith("More.\n")
    assert (tmp_path / "performance_text.png").exists()
