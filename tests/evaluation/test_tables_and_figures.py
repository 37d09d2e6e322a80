from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.figures import alignment_uniformity_figure, similarity_by_gold_figure
from evaluation.registry import SEVEN
from evaluation.tables import average, comparison_table, task_table


def test_comparison_is_in_the_papers_order() -> None:
    before = {"lee": {"spearman": 14.123}, "stsb-test": {"spearman": 50.0}, "sts12": {"spearman": 40.5}}
    after = {name: {"spearman": scores["spearman"] + 10} for name, scores in before.items()}
    lines = comparison_table({"before": before, "after": after}).splitlines()
    assert lines[0].split()[-3:] == ["sts12", "stsb-test", "lee"]
    assert lines[2].split() == ["before", "40.50", "50.00", "14.12"]
    assert lines[3].split() == ["after", "50.50", "60.00", "24.12"]
    assert len({len(line) for line in lines}) == 1


def test_missing_results_are_dashes_and_average_needs_all_seven() -> None:
    full = {name: {"spearman": 70 + i + 0.005 * i} for i, name in enumerate(SEVEN)}
    assert average(full) == pytest.approx(sum(round(v["spearman"], 2) for v in full.values()) / 7)
    assert average({"sts12": {"spearman": 1.0}}) is None
    assert "average" in comparison_table({"a": full})
    assert "-" in comparison_table({"a": full, "b": {"sts12": {"spearman": 1.0}}}).splitlines()[3].split()


def test_task_table_shows_every_metric() -> None:
    results: dict[str, dict[str, Any]] = {
        "sts12": {"spearman": 72.366, "pearson": 81.0, "pairs": 3108, "skipped": 0, "subsets": {}},
        "stsb-dev-geometry": {"alignment": 0.25, "uniformity": -2.5, "positives": 9, "threshold": 4.0},
    }
    lines = task_table(results).splitlines()
    assert lines[0].split() == ["task", "spearman", "pearson", "alignment", "uniformity", "pairs", "skipped"]
    assert lines[2].split() == ["sts12", "72.37", "81.00", "-", "-", "3,108", "0"]
    assert lines[3].split() == ["stsb-dev-geometry", "-", "-", "0.25", "-2.50", "-", "-"]


def test_alignment_uniformity_figure(tmp_path: Path) -> None:
    figure = alignment_uniformity_figure([(0, 0.3, -1.0), (100, 0.25, -2.0), (200, 0.2, -2.5)])
    axes = figure.axes[0]
    assert np.asarray(axes.collections[0].get_offsets()).tolist() == [[-1.0, 0.3], [-2.0, 0.25], [-2.5, 0.2]]
    assert {text.get_text() for text in axes.texts} == {"step 0", "step 200"}
    figure.savefig(tmp_path / "figure.png")
    figure.savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="history is empty"):
        alignment_uniformity_figure([])


def test_similarity_by_gold_figure(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gold = np.concatenate([[0.0, 5.0], rng.uniform(0, 2, 98)])  # nothing between 2 and 4: bins may be empty
    similarities = gold / 5 + rng.normal(0, 0.01, 100)
    figure = similarity_by_gold_figure(similarities, gold)
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    np.testing.assert_allclose(points, np.stack([gold, similarities], 1))
    figure.savefig(tmp_path / "figure.png")
    with pytest.raises(ValueError, match="equally long"):
        similarity_by_gold_figure(similarities[:-1], gold)


def test_figures_leave_pyplot_alone() -> None:
    import sys

    before = "matplotlib.pyplot" in sys.modules
    alignment_uniformity_figure([(0, 0.3, -1.0)])
    assert ("matplotlib.pyplot" in sys.modules) == before
