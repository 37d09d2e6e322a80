"""Search spaces fit their recipes and equal the grids of the papers; errors name settings that do not fit."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping

import pytest
from ray import tune

from multicse.pipelines import cyclip, visualcse
from multicse.reproduction.tables.table import read_tables
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.space import SearchSpace, check_space, grid, values_of, values_to_try
from multicse.tune_spaces import every
from tests.worlds import example

SPACES = every()


def fitting(pipeline: str, recipe: Recipe) -> dict[str, SearchSpace]:
    """Return the spaces for a recipe: NLI spaces only for streams that it has, MultiCSE spaces only for its update."""
    if pipeline == "multicse":
        (update,) = recipe.method.updates()
        own = {name: space for name, space in SPACES[pipeline].items() if f"optim.{update}.lr" in space}
        return {name: space for name, space in own.items() if name != "synonyms" or recipe.streams["text"].kind == "triplet"}
    streams = [f"{name.replace('_', '-')}-" for name in recipe.streams if name.startswith("nli")]
    return {
        name: space
        for name, space in SPACES[pipeline].items()
        if (name in (f"{streams[0]}weights", f"{streams[0]}wide") if streams else not name.startswith("nli"))
    }


@pytest.mark.parametrize("pipeline", SPACES)
def test_spaces_fit_their_recipes(pipeline: str) -> None:
    """Each space is checked against one recipe per combination of streams."""
    made = [make() for make in importlib.import_module(f"multicse.pipelines.{pipeline}").RECIPES.values()]
    recipes = {tuple((name, stream.kind) for name, stream in recipe.streams.items()): recipe for recipe in made[::-1]}
    used = set()
    for recipe in recipes.values():
        for name, space in fitting(pipeline, recipe).items():
            check_space(space, recipe)
            used.add(name)
    assert used == set(SPACES[pipeline])


@pytest.mark.parametrize("name", ["simcsepp", "tsdae", "uml"])
def test_spaces_of_the_examples_fit_their_recipes(name: str) -> None:
    recipes = [make() for make in example(name).RECIPES.values()]
    for space in example(name).SPACES.values():
        assert all(recipe.paper == name for recipe in recipes) and space
        check_space(space, recipes[0])


SIZES = {
    "visualcse": {"paper": 48, "text": 9},
    "audiocse": {"paper": 48, "text": 9},
    "nonlingcse": {"image": 48, "audio": 48, "text": 9, "paper": 48 * 48},
    "simcse": {"paper": 12, "text": 9, "temperature": 5},
    "sgbert": {"paper": 72},
    "mocoutrl": {"paper": 20},
    "cyclip": {"weights": 27, "nli-weights": 27, "nli-sentences-weights": 27},
    "clap": {"paper": 27, "paper-clap-s": 3, "paper-cyclap": 9},
}
OWN = {"visualcse": "bert_base", "audiocse": "bert_base", "nonlingcse": "bert_base", "simcse": "bert_base"}
OWN |= {"mocoutrl": "deberta_base"}


@pytest.mark.parametrize("pipeline", SIZES)
def test_the_papers_grids(pipeline: str) -> None:
    """They have as many points as in the papers, including the recipe's values."""
    assert {name: len(grid(SPACES[pipeline][name])) for name in SIZES[pipeline]} == SIZES[pipeline]
    if pipeline in OWN:
        recipe = getattr(importlib.import_module(f"multicse.pipelines.{pipeline}"), OWN[pipeline])()
        for name in SIZES[pipeline]:
            space = SPACES[pipeline][name]
            own = values_of(recipe, list(space))
            assert all(own[path] in list(values_to_try(domain)) for path, domain in space.items()), name


def test_every_row_of_an_ablation_is_a_point_of_its_grid() -> None:
    ablation = {row.label: row.changes for row in read_tables("sgbert")["T5"].rows}
    tables: list[tuple[Mapping[str, Mapping[str, object]], SearchSpace, str]] = [(ablation, SPACES["sgbert"]["paper"], "")]
    tables += [(cyclip.MODELS, SPACES["cyclip"][f"{kind}weights"], "method.") for kind in ("", "nli-", "nli-sentences-")]
    for rows, space, prefix in tables:
        known = {path: list(values_to_try(domain)) for path, domain in space.items()}
        for row, changes in rows.items():
            for path, value in changes.items():
                assert value in known.get(f"{prefix}{path}", [value]), row


@pytest.mark.parametrize(
    ("path", "domain"),
    [
        ("optim.image.lr", tune.uniform(-1.0, 1.0)),
        ("method.image.loss", tune.choice(["supcon", "triplet"])),
        ("optim.image.lr", tune.sample_from(lambda: 1)),
    ],
)
def test_errors_name_settings_that_do_not_fit(path: str, domain: SearchSpace) -> None:
    with pytest.raises(RecipeError, match=re.escape(path)):
        check_space({path: domain}, visualcse.demo())
