"""Every space fits its recipes, and what does not fit is named."""

from __future__ import annotations

import importlib
from typing import get_args

import pytest
from ray import tune

from pipelines import audiocse as audiocse_pipeline
from pipelines import clap as clap_pipeline
from pipelines import cyclip as cyclip_pipeline
from pipelines import gclsr as gclsr_pipeline
from pipelines import mocoutrl as mocoutrl_pipeline
from pipelines import nonlingcse as nonlingcse_pipeline
from pipelines import sgbert as sgbert_pipeline
from pipelines import simcse as simcse_pipeline
from pipelines import visualcse as visualcse_pipeline
from pipelines.sweep import Pipeline
from trainers.engine.preflight import check_settings
from trainers.recipe import Recipe, RecipeError
from trainers.tuning.space import SearchSpace, check, draws, grid, grid_size, holding, values_of, values_to_try, within_a_run
from tune_spaces import audiocse, clap, cyclip, gclsr, mocoutrl, nonlingcse, sgbert, simcse, visualcse

PAIRS = [
    (space, make)
    for spaces, pipeline in (
        (visualcse, visualcse_pipeline),
        (audiocse, audiocse_pipeline),
        (sgbert, sgbert_pipeline),
        (gclsr, gclsr_pipeline),
        (mocoutrl, mocoutrl_pipeline),
        (simcse, simcse_pipeline),
        (nonlingcse, nonlingcse_pipeline),
    )
    for space in spaces.SPACES.values()
    for make in pipeline.RECIPES.values()
]


@pytest.mark.parametrize(("space", "make"), PAIRS)
def test_spaces_fit_their_recipes(space: SearchSpace, make) -> None:  # type: ignore[no-untyped-def]
    check(space, make())


def sentences_of(recipe: Recipe) -> str:
    """Prefix of the spaces that are for a recipe of CLIP or CLAP: what its streams are beside the pairs."""
    return "".join(f"{name.replace('_', '-')}-" for name in recipe.streams if name != "pairs")


@pytest.mark.parametrize(("module", "pipeline"), [(cyclip, cyclip_pipeline), (clap, clap_pipeline)])
def test_spaces_of_clip_run_with_the_streams_that_are_there(module, pipeline) -> None:  # type: ignore[no-untyped-def]
    used = set()
    for make in pipeline.RECIPES.values():
        recipe = make()
        for name in ("paper", "wide"):
            used.add(sentences_of(recipe) + name)
            space = module.SPACES[sentences_of(recipe) + name]
            check(space, recipe)
            for path, domain in space.items():
                for value in values_to_try(path, domain):
                    check_settings(recipe.replace(path, value))
    assert used == set(module.SPACES)


def test_the_grid_of_paper_002() -> None:
    for name, space in cyclip.SPACES.items():
        if name.endswith("paper"):
            assert grid_size(space) == 27 and {"method.i_cyclic", "method.c_cyclic"} < set(space)
            assert all(domain == {"grid_search": [0.1, 0.25, 0.5]} for domain in space.values())
    for row, weights in cyclip_pipeline.MODELS.items():
        assert set(weights.values()) <= {0.1, 0.25, 0.5}, row


def test_every_row_of_sg_bert_s_ablation_is_a_point_of_its_grid() -> None:
    grid = {path: domain["grid_search"] for path, domain in sgbert.SPACES["paper"].items()}
    assert grid_size(sgbert.SPACES["paper"]) == 72
    for changes in sgbert_pipeline.ABLATION.values():
        for path, value in changes.items():
            assert value in grid[path], path


def test_tables_4_to_11_of_paper_003() -> None:
    """Every grid holds the paper's own setting, and as many rows as its table (or a square whose diagonal they are)."""
    sizes = {"batch": 25, "weight-decay": 4, "predictor-rate": 10, "momentum": 9, "warm-up": 5, "regions": 7}
    assert {name: grid_size(space) for name, space in gclsr.TABLES.items()} == {**sizes, "partial": 3, "group-size": 6}
    ours = gclsr_pipeline.full().flat()
    for space in gclsr.TABLES.values():
        for path, domain in space.items():
            values = list(values_to_try(path, domain))
            given = tuple(ours[path]) if isinstance(ours[path], list) else ours[path]
            assert given in values and len(set(values)) == len(values), path
    batches, rates = (list(values_to_try(path, domain)) for path, domain in gclsr.TABLES["batch"].items())
    assert rates == pytest.approx([gclsr_pipeline.sgd(size).lr for size in batches])
    assert gclsr_pipeline.HEADLINE in gclsr.REGIONS
    for space in gclsr.TABLES.values():
        for path, domain in space.items():
            for value in values_to_try(path, domain):
                check_settings(gclsr_pipeline.full().replace("run.precision", "fp32").replace(path, value))


def test_spaces_of_mocoutrl() -> None:
    """The grid holds the recipe's own point, and each loss alone."""
    ours = mocoutrl_pipeline.paper()
    grid = {path: list(values_to_try(path, domain)) for path, domain in mocoutrl.SPACES["paper"].items()}
    assert grid_size(mocoutrl.SPACES["paper"]) == 20 and {0.0, 1.0} <= set(grid["method.balance"])
    assert all(ours.flat()[path] in values for path, values in grid.items())


def test_the_papers_grid() -> None:
    for module in (visualcse, audiocse):
        assert grid_size(module.SPACES["paper"]) == 48 and grid_size(module.SPACES["text"]) == 9


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"optim.image.learning_rate": tune.choice([1e-5])}, "did you mean"),
        ({"optim.image.lr": tune.uniform(-1.0, 1.0)}, "optim.image.lr"),
        ({"method.image.loss": tune.choice(["supcon", "triplet"])}, "triplet"),
        ({"optim.image.lr": tune.sample_from(lambda: 1)}, "allowed"),
    ],
)
def test_what_does_not_fit_is_named(space: SearchSpace, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        check(space, visualcse_pipeline.demo())


def test_a_range_has_no_grid() -> None:
    with pytest.raises(RecipeError, match="continuous"):
        grid_size(visualcse.SPACES["wide"])


def test_spaces_of_simcse_and_of_all_three_streams() -> None:
    """The grids hold the recipe's own point; together they are those of the images and of the sounds."""
    sizes = {"paper": 12, "text": 9, "temperature": 5}
    both = {"image": 48, "audio": 48, "text": 9, "paper": 48 * 48}
    for module, pipeline, names in ((simcse, simcse_pipeline, sizes), (nonlingcse, nonlingcse_pipeline, both)):
        assert {name: grid_size(module.SPACES[name]) for name in names} == names
        ours = pipeline.bert_base().flat()
        for name in names:
            for path, domain in module.SPACES[name].items():
                assert ours[path] in list(values_to_try(path, domain)), (name, path)


def test_a_grid_is_the_product_of_its_values() -> None:
    space = {"optim.text.lr": tune.grid_search([1, 2]), "method.image.weight": tune.choice([3, 4, 5])}
    points = {(point["optim.text.lr"], point["method.image.weight"]) for point in grid(space)}
    assert points == {(rate, weight) for rate in (1, 2) for weight in (3, 4, 5)} and len(grid(space)) == 6


def test_draws_take_every_value_of_a_grid_and_stay_in_a_range() -> None:
    space = {"optim.text.lr": tune.grid_search([1, 2, 3]), "method.image.weight": tune.loguniform(0.01, 100)}
    drawn = draws(space, 300, seed=3)
    assert drawn == draws(space, 300, seed=3)
    counts = [sum(point["optim.text.lr"] == rate for point in drawn) for rate in (1, 2, 3)]
    assert min(counts) > 70  # 100 expected, sd 8.2
    weights = [point["method.image.weight"] for point in drawn]
    assert min(weights) >= 0.01 and max(weights) <= 100 and 110 < sum(weight < 1 for weight in weights) < 190


def test_what_models_a_space_is_given_one_that_holds_the_recipe() -> None:
    recipe = visualcse_pipeline.demo()  # image weight 1.0, text rate 5e-4
    space: SearchSpace = {
        "method.image.weight": tune.loguniform(5, 10),
        "optim.text.lr": tune.choice([1e-5]),
        "streams.text.batch_size": tune.randint(100, 200),
        "method.text.temperature": tune.uniform(0.1, 0.3),
    }
    held = holding(space, recipe)
    found = {path: list(values_to_try(path, domain)) for path, domain in held.items()}
    assert found["method.image.weight"] == [1.0, 10] and found["optim.text.lr"] == [5e-4, 1e-5]
    assert (
        found["streams.text.batch_size"] == [64, 199] and held["method.text.temperature"] is space["method.text.temperature"]
    )
    own = values_of(recipe, list(space))
    assert own == {path: recipe.flat()[path] for path in space}
    with pytest.raises(RecipeError, match="None in the recipe, which a range cannot hold"):
        holding({"evaluation.patience": tune.randint(1, 5)}, recipe)


@pytest.mark.parametrize("name", get_args(Pipeline))
def test_the_command_of_every_pipeline_has_spaces(name: str) -> None:
    """Those that `pipelines/sweep.py NAME` takes by default: for Optuna, for PBT, and as a grid."""
    module, recipes = importlib.import_module(f"tune_spaces.{name}"), importlib.import_module(f"pipelines.{name}").RECIPES
    recipe, wide = recipes["demo"](), module.SPACES["wide"]
    check(wide, recipe)
    assert set(holding(wide, recipe)) == set(wide)
    assert any(within_a_run(path, domain) for path, domain in wide.items())
    assert "paper" in module.SPACES or name == "gclsr"  # whose tables are a grid each
