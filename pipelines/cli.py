"""What every pipeline script does with its recipes: choose one, change fields, run it, show what came of it."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import tyro

from multicse.data.errors import command, handle_interrupt
from multicse.pipelines import api, registry
from multicse.pipelines.registry import FILES, Recipes, takes_files
from multicse.trainers.jobs import kept, results_in
from multicse.trainers.recipe import Recipe, RecipeError, current_name

UNIMPROVED = (
    "training did not improve the model: no later step had a better development score than step 0, so the model is the one "
    f"that training began with. Try other rates and temperatures ({command('sweep')}), more text, or a task in the language "
    "of the text (evaluation.select)"
)
"""Said at the end of a run whose best step is its start."""

ALONE = ("--run.overwrite", "--export.whiten", "--export.int8_ranges")
"""Options that mean True without a value."""
MINE = "mine"
"""In place of a recipe: one is made of the user's own files (`pipelines/mine.py`)."""


def parse(recipes: Recipes, description: str, arguments: list[str]) -> Recipe:
    """The recipe named by the first argument (or ``--recipe FILE.json``) with the fields that the rest change.

    Without a name it is ``demo``, or where there is none the first. Raises RecipeError for a name that is none, with the
    nearest one. Unknown options end the program (tyro says how).
    """
    arguments = [part for item in arguments for part in (item.split("=", 1) if item.startswith("--") else [item])]
    if "--recipe" in arguments:
        place = arguments.index("--recipe")
        given = "".join(arguments[place + 1 : place + 2])
        del arguments[place : place + 2]
        base = registry.from_file(Path(given)) if given and given not in recipes else registry.named(recipes, given)
    else:
        base = registry.named(recipes, arguments.pop(0) if arguments and not arguments[0].startswith("-") else None)
    for argument in arguments:
        option = argument.partition("=")[0]
        if option.startswith("--") and (current := current_name(option[2:].replace("-", "_"))):
            raise RecipeError(f"{option} is called --{current} now")
    for switch in ALONE:
        if switch in arguments:
            place = arguments.index(switch) + 1
            if arguments[place : place + 1] not in (["True"], ["False"]):
                arguments.insert(place, "True")
    return tyro.cli(
        Recipe,
        default=base,
        args=[part for pair in pairwise(["", *arguments]) for part in _none(base, *pair)],
        description=_help(recipes, description, base),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        use_underscores=True,  # the names of recipe.json; hyphens are understood as well
    )


def refuse_unused(recipe: Recipe, plain: Recipe, remedies: Mapping[str, str]) -> None:
    """Refuse settings that a command does not use.

    Args:
        recipe: Recipe of the command line.
        plain: The same recipe as its pipeline has it.
        remedies: Paths of the settings, each with the way to get what it would be given for.

    Raises:
        RecipeError: If a setting has been changed.
    """
    given, usual = recipe.flat(), plain.flat()
    for path, remedy in remedies.items():
        if given[path] != usual[path]:
            raise RecipeError(f"--{path} {given[path]} is not used here: {remedy}")


def _none(base: Recipe, option: str, value: str) -> list[str]:
    """``none``, as the help writes it, as tyro takes it: None, or no item of a list; a choice of that name stays."""
    if value.startswith("--") and value.endswith("=none"):
        option = value.removesuffix("=none")
        return [option, *_none(base, option, "none")]
    if value != "none":
        return [value]
    *parents, last = option.removeprefix("--").replace("-", "_").split(".")
    place: Any = base
    for part in parents:
        place = place.get(part) if isinstance(place, dict) else getattr(place, part, None)
    field = getattr(type(place), "model_fields", {}).get(last)
    choices = get_args(field.annotation) if field else ()
    if Ellipsis in choices:
        return []
    return ["None" if type(None) in choices and not any("none" in get_args(choice) for choice in choices) else "none"]


def _help(recipes: Recipes, description: str, base: Recipe) -> str:
    width = max(map(len, recipes)) + 2
    script = sys.argv[0] if sys.argv[0].startswith("multicse ") else f"python {shlex.quote(sys.argv[0])}"
    files = " ".join(given for kind, given in FILES.items() if kind in base.streams)
    return "\n".join(
        [
            f"{description}\n",
            f"Recipes: the first argument; without one: {registry.default(recipes)}",
            *(f"  {name:<{width}}{(make.__doc__ or '-').strip().splitlines()[0]}" for name, make in recipes.items()),
            "\nExamples",
            f"  {script} {next(iter(recipes))} --optim.{next(iter(base.optim))}.lr 1e-5 --run.seed 2",
            *([f"  {script} {MINE} {files}    your own files: {MINE} --help"] if takes_files(recipes) else []),
            f"  {script} --recipe runs/demo/recipe.json    what another run did (the file is in its output folder)\n",
            f"Below: every setting of {base.name!r} by its dotted name, with its value. Lists are written with spaces.",
        ]
    )


@handle_interrupt()
def main(recipes: Recipes, description: str | None) -> dict[str, Any]:
    """Entry point of a pipeline script. Errors of the user's making end it with their message and exit code 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    with _told(ValueError):
        given = sys.argv[1:]
        mine_too = given[:1] == [MINE]
        if mine_too:
            from multicse.pipelines import mine

            given = mine.arguments(recipes, given[1:])
        recipe = parse(recipes, description or "", given)
    # The libraries take seconds, which --help and a mistyped option should not.
    from multicse.trainers.engine.step import NonFiniteLoss

    with results_in(kept(Path(recipe.run.output_dir), recipe.run.storage), first=not mine_too):
        with _told(ValueError, NonFiniteLoss, OSError):  # the last: no room, no right, no file
            summary = api.train(recipe).summary
        print(report(summary))
    return summary


@contextlib.contextmanager
def _told(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds end the program with their message."""
    try:
        yield
    except kinds as error:
        sys.exit(f"error: {error}")


def report(summary: dict[str, Any]) -> str:
    """Before and after, as a table, and where everything is."""
    from multicse.evaluation.tables import averages, before_after, layout
    from multicse.models.hub_folders import carried_files

    trust = ", trust_remote_code=True" if carried_files(Path(summary["export"])) else ""
    columns = [when for when in ("before", "baseline", "after", "whitened") if summary.get(when) is not None]
    columns = [when for when in columns if summary[when] or when in ("before", "after")]
    scores = {when: summary[when] | averages(summary[when]) for when in columns}
    rows = before_after(scores, is_shown, ("before", "after"))
    lines = ["", layout(rows)] if len(rows) > 1 else []
    if "baseline" in columns:
        lines.append("baseline: the encoder of before, whitened on training text; no training")
    models = [f"{summary['export']}   (SentenceTransformer({summary['export']!r}{trust}))"]
    if summary["tracking_uri"].startswith("http"):  # the folder may be a pod's, which is removed with it
        models.append(f"runs:/{summary['mlflow_run_id']}/export   (mlflow artifacts download --artifact-uri THAT -d FOLDER)")
    selected = summary["best_score"] is not None
    chosen = f", best at step {summary['best_step']}" if selected else ""
    lines += [
        *(["", f"warning: {UNIMPROVED}"] if selected and not summary["best_step"] else []),
        "",
        f"{summary['steps']} steps in {summary['train_seconds']:.0f} s{chosen}",
        *(f"model   {model}" for model in models),
        f"run     {summary['mlflow_run_id']}   (mlflow ui --backend-store-uri {shlex.quote(summary['tracking_uri'])})",
    ]
    if "hub" in summary:
        lines.append(f"hub     {summary['hub']}")
    if summary["skipped"]:
        lines.append(f"skipped {json.dumps(summary['skipped'])}   (keys and reasons in skipped.json)")
    return "\n".join(lines)


def is_shown(metric: str) -> bool:
    """Whether a metric is in the tables at the end of a run, which are those of the model card; MLflow has all."""
    from multicse.trainers.engine.card import SHOWN

    return metric in SHOWN
