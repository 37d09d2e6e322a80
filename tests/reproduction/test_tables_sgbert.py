"""SG-BERT's tables: published numbers, settings of the small scale, and measures that are not tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.reproduction import reproduce
from multicse.reproduction.tables import measures, runs, small
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Row, read_tables
from multicse.trainers.sgbert import SGBERTConfig
from tests.evaluation.evaluation_helpers import rated, tiny_bert, write_raw

TABLES = read_tables("sgbert")
TRAINED = {row.label: row for table in TABLES.values() for row in table.rows if row.recipe}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the model, with the data of STS-B next to it."""
    folder = tmp_path_factory.mktemp("sgbert")
    for part in ("dev", "test"):
        write_raw(folder / f"STSB.{part}.raw.tsv", rated(80, seed=1))
    return tiny_bert(folder / "export")


def test_averages_are_those_of_the_rows() -> None:
    """Within the rounding error of seven means over eight runs, except for one misprint."""
    rows = [(key, row) for key, table in TABLES.items() for row in table.rows if table.average]
    full = {(key, row.label): np.array(row.paper, float) for key, row in rows if None not in row.paper}
    off = {place: numbers[:-1].mean() for place, numbers in full.items() if abs(numbers[-1] - numbers[:-1].mean()) > 0.011}
    assert off == {("T1", "BERT-large Flow"): pytest.approx(69.74, abs=0.005)}


@pytest.mark.parametrize("name", TRAINED)
def test_the_small_scale_keeps_the_settings_of_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offline, "stand_in", lambda self, name: f"small/{name}")
    recipe = runs.recipe_of(TRAINED[name])
    found = small.row("sgbert", recipe, Offline(Path("data"), Path("shards")))
    assert isinstance(recipe.method, SGBERTConfig) and isinstance(found.method, SGBERTConfig)
    sizes = {"head_width": 0, "first_layer": 0}
    assert recipe.method.model_copy(update=sizes) == found.method.model_copy(update=sizes)
    assert bool(recipe.method.head_width) == bool(found.method.head_width)
    assert bool(recipe.method.first_layer) == bool(found.method.first_layer)
    shards = recipe.streams["text"].shards.removeprefix("shards/").replace("-", "_")
    assert found.streams["text"].shards == f"small/{shards.removesuffix('_sentences') if 'stsb' in shards else shards}"


def test_a_curve_is_one_over_layers_and_a_trained_model_is_a_line(model: Path) -> None:
    table, data = TABLES["F1"], model.parent
    (task,) = make_tasks(["stsb-test"], data)

    def score(pooling: str) -> float:
        return task.score(load_model(f"{model}@{pooling}", device="cpu")).metrics["spearman"]

    table = replace(table, columns=("0", "1", "2"))
    curve = measures.layers(f"{model}@max", table.columns, data)
    assert curve == pytest.approx({str(layer): score(f"layer{layer}-max") for layer in range(3)})
    assert measures.layers(str(model), table.columns, data) == pytest.approx(dict.fromkeys("012", score("mean")))
    values = {row.label: {layer: [value, value + 2] for layer, value in curve.items()} for row in table.rows}
    drawn = reproduce.drawn(table, table.columns, values).axes[0].lines
    assert [line.get_label() for line in drawn] == ["CLS", "Mean", "Max", "SG", "SG-OPT"]
    assert np.asarray(drawn[0].get_ydata()) == pytest.approx([value + 1 for value in curve.values()])


def test_models_in_the_plane_of_two_columns() -> None:
    """CLIP's Figure 2 shows runs and their mean."""
    table = reproduce.tables_of("clip")["F2a"]
    values = {label: dict(zip(table.columns, ([0.1, 0.3], [-2.0, -3.0], [-1.0, -1.5]), strict=True)) for label in "ab"}
    runs_of, mean, *_ = reproduce.drawn(table, table.columns, values).axes[0].collections
    assert np.asarray(runs_of.get_offsets()) == pytest.approx(np.array([[-2.0, 0.1], [-3.0, 0.3]]))
    assert np.asarray(mean.get_offsets()) == pytest.approx(np.array([[-2.5, 0.2]]))


def test_seconds_of_a_run_and_of_an_untrained_model(model: Path) -> None:
    table, data = TABLES["T6"], model.parent
    plain = measures.seconds(f"{model}@last2", table.columns, data)
    assert plain["inference"] > plain["training"] == 0
    (model.parent / "summary.json").write_text(json.dumps({"train_seconds": 12.5}))
    assert measures.seconds(str(model), table.columns, data)["training"] == 12.5


def test_flows_are_fitted_on_the_texts_of_the_paper() -> None:
    """Footnote 7: sentences of STS-B for all tasks; Figure 4 also has NLI."""
    flows = {(key, row.model) for key, table in TABLES.items() for row in table.rows if "flow" in (row.model or "")}
    fitted = {key: {model.rpartition(":")[2] for place, model in flows if model and place == key} for key, _ in flows}
    assert fitted == {
        "T1": {"shards/stsb-sentences"},
        "T6": {"shards/stsb-sentences"},
        "F4": {"shards/stsb-sentences", "shards/nli-sentences"},
    }


def test_columns_of_tables_2_and_3_are_pearson(model: Path, tmp_path: Path) -> None:
    """Table 2 weights subsets by size; one has twice as many pairs here."""
    metrics = {key: {column.partition("#")[2] for column in TABLES[key].columns} for key in ("T2", "T3")}
    assert metrics == {"T2": {"pearson_wmean"}, "T3": {"pearson"}}
    file = write_raw(tmp_path / "es.tsv", rated(30), ("news", "news", "wikipedia"))
    table = replace(TABLES["T2"], columns=(f"pairs:{file}#pearson_wmean",))
    (found,) = runs.results(table, "sgbert", runs.Scale(tmp_path, tmp_path), [Row("x", model=str(model))], (0,), print)
    (task,) = make_tasks([f"pairs:{file}"])
    parts = task.score(load_model(str(model), device="cpu")).details["subsets"]
    weighted = (20 * parts["news"]["pearson"] + 10 * parts["wikipedia"]["pearson"]) / 30
    assert found["scores"][table.columns[0]] == pytest.approx(weighted, abs=1e-3)


def test_pairs_of_figure_5_and_their_figure(model: Path, tmp_path: Path) -> None:
    table, scale = TABLES["F5"], runs.Scale(tmp_path, model.parent)
    (found,) = runs.results(table, "sgbert", scale, [Row("untuned", model=str(model))], (0,), print)
    (task,) = make_tasks(["stsb-dev"], model.parent)
    assert isinstance(task, PairTask)
    cosines = task.similarities(load_model(str(model), device="cpu"))
    for rating in (5, 0):
        assert found["scores"][f"rated {rating}"] == pytest.approx(100 * cosines[task.gold == rating].mean(), abs=1e-3)
    assert Path(found["provenance"]["figure"]).is_file()


def test_bars_of_figure_4_are_stsb_and_the_average() -> None:
    table = TABLES["F4"]
    values = {label: {column: [i + 0.5, i + 1.5] for i, column in enumerate(table.columns)} for label in ("a", "b")}
    heights = [
        [bar.get_height() for bar in bars] for bars in reproduce.drawn(table, table.columns, values).axes[0].containers
    ]
    assert heights == [[1.0, 4.0]] * 2
