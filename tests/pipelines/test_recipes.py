"""Test properties of all recipes of all pipelines, and the settings of SG-BERT, GCLSR and MoCoUTRL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicse.evaluation.registry import is_development
from multicse.pipelines.cli import parse
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.pipelines.registry import NAMES, load
from multicse.reproduction.tables.table import read_tables
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.recipe import Recipe
from tests.pipelines.rows import difference, holds, recipe_in

ALL = {f"{paper}/{name}": make for paper in NAMES for name, make in load(paper).RECIPES.items()}


TRANSLATED = {"streams.text.shards": "shards/stsb-translated", "streams.text.columns": ["original", "translation"]}
NUMBERS: dict[str, dict[str, Any]] = {
    "sgbert/bert-base": {
        # Table 8
        **{"streams.text.batch_size": 16, "optim.text.lr": 5e-5, "optim.text.betas": [0.9, 0.9], "run.epochs": 1},
        **{"method.temperature": 0.01, "method.regularisation": 0.1, "evaluation.eval_steps": 50, "evaluation.patience": 10},
        # Section 3: two layers of 4,096, [CLS], all layers of the teacher
        **{
            "method.loss": "opt3",
            "method.head_width": 4096,
            "encoder.pooling": "cls_before_pooler",
            "method.first_layer": 0,
        },
        # Further settings of the released code
        **{"optim.text.eps": 1e-6, "optim.text.warmup": 0.1, "optim.text.schedule": "linear", "optim.text.max_grad_norm": 1},
        **{"streams.text.max_length": 128, "optim.text.weight_decay": 0, "evaluation.select": "stsb-dev"},
        **{"evaluation.patience_counts": "no_new_best", "evaluation.keep": "best", "run.precision": "fp32"},
    },
    "gclsr/pwva-att-gp": {
        # Section 4.1: 0.03 x 512 / 128 ([errata 5.6] section 5.1 prints 0.3), 5 of 20 epochs warm up
        **{"streams.text.batch_size": 512, "optim.text.lr": 0.12, "optim.text.weight_decay": 1e-3, "run.epochs": 20},
        **{"optim.text.schedule": "cosine", "optim.text.warmup": 5 / 20, "optim.text.max_grad_norm": None},
        **{"optim.text.momentum": 0.9, "optim.text.momentum_after_warmup": 0.8},
        **{"method.width": 4096, "method.bottleneck": 1024, "method.group_size": 16, "method.augmentation": "pwva"},
        **{"encoder.regions": [1, 1, 1, 6, 15, 20], "encoder.filters": 300, "method.attention": None},
        # Further settings of the released code
        **{"optim.text.nesterov": True, "run.seed": 2, "run.precision": "fp32", "method.kinds": [0.5, 0.2, 0.2, 0.1]},
        **{"streams.text.max_length": 64, "encoder.max_words": 64, "evaluation.select": "stsb-dev"},
        **{
            f"optim.text.groups.predictor.{name}": value
            for name, value in (("lr", 1), ("schedule", "constant"), ("warmup", 0))
        },
    },
    "mocoutrl/deberta-base": {
        # Section 4.2
        **{"method.temperature": 0.07, "method.momentum": 0.999, "optim.text.lr": 1e-6, "optim.text.schedule": "cosine"},
        **{"streams.text.batch_size": 32, "encoder.path": "microsoft/deberta-base", "encoder.pooling": "mean"},
        # From the released code; the paper does not print the weight of the losses
        **{"method.balance": 0.5, "optim.text.weight_decay": 0, "streams.text.max_length": 200},
        **{"streams.text.choose": "token", "method.variant": "fixed", "evaluation.select": "stsb-dev"},
    },
}
"""Settings of the papers by recipe."""
STEPS = {"sgbert/bert-base": (17_256, 1079), "gclsr/pwva-att-gp": (10_000, 400)}
"""Number of samples, and steps; GCLSR's paper has 380 without the last, incomplete batch of an epoch."""
DIFFERENCES: dict[str, dict[str, Any]] = {
    # [errata 3.5, 3.6] weight decay that no table lists, a count of all decreases, the last weights
    "sgbert/released": {
        **{"method.variant": "released", "optim.text.weight_decay": 0.01},
        **{"evaluation.patience_counts": "decreases", "evaluation.keep": "last"},
    },
    # Rows of the tables
    "sgbert/T1/BERT-base BT": {"method.loss": "sg", "method.positive": "translation", **TRANSLATED},  # A.2
    "sgbert/T7/BT + SG-OPT": {"method.positive": "both", **TRANSLATED},
    "sgbert/T4/BERT-base SG-OPT": {  # mean pooling without the first layers; their number is not printed
        **{"streams.text.shards": "shards/nli-sentences", "run.max_steps": 1079},
        **{"method.pooling": "mean", "method.first_layer": 4},
    },
    "gclsr/T2/GCLSR-base": {
        **{"method.augmentation": "none", "method.attention": "none", "method.group_size": None},
        "encoder.regions": [1] * 6,
    },
    # [errata 5.8] the last row of Table 2 has the scores of Table 9's six banks of one word
    "gclsr/headline": {"encoder.regions": [1] * 6},
    # [errata 5.2] six banks of 640 filters, and unknown words are redrawn
    "gclsr/released": {
        **{"method.variant": "released", "encoder.regions": [1, 1, 1, 6, 10, 15]},
        **{"encoder.filters": 640, "encoder.unknown": "redrawn"},
    },
    "mocoutrl/T3/RoBERTa, token loss": {
        **{"encoder.path": "FacebookAI/roberta-base", "method.balance": 0.0, "method.perturbation": False},
    },
    # [errata 6.2, 6.3] the printed formulas change only the variant; the released code also has different settings
    "mocoutrl/paper": {"method.variant": "paper"},
    "mocoutrl/released": {
        **{"method.variant": "released", "encoder.hidden_dropout": 0.0, "encoder.attention_dropout": 0.0},
        **{"streams.text.choose": "adjective", "streams.text.antonym": "any", "streams.text.words": [25, 500]},
        **{"streams.text.max_skipped_share": 0.99, "streams.text.batch_size": 8},
        **{"streams.text.shuffle": False, "optim.text.schedule": "constant", "optim.text.max_grad_norm": None},
        **{"run.precision": "fp32", "run.epochs": 5},
    },
}
"""Differences between the recipe of the paper and other recipes or rows of its tables."""

SHAPES = {frozenset(make().flat()): make for make in ALL.values()}
"""One recipe per set of settings."""


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    recipe = ALL[name]()
    holds(recipe, NUMBERS[name])
    if name in STEPS:
        samples, steps = STEPS[name]
        assert recipe.steps(samples) == steps


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences(name: str) -> None:
    paper, _, row = name.partition("/")
    (base,) = (make for known, make in ALL.items() if known in NUMBERS and known.startswith(f"{paper}/"))
    recipe = ALL[name]() if name in ALL else recipe_in(read_tables(paper), row)
    assert difference(recipe, base()) == DIFFERENCES[name]


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_fits_together_and_survives_json(name: str) -> None:
    recipe: Recipe = ALL[name]()
    check_settings(recipe)
    assert Recipe.from_json(recipe.to_json()) == recipe
    select = recipe.evaluation.select
    assert select is None or is_development(select)
    assert (ALL[name].__doc__ or "").strip()


@pytest.mark.parametrize("make", SHAPES.values(), ids=lambda make: make().name)
def test_a_recipe_passes_through_the_command_line_unchanged(make: Callable[[], Recipe]) -> None:
    assert parse({"it": make}, "", ["it", "--run.seed", "9"]) == make().replace("run.seed", 9)


def test_no_two_recipes_are_the_same_experiment() -> None:
    recipes = [make() for make in ALL.values()]
    assert len({recipe.identity() for recipe in recipes}) == len(recipes)
    assert len({recipe.run.output_dir for recipe in recipes}) == len(recipes)
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    assert all(recipe.paper == name.split("/")[0] for name, recipe in zip(ALL, recipes, strict=True))


@pytest.mark.parametrize("paper", NAMES)
def test_smoke_and_demo_need_no_download(paper: str) -> None:
    for row in {"demo", "smoke"} & load(paper).RECIPES.keys():
        recipe: Recipe = load(paper).RECIPES[row]()
        tasks = (recipe.evaluation.select or "lee-dev", *recipe.evaluation.watch, *recipe.evaluation.final)
        assert all(task.startswith("lee") or "runs/offline/" in task for task in tasks)
        assert all(stream.shards.startswith("runs/offline/") for stream in recipe.streams.values())
        assert recipe.run.gpus_per_worker == 0 and recipe.evaluation.data is None


def test_the_shipped_encoder_is_small_and_its_card_has_its_source() -> None:
    folder = Path(SMALL_ENCODER)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 10 * 2**20
    card = (folder / "README.md").read_text()
    for word in ("masked accuracy", "STS-B dev", "licence", "steps"):
        assert word.lower() in card.lower()
    assert not list(folder.rglob("*.bin"))
