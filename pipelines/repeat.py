"""Repeat a recipe over seeds: ``python pipelines/repeat.py simcse demo --seeds 0 1 2 [--optim.text.lr 1e-5 ...]``."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.evaluation import statistics, tables
from multicse.pipelines import registry
from multicse.pipelines.api import prepare
from multicse.pipelines.cli import parse, refuse_unused
from multicse.trainers.engine.launch import fit, resolve
from multicse.trainers.jobs import announce, kept
from multicse.trainers.recipe import Recipe, RecipeError


@dataclass(frozen=True)
class Arguments:
    """Train one recipe with several seeds; mean ± sample sd of every number before and after.

    Two repeats are compared, with p values over the seeds, by `evaluate.py --compare` of their exports.

    Any setting of the recipe can follow, as for the pipeline itself (python pipelines/simcse.py demo --help). A seed that
    is finished is not run again, and what was stopped goes on; seeds can be added.
    """

    pipeline: tyro.conf.Positional[str]
    """What is trained: a script of this folder, a pipeline of an installed package, or a Python file."""
    recipe: tyro.conf.Positional[str]
    """Recipe of that pipeline: demo, bert-base, ... (its --help lists them)."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds, one run each."""
    output: Path | None = None
    """Folder of the runs. Default: runs/repeat-NAME-HASH, where the hash stands for all settings but the seed."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments, rest = tyro.cli(Arguments, args=argv, return_unknown_args=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    report, file = repeat(arguments, rest)
    print(f"{table(report)}\nwritten to {file}")
    return 0


def repeat(arguments: Arguments, rest: list[str]) -> tuple[dict[str, Any], Path]:
    """Run what was not run yet; the report that ``repeat.json`` holds, and where that is."""
    seeds = arguments.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise RecipeError(f"--seeds takes at least one seed, each once, got {list(seeds)}")
    module = registry.load(arguments.pipeline)
    recipe = parse(module.RECIPES, "", [arguments.recipe, *rest])
    remedies = {"run.seed": "give --seeds", "run.output_dir": "the folder of all runs is --output"}
    refuse_unused(recipe, module.RECIPES[arguments.recipe](), remedies)
    identity = resolve(recipe.replace("run.seed", 0)).identity()
    folder = kept(arguments.output or Path("runs") / f"repeat-{recipe.name.replace('/', '-')}-{identity[:6]}")
    announce(folder)
    recipe = prepare(recipe)
    summaries = [run_seed(recipe, seed, folder / f"seed-{seed}") for seed in seeds]
    when = ("before", *(["baseline"] if all(summary.get("baseline") for summary in summaries) else []), "after")
    values = {name: _values([summary[name] for summary in summaries]) for name in when}
    report = {"recipe": recipe.name, "identity": identity, "seeds": list(seeds), "values": values, "summary": _each(values)}
    file = folder / "repeat.json"
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report, file


def run_seed(recipe: Recipe, seed: int, output: Path) -> dict[str, Any]:
    """The summary of one seed, from its folder if it is there; what was interrupted goes on."""
    print(f"seed {seed}: {output}")
    return fit(recipe.replace("run.seed", seed).replace("run.output_dir", str(output)))


def _values(runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Task -> metric -> one value a seed; the average over tasks is a task as well."""
    runs = [run | tables.averages(run) for run in runs]
    return {
        task: {metric: [run[task][metric] for run in runs] for metric, value in metrics.items() if isinstance(value, float)}
        for task, metrics in runs[0].items()
    }


def _each(values: dict[str, Any]) -> dict[str, Any]:
    """The same tree with a mean, sd and n for every list of values."""
    if not isinstance(values, list):
        return {name: _each(value) for name, value in values.items()}
    return statistics.summary(values)._asdict()


def table(report: dict[str, Any]) -> str:
    """Before and after of every task and metric."""
    sides = {
        name: {task: {of: statistics.summary(each) for of, each in found.items()} for task, found in values.items()}
        for name, values in report["values"].items()
    }
    lines = tables.layout(tables.before_after(sides, lambda metric: True))
    return f"{report['recipe']}, {len(report['seeds'])} seeds, mean ± sample sd\n{lines}"


if __name__ == "__main__":
    sys.exit(main())
