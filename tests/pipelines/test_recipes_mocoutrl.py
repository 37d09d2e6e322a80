"""MoCoUTRL's recipes hold the paper's numbers, and the released ones where these differ."""

from __future__ import annotations

from typing import Any

import pytest

from data.offline.sentences import wiki_sentences
from data.streams.triplets import TripletTextStream, remembered, words
from data.wordnet.lexicon import SMALL
from evaluation.tables import SEVEN
from pipelines import mocoutrl
from trainers.engine.preflight import check_settings
from trainers.mocoutrl import Choices, MoCoUTRLConfig
from trainers.recipe import EncoderConfig, OptimConfig, Recipe


def changed(recipe: Recipe) -> dict[str, Any]:
    """What a recipe changes of the paper's, name and output aside."""
    base, other = mocoutrl.paper().flat(), recipe.flat()
    paths = (base.keys() | other.keys()) - {"name", "run.output"}
    return {path: other.get(path) for path in paths if base.get(path) != other.get(path)}


def choices(name: str) -> Choices:
    method = mocoutrl.RECIPES[name]().method
    assert isinstance(method, MoCoUTRLConfig)
    return method.choices


def test_the_papers_settings() -> None:
    recipe = mocoutrl.paper()
    text, optim, method, encoder = recipe.streams["text"], recipe.optim["text"], recipe.method, recipe.encoder
    assert isinstance(text, TripletTextStream) and (text.batch_size, text.choose, text.lexicon) == (32, "token", None)
    assert isinstance(optim, OptimConfig) and (optim.lr, optim.schedule, optim.weight_decay) == (1e-6, "cosine", 0)
    assert isinstance(method, MoCoUTRLConfig) and method.variant == "fixed"
    assert (method.temperature, method.momentum, method.balance) == (0.07, 0.999, 0.5)
    assert isinstance(encoder, EncoderConfig) and (encoder.path, encoder.pooling) == ("microsoft/deberta-base", "mean")
    assert recipe.evaluation.select == "stsb-dev" and set(recipe.evaluation.final) == set(SEVEN)


def test_disagree_6_2_and_6_3_printed_and_released_recipes() -> None:
    """[DISAGREE 6.2, 6.3] The formulas as printed change the variant alone; the released code has settings of its own."""
    assert changed(mocoutrl.printed()) == {"method.variant": "paper"}
    assert changed(mocoutrl.released()) == {
        "method.variant": "released",
        "streams.text.choose": "adjective",
        "streams.text.batch_size": 8,
        "streams.text.shuffle": False,
        "optim.text.schedule": "constant",
        "optim.text.clip": None,
        "run.precision": "fp32",
        "run.epochs": 5,
    }
    assert choices("printed") == (True, True, "eq6", "eq10", True, False)
    assert choices("released") == (False, False, "nt_xent", "rows", False, True)
    assert choices("paper") == (True, True, "nt_xent", "triplet", True, False)


def test_table_3() -> None:
    """Three encoders, each with both losses, the long-span loss and the token loss, with and without the perturbation."""
    assert len(mocoutrl.TABLE_3) == 3 * 5 - 1
    rows: dict[str, set[tuple[float, bool]]] = {}
    for name, make in {"deberta-base-both": mocoutrl.paper, **mocoutrl.TABLE_3}.items():
        recipe = make()
        assert changed(recipe).keys() <= {"encoder.path", "method.balance", "method.perturbation"}, name
        method, encoder = recipe.method, recipe.encoder
        assert isinstance(method, MoCoUTRLConfig) and isinstance(encoder, EncoderConfig)
        assert encoder.path == next(path for row, path in mocoutrl.ENCODERS.items() if name.startswith(row))
        assert (method.balance, method.choices.perturbation) == (
            {"both": 0.5, "long": 1.0, "token": 0.0}[name.split("-")[2]],
            not name.endswith("plain"),
        )
        assert name == "deberta-base-both" or (make.__doc__ or "").startswith(f"Table 3: {encoder.path}, ")
        rows.setdefault(encoder.path, set()).add((method.balance, method.choices.perturbation))
    grid = {(0.5, True), (0.5, False), (1.0, True), (0.0, True), (0.0, False)}
    assert rows == dict.fromkeys(mocoutrl.ENCODERS.values(), grid)


def test_disagree_6_4_web_of_science_has_seven_classes() -> None:
    """[DISAGREE 6.4] The paper says seven categories, and later six; the file has seven, and 134 below these."""
    assert changed(mocoutrl.wos()) == {
        "evaluation.final": [
            "classify:wos/wos7.tsv?head=three-layers",
            "classify:wos/wos134.tsv?head=three-layers",
            "geometry:wos/wos7.tsv",
        ]
    }


def test_the_demo_needs_no_wordnet() -> None:
    """Of the sentences that gensim brings along, enough for the demo's steps have a word of our own table."""
    recipe = mocoutrl.demo()
    stream = recipe.streams["text"]
    assert isinstance(stream, TripletTextStream) and stream.lexicon == SMALL
    find = remembered(stream.open_lexicon(), None)
    sentences = wiki_sentences()
    there = sum(any(find(text[slice(*span)]) for span in words(text)) for text in sentences)
    assert 0.35 < there / len(sentences) < 0.45
    assert recipe.run.max_steps is not None and there > recipe.run.max_steps * stream.batch_size
    assert 1 - stream.max_skipped_share < there / len(sentences) / 2


def test_names_and_identities_differ() -> None:
    recipes = {name: make() for name, make in mocoutrl.RECIPES.items()}
    assert all(recipe.name == f"mocoutrl/{name}" and recipe.run.output.endswith(name) for name, recipe in recipes.items())
    assert len({recipe.identity() for recipe in recipes.values()}) == len(recipes)


@pytest.mark.parametrize("name", mocoutrl.RECIPES)
def test_settings_agree_and_survive_json(name: str) -> None:
    recipe = mocoutrl.RECIPES[name]()
    check_settings(recipe)
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.evaluation.select in ("stsb-dev", "lee-dev")
