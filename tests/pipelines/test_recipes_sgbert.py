"""SG-BERT's recipes hold the paper's numbers, and the released ones where these differ."""

from __future__ import annotations

import pytest

from data.streams.text import TextStream
from pipelines import sgbert
from trainers.engine.preflight import check_settings
from trainers.recipe import Recipe
from trainers.sgbert import SGBERTConfig


def changed(recipe: Recipe) -> dict[str, object]:
    """What a recipe changes of the main one, name and output aside."""
    base, other = sgbert.bert_base().flat(), recipe.flat()
    return {path: other.get(path) for path in base.keys() | other.keys() if base.get(path) != other.get(path)} | {
        "name": None,
        "run.output": None,
    }


def test_the_papers_settings() -> None:
    """Tables 8 and 9, section 4.1."""
    recipe = sgbert.bert_base()
    text, optim, method = recipe.streams["text"], recipe.optim["text"], recipe.method
    assert isinstance(text, TextStream) and (text.batch_size, text.max_length, recipe.run.epochs) == (16, 128, 1)
    assert (optim.lr, optim.betas, optim.eps, optim.warmup, optim.schedule) == (5e-5, (0.9, 0.9), 1e-6, 0.1, "linear")  # type: ignore[union-attr]
    assert (optim.clip, optim.weight_decay) == (1, 0)
    assert isinstance(method, SGBERTConfig)
    assert (method.loss, method.temperature, method.regularisation, method.head_width) == ("opt3", 0.01, 0.1, 4096)
    assert recipe.encoder.pooling == "cls_before_pooler"  # type: ignore[union-attr]
    evaluation = recipe.evaluation
    assert (evaluation.select, evaluation.every, evaluation.patience) == ("stsb-dev", 50, 10)
    assert (evaluation.patience_counts, evaluation.keep) == ("no_new_best", "best")
    assert len(sgbert.SEEDS) == 8


def test_steps_are_those_of_the_paper() -> None:
    """17,256 sentences are 1,079 steps."""
    assert sgbert.bert_base().steps(17_256) == 1079


def test_disagree_3_5_and_3_6_released_recipe() -> None:
    """[DISAGREE 3.5, 3.6] Weight decay that no table lists, a count of all decreases, the last weights."""
    assert changed(sgbert.released()) == {
        "method.variant": "released",
        "optim.text.weight_decay": 0.01,
        "evaluation.patience_counts": "decreases",
        "evaluation.keep": "last",
        "name": None,
        "run.output": None,
    }


def test_table_5_changes_one_thing_a_row() -> None:
    rows = {name: make() for name, make in sgbert.RECIPES.items() if name.startswith("ablation-")}
    assert len(rows) == 8
    for name, recipe in rows.items():
        assert changed(recipe) == {**sgbert.ABLATION[name.removeprefix("ablation-")], "name": None, "run.output": None}
        assert name in sgbert.RECIPES and (sgbert.RECIPES[name].__doc__ or "").startswith("Table 5")


def test_rows_of_tables_1_and_11() -> None:
    for encoder, path in sgbert.ENCODERS.items():
        sg, opt = (sgbert.RECIPES.get(f"{encoder}-{loss}", sgbert.bert_base)() for loss in ("sg", "sg-opt"))
        assert (sg.encoder.path, opt.encoder.path) == (path, path)  # type: ignore[union-attr]
        assert (sg.flat()["method.loss"], opt.flat()["method.loss"]) == ("sg", "opt3")
    assert len({make().identity() for make in sgbert.RECIPES.values()}) == len(sgbert.RECIPES)


@pytest.mark.parametrize(("recipe", "loss"), [(sgbert.back_translation(), "sg"), (sgbert.back_translation_sg(), "opt3")])
def test_back_translations_are_a_second_column(recipe: Recipe, loss: str) -> None:
    text = recipe.streams["text"]
    assert isinstance(text, TextStream) and text.columns == ("original", "translation")
    assert recipe.flat()["method.loss"] == loss
    check_settings(recipe)
    with pytest.raises(ValueError, match=r"streams.text.columns=\('txt',\) are 1 texts a sample, and method.positive="):
        check_settings(recipe.replace("streams.text.columns", ("txt",)))
