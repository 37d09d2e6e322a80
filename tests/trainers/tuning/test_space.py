"""What a space may vary, the domains from which values are drawn, and the form in which they are stored."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from ray import tune
from ray.tune.search import sample

from multicse.pipelines import simcse, visualcse
from multicse.trainers.recipe import EvaluationConfig, ExportConfig, Recipe, RecipeError
from multicse.trainers.tuning.search import Search
from multicse.trainers.tuning.space import check_space, draws, fixed, sampled, values_of
from multicse.trainers.tuning.study import study
from multicse.trainers.tuning.sweep import Sweep, own_values
from multicse.trainers.tuning.trial import Plan, placed
from multicse.trainers.tuning.trials import Trial
from multicse.tune_spaces import every

RECIPES = {name: importlib.import_module(f"multicse.pipelines.{name}").RECIPES["demo"]() for name in every()}


def other_values(recipe: Recipe, path: str, own: Any) -> Iterator[Any]:
    """Yield values of many types that a setting may have instead of its own."""
    if isinstance(own, bool):
        yield not own
    elif isinstance(own, (int, float)):
        yield from (own + 1, 2 * own, own / 2)
    elif isinstance(own, list):
        yield from ([0.5 if isinstance(item, float) else item for item in own], own[:1], own * 2)
    yield from (3, 0.25, True, None, [2], ["tensorboard"], [], {}, {"x": {"lr": 0.1}}, "lee-dev", "some/name")
    try:
        recipe.replace(path, "?")
    except RecipeError as error:  # Input should be 'linear', 'cosine' or 'constant'
        yield from re.findall(r"'(\w+)'", str(error))


def trained(recipe: Recipe, changes: dict[str, Any]) -> str:
    """Return the identity of a trial's training: without evaluation and export, and the name of its recipe."""
    plan = Plan(sweep="s", as_it_stands=recipe.to_json(), folder="/f", experiment="", parent="", seeds=(recipe.run.seed,))
    made = placed(plan.recipe(changes), plan, "t", recipe.run.seed)
    same = {"evaluation": EvaluationConfig(), "export": ExportConfig(), "name": "a/b"}
    return made.model_copy(update=same).identity()


@pytest.mark.parametrize("pipeline", RECIPES)
def test_a_space_may_vary_exactly_the_settings_that_change_the_training(pipeline: str) -> None:
    recipe = RECIPES[pipeline]
    unchanged = trained(recipe, {})
    single = set()
    for path, own in recipe.flat().items():
        for value in other_values(recipe, path, own):
            try:
                changed = recipe.replace(path, value)
            except RecipeError:
                continue
            if values_of(changed, [path])[path] != own:
                break
        else:
            single.add(path)
            continue
        effect = trained(recipe, {path: value}) != unchanged and not path.startswith("method.fresh")
        assert (fixed(path, recipe) is None) == effect, (path, value)
        if not effect:
            with pytest.raises(RecipeError, match=rf"^search space: {path}: .*(set|give|train|leave|cannot vary)"):
                check_space({path: tune.choice([value])}, recipe)
    # Names and kinds have one value; others require another setting, such as export.dimensions.
    assert not [path for path in single if path.startswith(("run.", "evaluation.", "optim."))] and len(single) < 20


SUPPORTED = [
    (tune.uniform, (0.5, 2.0)),
    (tune.quniform, (0.5, 2.0, 0.1)),
    (tune.quniform, (0.1, 0.4, 0.1)),
    (tune.loguniform, (1e-3, 2.0)),
    (tune.qloguniform, (0.01, 2.0, 0.01)),
    (tune.randint, (2, 9)),
    (tune.qrandint, (10, 100, 32)),
    (tune.qrandint, (2, 9, 1)),
    (tune.lograndint, (1, 9)),
    (tune.qlograndint, (10, 100, 32)),
    (tune.qlograndint, (3, 9, 1)),
    (tune.choice, ([1, 2, 5],)),
]
REFUSED = [
    (tune.randn, (1.0, 0.1)),
    (tune.qrandn, (1.0, 0.1, 0.1)),
    (tune.sample_from, (lambda: 1.0,)),
]


def test_every_kind_of_domain_is_known() -> None:
    kinds = {
        found for found in vars(sample).values() if inspect.isfunction(found) and found is getattr(tune, found.__name__, 0)
    }
    assert kinds == {kind for kind, _ in SUPPORTED + REFUSED}


@pytest.mark.parametrize(("kind", "limits"), SUPPORTED)
def test_domains_have_the_values_that_tune_draws(kind: Any, limits: tuple[Any, ...]) -> None:
    recipe, domain = simcse.demo(), kind(*limits)
    check_space({"method.temperature": domain}, recipe)
    ours, tunes = draws(domain), domain.sample(size=3000, random_state=1)
    assert len(ours) > 1
    if isinstance(domain, sample.Float):
        assert min(tunes) - 1e-9 <= min(ours) and max(ours) <= max(tunes) + 0.01
    else:
        assert set(ours) <= set(tunes) and (len(set(tunes)) > 10 or set(ours) == set(tunes))
    if kind in (tune.quniform, tune.qloguniform):
        assert all(value == float(f"{value:.6g}") and round(value / limits[2], 6) % 1 == 0 for value in ours)


@pytest.mark.parametrize(
    ("path", "domain", "named"),
    [
        *(("optim.text.lr", kind(*limits), kind.__name__.lstrip("q")) for kind, limits in REFUSED),
        ("optim.text.lr", 0.1, "0.1"),
        ("optim.text", {"lr": tune.uniform(0, 1)}, "dotted path"),
        ("optim.text.lr", tune.choice([tune.uniform(0, 1), 0.1]), "choice of domains"),
        ("optim.text.lr", tune.choice([0.1, 0.1]), "twice"),
        ("optim.text.lr", tune.choice([1, 1.0]), "twice"),
        ("optim.text.lr", tune.choice([]), "no values"),
        ("optim.text.lr", tune.randint(5, 5), "no values"),
        ("streams.text.batch_size", tune.qrandint(10, 20, 32), "no values"),
        ("streams.text.batch_size", tune.qrandint(16, 64, 2.5), "multiples of 2.5"),
        ("streams.text.batch_size", tune.uniform(16, 64), "whole|integer"),  # both ends are whole numbers
        ("optim.text.warmup", tune.uniform(-1e308, 1e308), "Range exceeds"),
        ("method.temperature", tune.choice(["0.1", "hot"]), "hot"),
        ("method.temp", tune.uniform(0, 1), "no setting"),
    ],
)
def test_domains_whose_values_cannot_be_used_are_refused_by_name(path: str, domain: Any, named: str) -> None:
    with pytest.raises(RecipeError, match=rf"^search space: {path}.*({named})"):
        check_space({path: domain}, simcse.demo())


def test_a_setting_is_varied_once() -> None:
    with pytest.raises(RecipeError, match=r"optim\.text contains optim\.text\.lr"):
        check_space({"optim.text.lr": tune.uniform(0, 1), "optim.text": tune.choice([{"lr": 0.1}])}, simcse.demo())


@pytest.mark.parametrize(
    ("own", "domain"),
    [
        ({"method.temperature": 1.0}, tune.choice([1, 2, 3])),
        ({"method.temperature": 0.25}, tune.choice(["0.5", 0.25])),
        ({"method.temperature": 2.0}, tune.randint(1, 4)),
        ({"method.temperature": 0.3}, tune.quniform(0.1, 0.4, 0.1)),
        ({"streams.text.batch_size": 32}, tune.choice([16.0, 32.0, 64])),
        ({"streams.text.batch_size": 32}, tune.quniform(16, 48, 16)),
        ({"streams.text.shuffle": True}, tune.choice([0, 1])),
        ({"streams.text.shuffle": True}, tune.randint(0, 2)),
        ({"run.matryoshka": (8, 16)}, tune.choice([(8, 16), [8], ()])),
        ({"optim.text.betas": (0.9, 0.0)}, tune.grid_search([[0.9, 0], (0.8, 0.999)])),
        ({"run.ema": None}, tune.choice([None, 0.9])),
        ({"optim.text.schedule": "linear"}, tune.choice(["linear", "constant"])),
        ({"run.epochs": 1.0}, tune.choice([True, 2])),
    ],
)
def test_values_are_compared_and_stored_in_the_type_of_the_setting(own: dict[str, Any], domain: Any) -> None:
    """The recipe's value is never a change, and the searcher learns from every trial, also after records are read."""
    ((path, value),) = own.items()
    recipe = simcse.demo().replace(path, value)
    check_space({path: domain}, recipe)
    sweep = Sweep(pipeline="simcse", recipe=recipe, space={path: domain}, trials=40, seeds=(1,))
    search = object.__new__(Search)
    search.sweep, search.trials = sweep, {}
    for number in range(40):
        made = Trial(number=number, trial_id=f"x_{number}", changes=search.propose(number), status="finished", best=1.0)
        search.trials[number] = Trial(**json.loads(json.dumps(asdict(made))))
        changes = search.trials[number].changes
        assert changes == json.loads(json.dumps(values_of(recipe.changed(changes), list(changes))))
        assert own_values(sweep)[path] not in changes.values()
        assert [type(value) for value in values_of(recipe.changed(changes), [path]).values()] == [
            type(changes.get(path, own_values(sweep)[path]))
        ]
    for space in (sweep.domains, sampled({path: domain}, recipe)):
        known = study(search.trials.values(), space, own_values(sweep)).trials
        assert all(one.params for one in known) and len({one.params[path] for one in known}) > 1


def test_paths_in_a_space_are_absolute(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials run in other folders."""
    (tmp_path / "bert").mkdir()
    monkeypatch.chdir(tmp_path)
    (domain,) = sampled({"encoder.path": tune.choice(["bert", "org/name"])}, visualcse.demo()).values()
    assert domain.categories == [str(tmp_path / "bert"), "org/name"]


def test_the_multiples_of_a_domain_are_part_of_the_sweeps_identity() -> None:
    def sweep(q: float) -> Sweep:
        space = {"method.temperature": tune.quniform(0.1, 1.0, q)}
        return Sweep(pipeline="simcse", recipe=simcse.demo(), space=space, trials=3, seeds=(1,))

    assert sweep(0.1).identity() == sweep(0.1).identity() != sweep(0.05).identity()
