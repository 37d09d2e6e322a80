"""Test the settings of GCLSR's recipes, and the differences between paper and released code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from multicse.data.shards import ShardSet
from multicse.data.word_vectors import write_vectors
from multicse.pipelines import gclsr
from multicse.reproduction import reproduce
from multicse.reproduction.tables import measures, model_figures, small
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.runs import recipe_of
from multicse.reproduction.tables.table import read_tables
from multicse.reproduction.tasks.probe import PRESETS
from multicse.trainers.engine.checks import check_settings
from tests.pipelines.rows import difference, holds

TABLES = read_tables("gclsr")


@pytest.mark.parametrize("batch", [64, 128, 1024])
def test_disagree_5_6_the_learning_rate_is_three_hundredths_of_the_batch_over_128(batch: int) -> None:
    recipe = recipe_of(next(row for row in TABLES["T4"].rows if row.label == str(batch)))
    assert recipe.optim["text"].lr == pytest.approx(0.03 * batch / 128)
    assert recipe.steps(10_000) == 20 * recipe.evaluation.eval_steps  # measured after each epoch


def test_disagree_5_8_averages_that_are_misprinted() -> None:
    """[errata 5.8] The conclusion "PWVA alone is best" rests on a misprint, 83.35, in Table 3. Others differ by rounding."""
    off: dict[tuple[str, str], float] = {}
    for name, table in TABLES.items():
        for row in table.rows:
            *numbers, printed = [number for number in row.paper if number is not None] or [0.0]
            if table.average and len(numbers) == len(table.columns):
                mean = sum(numbers) / len(numbers)
                off |= {(name, row.label): round(mean, 2)} if abs(mean - printed) > 0.02 else {}
    assert off == {("T3", "GCLSR-base+PWVA"): 82.35, ("T7", "0.99"): 66.31}


@pytest.mark.parametrize(
    ("key", "count", "varied"),
    [
        ("T4", 5, {"streams.text.batch_size", "optim.text.lr", "evaluation.eval_steps"}),
        ("T5", 4, {"optim.text.weight_decay"}),
        ("T6", 5, {f"optim.text.groups.predictor.{name}" for name in ("lr", "schedule", "warmup")}),
        ("T7", 4, {"optim.text.momentum", "optim.text.momentum_after_warmup"}),
        ("T8", 5, {"optim.text.warmup"}),
        ("T9", 7, {"encoder.regions"}),
        ("T10", 3, {"method.augmentation", "method.partial"}),
        ("T11", 6, {"method.group_size"}),
    ],
)
def test_rows_of_tables_4_to_11_vary_the_table_s_setting_alone(key: str, count: int, varied: set[str]) -> None:
    """The rows are complete, one of them is the unchanged recipe; the columns are STS12 to STS15 and their average."""
    table = TABLES[key]
    changes = {row.label: difference(recipe_of(row), gclsr.full()) for row in table.rows}
    assert len(changes) == count and set().union(*changes.values()) == varied
    assert [label for label, changed in changes.items() if not changed] == [table.reference]
    assert (table.columns, table.average) == (("sts12", "sts13", "sts14", "sts15"), True)


@pytest.mark.parametrize("key", sorted(TABLES))
def test_a_row_as_released_has_the_filters_of_the_released_code(key: str) -> None:
    """A row with the paper's regions is not as released: the code's regions belong to its 640 filters."""
    for row in reproduce.tables_of("gclsr")[key].rows:
        if row.label.endswith("as released"):
            holds(recipe_of(row), {"encoder.regions": [1, 1, 1, 6, 10, 15], "encoder.filters": 640})


def test_a_decaying_predictor_has_the_learning_rate_of_the_encoder() -> None:
    """In Table 6, "Decay", the released scheduler gives both groups one learning rate, including the warm-up."""
    optim = recipe_of(TABLES["T6"].rows[0]).optim["text"]
    base = optim.model_dump(include={"lr", "schedule", "warmup"})
    assert (
        optim.groups["predictor"].model_dump(include=set(base)) == base == {"lr": 0.12, "schedule": "cosine", "warmup": 0.25}
    )


def test_table_3_has_the_released_classifier() -> None:
    """Two folds, and ten epochs between evaluations; other settings as in SentEval's test setting."""
    protocol = PRESETS[TABLES["T3"].protocol]
    assert (protocol.kfold, protocol.epoch_size, protocol.tenacity, protocol.batch) == (2, 10, 5, 64)
    assert (protocol.optimizer, protocol.last_fit) == ("adam", "held_out") and TABLES["T3"].hidden == 0


# ------------------------------------------------------------------------------------------------------------- the figures


def test_figure_2_how_far_augmentations_move_a_word(tmp_path: Path) -> None:
    """Compare with the noise in decibels, the share of zeros and the mean of the vector; RBN has a small effect."""
    words = np.random.default_rng(0).normal(0.1, 0.2, (1000, 300)).astype(np.float32)
    folder = write_vectors(tmp_path / "vectors", [f"word{i}" for i in range(1000)], words)
    table = TABLES["F2"]
    found = measures.change(str(folder), table.columns, tmp_path)
    expected: dict[str, float] = {
        "GWN": sum(10 ** (-decibel / 20) for decibel in range(6, 12)) / 6,
        "RZS": math.sqrt(17.27 / 300),
        "IFFT": math.sqrt(0.1**2 / float((words**2).mean())),
    }
    assert {name: found[name] for name in expected} == pytest.approx({n: 100 * x for n, x in expected.items()}, rel=0.03)
    assert tuple(found) == table.columns and 0.5 < found["RBN"] < 0.8
    shown = [axes.get_lines() for axes in model_figures.augmentations(str(folder), table, tmp_path).axes]
    assert len(shown) == 4 and (np.asarray(shown[1][1].get_ydata()) == 0).sum() > 10


def test_figure_3_the_weights_of_the_paper_s_sentence(tmp_path: Path) -> None:
    table = TABLES["F3"]
    vectors = np.eye(3, 4, dtype=np.float32) + 1
    folder = write_vectors(tmp_path / "vectors", ["comic", "relief", "the"], vectors)
    found = measures.weights(str(folder), table.columns, tmp_path)
    by_word = dict(zip(("comic", "relief", "the"), (vectors @ vectors.T).sum(1) / 2, strict=True))
    assert found == pytest.approx({word: by_word.get(word, 0.0) for word in table.columns})
    axes, _ = reproduce.drawn(table, table.columns, {"row": {word: [x] for word, x in found.items()}}).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == list(table.columns)
    assert np.asarray(axes.images[0].get_array()) == pytest.approx(np.array([[*found.values()]]) / max(found.values()))


def test_figure_4_from_the_journals(tmp_path: Path) -> None:
    lines = [{"step": step, "metrics": {"eval/stsb-dev/spearman": 50 + step / 10}} for step in range(0, 401, 20)]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = TABLES["F4"]
    found = measures.curve(str(tmp_path / "export"), table.columns, tmp_path)
    assert found == {epoch: 50 + 2 * int(epoch) for epoch in table.columns}


def test_every_row_at_the_small_scale(datasets: Path, tmp_path: Path) -> None:
    """Settings that a row varies are kept; vectors, sentences and widths are smaller."""
    offline = Offline(datasets, tmp_path)
    with mock.patch(
        "multicse.reproduction.tables.offline.train_vectors",
        lambda sentences, folder, **_: write_vectors(folder, ["a"], np.ones((1, 9))),
    ):
        for row in (row for table in TABLES.values() for row in table.rows if row.recipe):
            recipe = small.gclsr(recipe_of(row), offline)
            check_settings(recipe)
            assert recipe.run.epochs == 10 and ShardSet.open(recipe.streams["text"].shards).samples == small.FEWER
            method = {path: value for path, value in row.changes.items() if path.startswith("method.")}
            holds(recipe, recipe.changed(method).flat())
        place = small.model("gclsr", f"{gclsr.VECTORS}@padded", offline)
    assert place == f"{tmp_path / 'word-vectors-20000-100-10'}@padded"
    word2vec = [row.model for row in TABLES["T2"].rows if row.model and row.model.startswith(gclsr.VECTORS)]
    assert word2vec == [f"{gclsr.VECTORS}@padded", f"{gclsr.VECTORS}@letters"]  # as released, and of words alone
