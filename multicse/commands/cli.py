"""Command line of all pipelines: choose a recipe, change its settings, train it and print the results."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multicse.commands import api, options, registry
from multicse.commands.registry import FILES, Recipes, takes_files
from multicse.data.errors import REPORTED, command, handle_interrupt, report_error
from multicse.trainers.jobs import kept, results_in, shown
from multicse.trainers.recipe import Recipe, RecipeError

UNIMPROVED = (
    "training did not improve the model: no later step had a better development score than step 0, so the untrained "
    f"model is exported. Try other learning rates and temperatures ({command('sweep')}), more text, or a task in the "
    "language of the text (evaluation.select)"
)
"""Warning at the end of a run with step 0 as its best step."""

MINE = "mine"
"""Word in place of a recipe's name: the recipe is made from the user's files (`mine`)."""


def parse(recipes: Recipes, description: str, arguments: list[str]) -> Recipe:
    """Return the recipe of a command line. It reads the arguments once.

    Args:
        recipes: Recipes of the pipeline.
        description: First lines of the help.
        arguments: Name of a recipe (default: ``demo``, or the first one) or ``--recipe FILE.json``, then options that change
            settings.

    Raises:
        RecipeError: If the recipe or a setting does not exist or a value is not allowed. The message names the nearest name.
    """
    words, given = options.split(arguments)
    files = given.pop("--recipe", None)
    names = words if files is None else [*words, " ".join(files)]
    if len(names) > 1:
        raise RecipeError(f"{words[-1]}: unexpected word; a command line is [RECIPE] [--SETTING VALUE ...]")
    if files is not None and names[0] not in recipes:
        base = registry.from_file(Path(names[0]), "--recipe: ")
    else:
        base = registry.named(recipes, *names)
    if asked := given.keys() & {"--help", "-h", "--help-all"}:
        everything = "--help-all" in asked
        print(_help(recipes, description, base, everything), options.listed(base, everything), sep="\n")
        sys.exit(0)
    return options.changed(base, given)


def refuse_unused(recipe: Recipe, plain: Recipe, remedies: Mapping[str, str]) -> None:
    """Refuse settings that a command does not use.

    Args:
        recipe: Recipe of the command line.
        plain: The same recipe without changes.
        remedies: Dotted names of unused settings, each with the option to use instead.

    Raises:
        RecipeError: If one of these settings was changed.
    """
    given, usual = recipe.flat(), plain.flat()
    for path, remedy in remedies.items():
        if given[path] != usual[path]:
            raise RecipeError(f"--{path} {given[path]} is not used here: {remedy}")


def _help(recipes: Recipes, description: str, base: Recipe, everything: bool) -> str:
    width = max(map(len, recipes)) + 2
    script = sys.argv[0] if sys.argv[0].startswith("multicse ") else f"python {shlex.quote(sys.argv[0])}"
    files = " ".join(given for kind, given in FILES.items() if kind in base.streams)
    which = "all settings" if everything else "the most used settings (--help-all: all of them)"
    return "\n".join(
        [
            f"usage: {script} [RECIPE] [--SETTING VALUE ...]\n",
            f"{description}\n",
            f"Recipes (first argument; default: {registry.default(recipes)})",
            *(f"  {name:<{width}}{(make.__doc__ or '-').strip().splitlines()[0]}" for name, make in recipes.items()),
            "\nExamples",
            f"  {script} {next(iter(recipes))} --optim.{next(iter(base.optim))}.lr 1e-5 --run.seed 2",
            *([f"  {script} {MINE} {files}    train on your own files; see {MINE} --help"] if takes_files(recipes) else []),
            f"  {script} --recipe runs/demo/recipe.json    repeat another run; the file is in its output folder\n",
            f"The options below are {which} of {base.name!r} with their values. Lists are separated by spaces.",
        ]
    )


@handle_interrupt()
def main(recipes: Recipes, description: str | None) -> dict[str, Any]:
    """Run the script of a pipeline and return the summary of its run.

    Errors end the program with their message and an exit code of `multicse.data.errors.report_error`.

    Args:
        recipes: Recipes of the pipeline.
        description: First lines of the help.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    given, about = sys.argv[1:], description or ""
    try:
        on_files = given[:1] == [MINE]
        if on_files:
            from multicse.commands import mine  # with its readers of images and audio
        recipe = mine.choose(recipes, given[1:]) if on_files else parse(recipes, about, given)
        with results_in(kept(Path(recipe.run.output_dir), recipe.run.storage), first=not on_files):
            summary = api.train(recipe).summary
            print(report(summary, recipe.flat().get("encoder.path")))
    except BrokenPipeError:
        raise
    except REPORTED as error:
        sys.exit(report_error(error))
    return summary


def report(summary: dict[str, Any], start: str | None = None) -> str:
    """Return the lines at the end of a run: scores before and after training, model, MLflow run.

    Args:
        summary: Summary of the run.
        start: Encoder that the run started from, for the command that compares it with the export if there are no scores.
    """
    from multicse.evaluation.tables import layout, run_legend, run_rows
    from multicse.models.hub_folders import carried_files

    trust = ", trust_remote_code=True" if carried_files(Path(summary["export"])) else ""
    head, *rows = run_rows(summary)
    lines = ["", layout([head, *rows]), *run_legend(head)] if rows else []
    export = shown(summary["export"])
    models = [f"{export}   (SentenceTransformer({export!r}{trust}))"]
    if summary["tracking_uri"].startswith("http"):  # the folder may be removed with its pod
        models.append(f"runs:/{summary['mlflow_run_id']}/export   (mlflow artifacts download --artifact-uri URI -d FOLDER)")
    selected = summary["best_score"] is not None
    chosen = f", best at step {summary['best_step']}" if selected else ""
    lines += [
        *(["", f"warning: {UNIMPROVED}"] if selected and not summary["best_step"] else []),
        "",
        f"{summary['steps']} steps in {summary['train_seconds']:.0f} s{chosen}",
        *(f"model   {model}" for model in models),
        f"run     {summary['mlflow_run_id']}   ({mlflow_ui(summary['tracking_uri'])})"
        if summary["tracking_uri"]
        else "run     in its journal only (the same command with --run.report_to mlflow sends it)",
    ]
    if not rows:
        compared = f"start={shlex.quote(shown(start or 'MODEL'))} ours={shlex.quote(export)}"
        lines += [
            "score   not measured: the run has no test data (evaluation.final). With rated pairs of sentences in a file:",
            f"        {command('evaluate')} --tasks pairs:FILE.tsv --compare {compared}",
        ]
    if "hub" in summary:
        lines.append(f"hub     {summary['hub']}")
    if summary["skipped"]:
        lines.append(f"skipped {json.dumps(summary['skipped'])}   (keys and reasons in skipped.json)")
    return "\n".join(lines)


def mlflow_ui(uri: str) -> str:
    """Return the command that shows runs; without these settings MLflow starts a dozen processes, too many for a laptop."""
    return f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --workers 1 --backend-store-uri {shlex.quote(uri)}"
