"""Every space fits its recipes, and what does not fit is named."""

from __future__ import annotations

import pytest
from ray import tune

from pipelines import audiocse as audiocse_pipeline
from pipelines import sgbert as sgbert_pipeline
from pipelines import visualcse as visualcse_pipeline
from trainers.recipe import RecipeError
from tune_spaces import audiocse, sgbert, visualcse
from tune_spaces.space import SearchSpace, check, grid_size

PAIRS = [
    (space, make)
    for spaces, pipeline in (
        (visualcse, visualcse_pipeline),
        (audiocse, audiocse_pipeline),
        (sgbert, sgbert_pipeline),
    )
    for space in spaces.SPACES.values()
    for make in pipeline.RECIPES.values()
]


@pytest.mark.parametrize(("space", "make"), PAIRS)
def test_spaces_fit_their_recipes(space: SearchSpace, make) -> None:  # type: ignore[no-untyped-def]
    check(space, make())


def test_every_row_of_sg_bert_s_ablation_is_a_point_of_its_grid() -> None:
    grid = {path: domain["grid_search"] for path, domain in sgbert.SPACES["paper"].items()}
    assert grid_size(sgbert.SPACES["paper"]) == 72
    for changes in sgbert_pipeline.ABLATION.values():
        for path, value in changes.items():
            assert value in grid[path], path


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
