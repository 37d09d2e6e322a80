"""Test properties of all recipes of all pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from multicse.evaluation.registry import is_development
from multicse.pipelines.cli import parse
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.pipelines.registry import NAMES, load
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.recipe import Recipe

ALL = {f"{paper}/{name}": make for paper in NAMES for name, make in load(paper).RECIPES.items()}


SHAPES = {frozenset(make().flat()): make for make in ALL.values()}
"""One recipe per set of settings."""


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
