"""Train a recipe with several seeds: ``python pipelines/repeat.py simcse demo --seeds 0 1 2 [--optim.text.lr 1e-5 ...]``."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.evaluation import statistics, tables
from multicse.pipelines import RULES, registry
from multicse.pipelines.api import prepare
from multicse.pipelines.cli import parse, refuse_unused
from multicse.trainers.engine.launch import fit, resolve
from multicse.trainers.jobs import announce, kept
from multicse.trainers.recipe import Recipe, RecipeError


@dataclass(frozen=True)
class Arguments:
    """Train a recipe with several seeds and report the mean and sample standard deviation of all scores.

    Options that change settings of the recipe can follow, as for the pipeline itself (python pipelines/simcse.py --help).
    Finished seeds are not run again, interrupted ones resume, and seeds can be added. To compare two recipes with
    p values over seeds, pass their exports to `evaluate.py --compare`.
    """

    pipeline: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PIPELINE")]
    """Pipeline to train: simcse, visualcse, ..., a pipeline of an installed package, or a Python file."""
    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """Recipe of the pipeline: demo, bert-base, ... (its --help lists them)."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the runs; each seed is one run."""
    output: Path | None = None
    """Folder of the runs. Default: runs/repeat-NAME-HASH, with a hash of all settings except the seed."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    arguments, rest = tyro.cli(Arguments, args=argv, registry=RULES, return_unknown_args=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    report, file = repeat(arguments, rest)
    print(f"{table(report)}\nwritten to {file}")
    return 0


def repeat(arguments: Arguments, rest: list[str]) -> tuple[dict[str, Any], Path]:
    """Train the missing seeds, and return the report and its file, ``repeat.json``.

    Args:
        arguments: Parsed arguments.
        rest: Options that change settings of the recipe.

    Raises:
        RecipeError: If the pipeline, the recipe or a setting does not exist, or seeds are repeated.
    """
    seeds = arguments.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise RecipeError(f"--seeds needs at least one seed, and each only once, got {list(seeds)}")
    module = registry.load(arguments.pipeline)
    recipe = parse(module.RECIPES, "", [arguments.recipe, *rest])
    remedies = {"run.seed": "give --seeds", "run.output_dir": "give the folder of all runs as --output"}
    refuse_unused(recipe, module.RECIPES[arguments.recipe](), remedies)
    identity = resolve(recipe.replace("run.seed", 0)).identity()
    folder = kept(arguments.output or Path("runs") / f"repeat-{recipe.name.replace('/', '-')}-{identity[:6]}")
    announce(folder)
    summaries = [run_seed(recipe, seed, folder / f"seed-{seed}") for seed in seeds]
    when = ("before", *(["baseline"] if all(summary.get("baseline") for summary in summaries) else []), "after")
    values = {name: _values([summary[name] for summary in summaries]) for name in when}
    report = {"recipe": recipe.name, "identity": identity, "seeds": list(seeds), "values": values, "summary": _each(values)}
    file = folder / "repeat.json"
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report, file


def run_seed(recipe: Recipe, seed: int, output: Path) -> dict[str, Any]:
    """Train one seed, unless its run is finished, and return its summary.

    Args:
        recipe: Recipe with any seed.
        seed: Seed of the run.
        output: Folder of the run.
    """
    print(f"seed {seed}: {output}")
    return fit(prepare(recipe.changed({"run.seed": seed, "run.output_dir": str(output)})))


def _values(runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return one value per seed by task and metric; the average over tasks is included as a task."""
    runs = [run | tables.averages(run) for run in runs]
    return {
        task: {metric: [run[task][metric] for run in runs] for metric, value in metrics.items() if isinstance(value, float)}
        for task, metrics in runs[0].items()
    }


def _each(values: dict[str, Any]) -> dict[str, Any]:
    """Replace every list of values in a tree by its mean, sd and n."""
    if not isinstance(values, list):
        return {name: _each(value) for name, value in values.items()}
    return statistics.summary(values)._asdict()


def table(report: dict[str, Any]) -> str:
    """Return a table of all tasks and metrics before and after training."""
    sides = {
        name: {task: {of: statistics.summary(each) for of, each in found.items()} for task, found in values.items()}
        for name, values in report["values"].items()
    }
    lines = tables.layout(tables.before_after(sides, lambda metric: True))
    return f"{report['recipe']}, {len(report['seeds'])} seeds, mean ± sample sd\n{lines}"


if __name__ == "__main__":
    sys.exit(main())
