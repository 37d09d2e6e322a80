"""Every benchmark can be imported and says what it takes; what was measured becomes a row and a part of the page."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
import tyro

from benchmarks import guard, targets
from benchmarks.speed.workers import counting
from benchmarks.timer import ROWS, Target, datasets
from trainers.gather import gather

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
        rows = [Target(area="text", what="a / b", at_least=1.3, measured=[value])]
        targets.update(rows, [("text", f"Behind it: {value}."), ("start", "Elsewhere.")])
    page = (tmp_path / "page.md").read_text()
    assert "2.00 ±" in page and "1.00 ±" not in page and "Words." in page and page.endswith("More.\n")
    assert "Behind it: 2.0." in page and "1.0." not in page and "Elsewhere" not in page
    assert (tmp_path / "performance_text.png").exists()


def test_what_lacks_its_data_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROWS, str(tmp_path / "rows"))
    monkeypatch.setenv("MULTICSE_DATASETS", str(tmp_path))
    with pytest.raises(SystemExit) as end:
        datasets("sts", rows=[Target(area="serving", what="a / b", at_least=1.7)])
    assert not end.value.code
    (row,) = [Target(**json.loads(line)) for line in (tmp_path / "rows").read_text().splitlines()]
    assert row.reached is None and "MULTICSE_DATASETS" in row.row()


def test_the_guard_says_how_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RECORDED", tmp_path / "guard.json")
    with pytest.raises(SystemExit, match="--record"):
        guard.main()


def test_bytes_of_imagined_workers() -> None:
    """Six rows of five numbers go to three workers, and the gradients of all eighteen come back."""
    x = torch.ones(6, 5, requires_grad=True)
    with counting(3) as found:
        everything = gather(x)
        everything.sum().backward()
    assert everything.shape == (18, 5) and found == {"gathered": 4 * 30, "returned": 4 * 90, "calls": 2}
