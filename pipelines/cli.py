"""What every pipeline script does with its recipes: choose one, change fields, run it, show what came of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args

import tyro

from multicse.data.errors import command, did_you_mean, handle_interrupt
from multicse.pipelines.registry import FILES, Recipes, takes_files
from multicse.trainers.jobs import kept, results_in
from multicse.trainers.recipe import Recipe, RecipeError

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a message says what is wrong, not where to read about it

OFFLINE = "runs/offline"
"""Shards that are made from what the installed packages bring along, for recipes that need no download."""

SHOWN = (
    *("spearman", "alignment", "uniformity", "accuracy"),
    *("*_to_*_r1", "*_to_*_r10", "mean_map10", "loss", "text_uniformity", "image_uniformity", "audio_uniformity"),
)
"""Patterns of the metrics in the table at the end of a run; the tracker has all."""

UNIMPROVED = (
    "training did not improve the model: no score is above the one before, and the model is that of the last step. Name a "
    "development task, whose best step is kept (evaluation.select), or try other rates, or more text",
    "training did not improve the model: no later step had a better development score than step 0, so the model is the one "
    f"that training began with. Try other rates and temperatures ({command('sweep')}), more text, or a task in the language "
    "of the text (evaluation.select)",
)
"""Said at the end of a run that is no better than its start, without and with a task that chose the step."""

OURS = ("demo", "smoke")
"""Recipes that say nothing of a run on other data."""
WRITTEN = ("recipe", "best")
"""Files that runs and sweeps write, whose names say nothing either."""

ALONE = ("--run.overwrite", "--export.whiten", "--export.int8_ranges")
"""Options that mean True without a value."""
MINE = "mine"
"""In place of a recipe: one is made of the user's own files (`pipelines/mine.py`)."""


def parse(recipes: Recipes, description: str, arguments: list[str]) -> Recipe:
    """The recipe named by the first argument (or ``--recipe FILE.json``) with the fields that the rest change.

    Without a name it is ``demo``, or where there is none the first. Raises RecipeError for a name that is none, with the
    nearest one. Unknown options end the program (tyro says how).
    """
    arguments = [part for item in arguments for part in (item.split("=", 1) if item.startswith("--recipe=") else [item])]
    if "--recipe" in arguments:
        place = arguments.index("--recipe")
        given = arguments[place + 1 : place + 2]
        if not given or not (given[0] in recipes or Path(given[0]).is_file()):
            missing = f": there is no file {given[0]}" if given else ""
            allowed = f"it takes a file that a run wrote (recipe.json) or one of: {', '.join(recipes)}"
            raise RecipeError(f"--recipe{missing}; {allowed}")
        del arguments[place : place + 2]
        base = recipes[given[0]]() if given[0] in recipes else _from_file(Path(given[0]))
    else:
        name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else _default(recipes)
        if name not in recipes:
            raise RecipeError(f"no recipe {name!r}.{did_you_mean(name, recipes)} There are: {', '.join(recipes)}")
        base = recipes[name]()
    for switch in ALONE:
        if switch in arguments:
            place = arguments.index(switch) + 1
            if arguments[place : place + 1] not in (["True"], ["False"]):
                arguments.insert(place, "True")
    recipe = tyro.cli(
        Recipe,
        default=base,
        args=list(_with_none(base, arguments)),
        description=_help(recipes, description, base),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        use_underscores=True,  # the names of recipe.json; hyphens are understood as well
    )
    return _named(recipe, base)


def _named(recipe: Recipe, base: Recipe) -> Recipe:
    """The recipe, called after data of the user's own (``visualcse/mytext+photos``) unless the user names it."""
    own = [
        folder.name
        for stream, config in recipe.streams.items()
        for folder in _folders(config.shards)
        # The last two parts, so that what `base` reads is its own wherever it lies.
        if folder.parts[-2:] not in [known.parts[-2:] for known in _folders(base.streams[stream].shards)]
    ]
    if not own or recipe.name != base.name:
        return recipe
    data = re.sub(r"[^\w.+-]+", "-", "+".join(dict.fromkeys(own))).strip("-")
    row = base.name.partition("/")[2]
    return recipe.replace("name", f"{recipe.paper}/{data if row in OURS else f'{row}-{data}'}")


def _folders(shards: str) -> list[Path]:
    """The folders of shards: ``s3:/bucket/wiki1m`` of ``s3://bucket/wiki1m/train-{000..009}.tar``."""
    places = [Path(re.split("[?#]", re.sub("://[^/]*@", "://", url))[0]) for url in shards.split("::")]  # no password
    return [place.parent if re.search(r"\.(tar|parquet)", place.name) else place for place in places]


def _with_none(base: Recipe, arguments: list[str]) -> Iterator[str]:
    """The arguments with ``none``, as the help writes it, as tyro takes it: None, or no item of a list."""
    setting = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        setting = name if argument.startswith("--") else setting
        if "none" not in (argument, value):
            yield argument
            continue
        yield from [name] * bool(equals)
        yield from _none_of(base, setting)


def _none_of(base: Recipe, option: str) -> list[str]:
    *parents, last = option.removeprefix("--").replace("-", "_").split(".")
    place: Any = base
    for part in parents:
        place = place.get(part) if isinstance(place, dict) else getattr(place, part, None)
    field = getattr(type(place), "model_fields", {}).get(last)
    choices = get_args(field.annotation) if field else ()
    if Ellipsis in choices:
        return []
    own = any("none" in get_args(choice) for choice in choices)
    return ["None"] if type(None) in choices and not own else ["none"]


def _from_file(file: Path) -> Recipe:
    """Another run's recipe, called after the file where the user named that.

    Where this run goes is not for the file to say, nor what it replaces there.
    """
    try:
        recipe = Recipe.from_json(file.read_text())
    except (ValueError, OSError) as error:
        raise RecipeError(f"--recipe {file}, which is to be a recipe.json: {error}") from None
    if file.stem not in WRITTEN:
        recipe = recipe.replace("name", f"{recipe.paper}/{file.stem}")
    output = f"runs/{recipe.name.replace('/', '-')}-{recipe.identity()[:6]}"
    return recipe.replace("run.output", output).replace("run.overwrite", False)


def _default(recipes: Recipes) -> str:
    return "demo" if "demo" in recipes else next(iter(recipes))


def _help(recipes: Recipes, description: str, base: Recipe) -> str:
    width = max(map(len, recipes)) + 2
    script = sys.argv[0] if sys.argv[0].startswith("multicse ") else f"python {sys.argv[0]}"
    changed = f"--optim.{next(iter(base.optim))}.lr 1e-5 --run.seed 2"
    files = " ".join(given for kind, given in FILES.items() if kind in base.streams)
    own = f"  {script} {MINE} {files}    your own files: {MINE} --help"
    return "\n".join(
        [
            description,
            "",
            f"Recipes: the first argument; without one: {_default(recipes)}",
            *(f"  {name:<{width}}{(make.__doc__ or '-').strip().splitlines()[0]}" for name, make in recipes.items()),
            "",
            "Examples",
            f"  {script} {next(iter(recipes))} {changed}",
            *([own] if takes_files(recipes) else []),
            f"  {script} --recipe runs/demo/recipe.json    what another run did (the file is in its output folder)",
            f"  {script} RECIPE --help                     the values of that recipe",
            "",
            f"Below: every setting of {base.name!r} by its dotted name, with its value. Lists are written with spaces.",
        ]
    )


def prepare(recipe: Recipe) -> None:
    """Make the offline shards that the recipe's streams and tasks read, if they read any."""
    from multicse.data.offline.demo import kinds_of, write_demo_shards

    evaluation = recipe.evaluation
    tasks = (evaluation.select or "", *evaluation.watch, *evaluation.final)
    if kinds := kinds_of([*(stream.shards for stream in recipe.streams.values()), *tasks], OFFLINE):
        write_demo_shards(Path(OFFLINE), kinds)


@handle_interrupt()
def main(
    recipes: Recipes, description: str | None, before: Callable[[Recipe], Recipe] = lambda recipe: recipe
) -> dict[str, Any]:
    """Entry point of a pipeline script. Errors of the user's making end it with their message and exit code 1.

    `before` makes what the recipe starts from, when that is part of the pipeline, and returns the recipe that does.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    with _told(ValueError):
        given = sys.argv[1:]
        mine_too = given[:1] == [MINE]
        if mine_too:
            from multicse.pipelines import mine

            given = mine.arguments(recipes, given[1:])
        recipe = parse(recipes, description or "", given)
    # The libraries take seconds, which --help and a mistyped option should not.
    from multicse.trainers.engine.launch import fit
    from multicse.trainers.engine.step import NonFiniteLoss

    with results_in(kept(Path(recipe.run.output), recipe.run.storage), first=not mine_too):
        with _told(ValueError, NonFiniteLoss, OSError):  # the last: no room, no right, no file
            prepare(recipe)
            summary = fit(before(recipe))
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
    models = [f"{summary['export']}   (SentenceTransformer('{summary['export']}'{trust}))"]
    if summary["tracking_uri"].startswith("http"):  # the folder may be a pod's, which is removed with it
        models.append(f"runs:/{summary['mlflow_run_id']}/export   (mlflow artifacts download --artifact-uri THAT -d FOLDER)")
    chosen = f", best at step {summary['best_step']}" if summary["best_score"] is not None else ""
    lines += [
        *(["", f"warning: {UNIMPROVED[bool(chosen)]}"] if _unimproved(summary) else []),
        "",
        f"{summary['steps']} steps in {summary['train_seconds']:.0f} s{chosen}",
        *(f"model   {model}" for model in models),
        f"run     {summary['mlflow_run_id']}   (mlflow ui --backend-store-uri {summary['tracking_uri']})",
    ]
    if "hub" in summary:
        lines.append(f"hub     {summary['hub']}")
    if summary["skipped"]:
        lines.append(f"skipped {json.dumps(summary['skipped'])}   (keys and reasons in skipped.json)")
    return "\n".join(lines)


def _unimproved(summary: dict[str, Any]) -> bool:
    """Whether step 0 was the best, or, where no task chose a step, no score rose."""
    if summary["best_score"] is not None:
        return not summary["best_step"]
    rose = [
        summary["after"].get(task, {}).get(metric, value) > value
        for task, metrics in summary["before"].items()
        for metric, value in metrics.items()
        if metric in ("spearman", "accuracy")
    ]
    return bool(rose) and not any(rose)


def is_shown(metric: str) -> bool:
    """Whether a metric is in the tables at the end of a run."""
    return any(fnmatch(metric, pattern) for pattern in SHOWN)
