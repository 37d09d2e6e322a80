"""Search loss weights, temperatures, learning rates: ``python pipelines/sweep.py visualcse --recipe demo --trials 16``."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors, command, did_you_mean
from multicse.evaluation.tables import before_after, layout
from multicse.pipelines import registry
from multicse.pipelines.api import load_recipe, prepare
from multicse.pipelines.cli import is_shown, parse, refuse_unused
from multicse.trainers.engine.mlflow_server import BEST, CHAMPION
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run, sync
from multicse.trainers.jobs import kept, results_in
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.trials import Trial, ranked, short_name, show

if TYPE_CHECKING:
    from multicse.trainers.tuning.search import Search
    from multicse.trainers.tuning.space import SearchSpace
    from multicse.trainers.tuning.sweep import Sweep

TRIALS = 32
INTERRUPTED = 130
"""Exit code of an interrupted sweep."""
ROWS = 10
"""Trials in the last table."""


@dataclass(frozen=True)
class Arguments:
    """Train a recipe with many settings, stop the poor ones early, keep the best. Trial 0 is the recipe as it stands.

    What varies is in tune_spaces/. Any setting of the recipe can follow and holds for all trials, as for the
    pipeline itself (python pipelines/PIPELINE.py demo --help); those that trials do not use, as --run.output_dir, are
    refused. Trials are compared by the recipe's development task; held-out tasks are measured for the best one and for
    trial 0 only.
    """

    pipeline: tyro.conf.Positional[str]
    """What is trained. A Python file of your own serves if it has ``SPACES`` as well."""
    recipe: str = "demo"
    """A recipe that the pipeline has."""
    trials: int | None = None
    """How many trials there are. Default: 32, or the whole grid."""
    space: str | None = None
    """Name of what varies, in tune_spaces/. Default: wide, with a grid paper."""
    searcher: Literal["optuna", "random", "grid"] = "optuna"
    """Optuna's TPE, independent draws, or every combination."""
    scheduler: Literal["asha", "none"] = "asha"
    """ASHA stops two thirds of the trials after 60 % of their steps."""
    seeds: tuple[int, ...] | None = None
    """Seeds of every configuration, whose scores are averaged. Default: the recipe's."""
    concurrent: int | None = None
    """Trials at a time. Default: as many as fit."""
    retries: int = 1
    """Times that a failed trial is tried again, from its last checkpoint."""
    output: Path | None = None
    """Folder of the sweep. Default: runs/sweep-RECIPE-HASH, where the hash stands for all that decides the trials.
    An interrupted sweep goes on with the same command."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad, 3 when no trial came to a score, 130 when it was interrupted."""
    arguments, rest = tyro.cli(Arguments, args=argv, return_unknown_args=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    return _run(*make_sweep(arguments, rest))


def sweep(
    recipe: Recipe | str | Path,
    space: str | SearchSpace | None = None,
    *,
    trials: int | None = None,
    searcher: Literal["optuna", "random", "grid"] = "optuna",
    scheduler: Literal["asha", "none"] = "asha",
    seeds: Sequence[int] | None = None,
    concurrent: int | None = None,
    retries: int = 1,
    output_dir: str | Path | None = None,
) -> dict[str, Any]:
    """Train a recipe with many settings on Ray Tune and export the best model.

    Trial 0 is the recipe unchanged. An interrupted sweep resumes when it is called again; a finished one is not repeated.

    Args:
        recipe: Recipe, or a name or file as for `multicse.load_recipe`.
        space: Name of a search space in tune_spaces/ or in the pipeline's `SPACES`, or Tune's domains by dotted setting:
            ``{"optim.text.lr": tune.loguniform(1e-5, 1e-3)}``. Default: wide, with a grid paper.
        trials: Number of trials. Default: 32, or the whole grid.
        searcher: Optuna's TPE, independent draws, or every combination.
        scheduler: ASHA stops two thirds of the trials after 60 % of their steps.
        seeds: Seeds of every configuration; scores are averaged. Default: the recipe's.
        concurrent: Trials at a time. Default: as many as fit.
        retries: Retries of a failed trial, from its last checkpoint.
        output_dir: Folder of the sweep. Default: ``runs/sweep-RECIPE-HASH``.

    Returns:
        Content of ``summary.json``: ``best`` (trial, changes, score), ``held_out`` scores, ``recipe`` and ``export`` of the
        best trial (paths), ``mlflow_run_id`` and more.

    Raises:
        RecipeError: If the recipe, space or numbers cannot run, or no trial has a score.
        KeyboardInterrupt: After Ctrl-C or SIGTERM; finished trials are kept.

    Examples:
        >>> from ray import tune
        >>> settings = {"run.num_workers": 0, "run.max_steps": 2, "run.cpus_per_worker": 1}
        >>> space = {"optim.text.lr": tune.loguniform(1e-5, 1e-3)}
        >>> found = multicse.sweep(multicse.load_recipe("simcse/smoke", settings), space, trials=2, output_dir="runs/sweep")
        sweep      sweep-simcse-smoke-...: 2 trials of simcse/smoke...
        >>> found["trials"]["all"], sorted(found["best"])
        (2, ['changes', 'pipeline', 'score', 'trial'])
    """
    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    named = recipe is not loaded and not str(recipe).endswith(".json")
    pipeline = registry.split(str(recipe))[0] if named else loaded.paper
    how = {"space": space, "trials": trials, "searcher": searcher, "scheduler": scheduler, "seeds": seeds}
    made, folder = _made(pipeline, loaded, output_dir, **how, concurrent=concurrent, retries=retries)
    if code := _run(made, folder):
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        raise RecipeError(f"no trial of {made.name} has a score; {folder / 'trials.json'} has the error of each")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def _run(search: Sweep, folder: Path) -> int:
    """Check, run, report; the exit code."""
    # Imported here: Ray takes seconds, and --help should not.
    from multicse.trainers.engine.cluster import quiet

    if not search.recipe.run.verbose:
        quiet()
    with results_in(folder):
        return _begin(search, folder)


def _begin(search: Sweep, folder: Path) -> int:
    from multicse.trainers.engine.cluster import opening, start_ray
    from multicse.trainers.engine.output import experiment_of, locked
    from multicse.trainers.engine.stop import former_handlers
    from multicse.trainers.tuning.sweep import check_sweep, records_of

    check_sweep(search)
    goes_on = bool(records_of(search, folder).read(search.identity()))
    ended = folder / "summary.json"
    if goes_on and ended.exists() and json.loads(ended.read_text())["identity"] == search.identity():
        if (folder / "journal.jsonl").exists():  # a driver that died at its end may not have sent everything
            sync(folder / "journal.jsonl")
        print(f"this sweep has ended; what it came to is in {ended}")
        return 0
    with former_handlers() as main:
        with opening(search.recipe, experiment_of(search.recipe)):
            start_ray(search.recipe)
        if main:  # Tune handles Ctrl-C only
            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        with locked(folder, "--output"):
            ended.unlink(missing_ok=True)  # another sweep's
            return _carry_out(search, folder, goes_on)


def _carry_out(made: Sweep, folder: Path, goes_on: bool) -> int:
    from multicse.trainers.engine.checks import check_cluster, check_places
    from multicse.trainers.engine.cluster import capacity
    from multicse.trainers.engine.launch import with_uploaded_shards
    from multicse.trainers.tuning.search import Search, run
    from multicse.trainers.tuning.sweep import at_once, plan_of, records_of

    cpus, gpus, nodes = capacity()
    check_cluster(made.recipe, nodes=nodes)
    check_places(with_uploaded_shards(made.recipe), nodes)
    fitting = at_once(made.recipe, cpus, gpus, made.concurrent)
    parent = _open(made, folder, goes_on)
    print(describe(made, fitting, folder))
    search = Search(made, plan_of(made, folder, parent), parent, records_of(made, folder), fitting)
    status = "FAILED"
    try:
        code = conclude(search, run(search))
        status = {0: "FINISHED", INTERRUPTED: "KILLED"}.get(code, "FAILED")
        return code
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        parent.finish(status)


def make_sweep(arguments: Arguments, rest: list[str]) -> tuple[Sweep, Path]:
    """The sweep that the command line asks for, its offline shards made and its recipe resolved, and its folder.

    Raises RecipeError for a recipe, setting or space that is not there, with the nearest ones.
    """
    if rest and not rest[0].startswith("-"):
        raise RecipeError(f"a sweep takes one pipeline; run another sweep for {rest[0]!r}")
    recipes = registry.load(arguments.pipeline).RECIPES
    recipe, plain = parse(recipes, "", [arguments.recipe, *rest]), recipes[arguments.recipe]()
    refuse_unused(recipe, plain, _unused(arguments, recipe))
    how = {name: value for name, value in vars(arguments).items() if name not in ("pipeline", "recipe", "output")}
    made, folder = _made(arguments.pipeline, recipe, arguments.output, **how)
    if (every := made.recipe.evaluation.eval_steps) != recipe.evaluation.eval_steps:
        often = f"under a scheduler it is {every} or less, so that trials can be stopped early; or set --scheduler none"
        refuse_unused(recipe, plain, {"evaluation.eval_steps": often})
    return made, folder


def _made(pipeline: str, recipe: Recipe, output: str | Path | None, **how: Any) -> tuple[Sweep, Path]:
    """The sweep with its defaults filled in, and its folder."""
    from multicse.trainers.tuning.sweep import Sweep, prepared

    recipe, grid = prepare(recipe), how["searcher"] == "grid"
    space = ("paper" if grid else "wide") if how["space"] is None else how["space"]
    how["space"] = _space(pipeline, space) if isinstance(space, str) else space
    how["trials"] = how["trials"] if how["trials"] is not None or grid else TRIALS
    how["seeds"] = (recipe.run.seed,) if how["seeds"] is None else tuple(how["seeds"])
    seed = next(iter(how["seeds"]), recipe.run.seed)
    made = Sweep(pipeline=pipeline, recipe=prepared(recipe, how["scheduler"], seed), **how)
    return made, kept(Path(output or Path("runs") / made.name), made.recipe.run.storage).resolve()


def _unused(arguments: Arguments, recipe: Recipe) -> dict[str, str]:
    """Return the settings of a recipe that do not reach the trials, with their remedies."""
    from multicse.trainers.tuning.trial import in_process

    again = "an interrupted sweep goes on with the same command; for another one give another --output"
    unused = {
        "run.output_dir": "every trial has a folder of its own; the folder of the sweep is --output",
        "run.save_steps": "a trial has a checkpoint at every evaluation (evaluation.eval_steps)",
        "run.resume": again,
        "run.overwrite": again,
    }
    if arguments.seeds is not None:
        unused["run.seed"] = "--seeds has the seeds"
    if in_process(recipe):
        unused["run.max_failures"] = "--retries is how often a failed trial is tried again"
    return unused


def _space(pipeline: str, name: str) -> SearchSpace:
    """A space by its name, of tune_spaces or else of the pipeline's own ``SPACES``.

    Raises RecipeError for a pipeline without spaces, and for a name that none has, with the nearest one.
    """
    from multicse.tune_spaces import every

    ours = every()
    known: Mapping[str, SearchSpace] | None = ours.get(pipeline) or getattr(registry.load(pipeline), "SPACES", None)
    if known is None:
        raise _unknown(
            f"the pipeline {pipeline!r} has no search space (SPACES, a dict from a name to a space)", pipeline, ours
        )
    if name not in known:
        raise _unknown(f"--space {name}: {pipeline} has none of that name", name, known)
    return known[name]


def _unknown(problem: str, name: str, known: Collection[str]) -> RecipeError:
    return RecipeError(f"{problem}.{did_you_mean(name, known)} There are: {', '.join(known)}")


def _open(made: Sweep, folder: Path, resume: bool) -> RunHandle:
    """The sweep's own MLflow run, the same one when it is resumed."""
    from multicse.trainers.engine.checks import describe_shards_of
    from multicse.trainers.engine.output import experiment_of

    uri, experiment = made.recipe.run.tracking_uri or "", experiment_of(made.recipe)
    tags = {"sweep": made.name, "sweep.identity": made.identity()}
    known = next((run.run_id for run in find_runs(uri, experiment, tags)), None) if resume else None
    settings = {name: getattr(made, name) for name in ("trials", "searcher", "scheduler", "seeds", "metric")}
    params = {f"sweep.{name}": value for name, value in settings.items()} | made.recipe.flat()
    data = describe_shards_of(made.recipe)
    return open_run(uri, experiment, made.name, params, tags, known, folder / "journal.jsonl", data)


def describe(made: Sweep, at_once: int, folder: Path) -> str:
    """What is about to be done, in a few lines."""
    from multicse.trainers.tuning.sweep import count, needs

    cpus, gpus = needs(made.recipe)
    lines = [
        f"sweep      {made.name}: {count(made)} trials of {made.recipe.name}",
        f"space      {', '.join(made.space)}",
        f"searcher   {made.searcher}, best {made.metric}, seeds {', '.join(map(str, made.seeds))}",
        f"scheduler  {made.scheduler}, evaluated every {made.recipe.evaluation.eval_steps} steps",
        f"room       a trial takes {cpus:g} CPUs and {gpus:g} GPUs: {at_once} at a time, others wait",
        f"folder     {folder}",
    ]
    return "\n".join(lines)


def conclude(search: Search, trials: Sequence[Trial]) -> int:
    """Records, figures, the best trial's recipe and model, held-out scores; the exit code."""
    from multicse.trainers.tuning.space import sampled
    from multicse.trainers.tuning.study import study, sweep_figures
    from multicse.trainers.tuning.sweep import own_values

    made, parent, folder = search.sweep, search.parent, Path(search.plan.folder)
    (folder / "trials.json").write_text(json.dumps([asdict(trial) for trial in trials], indent=2) + "\n")
    print(final_table(trials, made.metric))
    sweep_figures(study(trials, sampled(made.space), own_values(made)), made.metric, parent.log_figure)
    ended, order = sum(trial.ended for trial in trials), ranked(trials)
    if ended < search.total_samples:
        print(f"interrupted after {ended} of {search.total_samples} trials; the same command goes on")
        return INTERRUPTED
    if not order:
        print("no trial came to a score; see the errors above")
        return 3
    summary = _keep_best(search, trials[0], order[0], trials)
    part = folder / "summary.json.part"
    part.write_text(json.dumps(summary, indent=2, default=str) + "\n")
    part.replace(folder / "summary.json")
    print(_last_words(summary))
    return 0


def final_table(trials: Sequence[Trial], metric: str) -> str:
    """The best trials with what they change, then the recipe as it stands if it is none of them, then what failed."""
    order = ranked(trials)
    shown = order[:ROWS] + [trial for trial in order[ROWS:] if not trial.changes]
    paths = list(dict.fromkeys(path for trial in shown for path in trial.changes))
    rows = [["trial", "status", "step", "seeds", metric, *map(short_name, paths)]]
    for trial in shown:
        changes = [show(trial.changes[path]) if path in trial.changes else "-" for path in paths]
        step = f"{trial.step}/{trial.steps}"
        rows.append([str(trial.number), trial.status, step, str(trial.seeds), f"{trial.score:.2f}", *changes])
    lines = [layout(rows)] if shown else [f"no trial has a score ({metric})"]
    lines += [f"trial {trial.number} failed: {trial.error}" for trial in trials if trial.status == "failed"]
    return "\n".join(lines)


def _keep_best(search: Search, plain: Trial, best: Trial, trials: Sequence[Trial]) -> dict[str, Any]:
    """The best trial as a recipe file, a registered model and held-out scores, beside those of the recipe as it stands."""
    from multicse.trainers.tuning.best import deliver_best, held_out, mean_scores

    made, plan, parent, folder = search.sweep, search.plan, search.parent, Path(search.plan.folder)
    recipe = plan.recipe(best.changes)
    (folder / "best.json").write_text(recipe.replace("run.output_dir", f"runs/{recipe.name}-best").to_json() + "\n")
    model, scores = recipe.run.register_as or recipe.name.replace("/", "-"), held_out(plan, best)
    delivered = deliver_best(plan, best, scores[0], parent, folder / BEST, model)
    after = {"best": mean_scores(scores)}
    if plain.score is not None:
        after["as it stands"] = mean_scores(held_out(plan, plain))
    metrics = {
        f"trained/{task}/{metric}": value.mean for task, values in after["best"].items() for metric, value in values.items()
    }
    sign, name = (-1, made.metric[1:]) if made.metric.startswith("-") else (1, made.metric)
    with contextlib.suppress(Exception):  # they are in summary.json, whatever the server does
        parent.log_metrics(metrics | {f"best/{name}": sign * (best.best or 0.0)})
    counts = {status: sum(trial.status == status for trial in trials) for status in ("finished", "stopped", "failed")}
    return {
        "sweep": made.name,
        "identity": made.identity(),
        "metric": made.metric,
        "trials": {"all": len(trials), **counts},
        "best": {"trial": best.number, "pipeline": made.pipeline, "changes": best.changes, "score": best.best},
        "as_it_stands": {"trial": plain.number, "score": plain.best},
        "before": delivered["before"],
        "baseline": delivered["baseline"],
        "held_out": after,
        "recipe": str(folder / "best.json"),
        "export": delivered["export"],
        "model": f"models:/{model}@{CHAMPION}",
        "mlflow_run_id": parent.run_id,
        "tracking_uri": parent.uri,
    }


def _last_words(summary: Mapping[str, Any]) -> str:
    """Held-out scores and where everything is."""
    columns = ["before", *(["baseline"] if summary["baseline"] else [])]
    held = {side: summary["held_out"].get(side, {}) for side in ("as it stands", "best")}
    rows = before_after({name: summary[name] for name in columns} | held, is_shown)
    best, counts = summary["best"], summary["trials"]
    return "\n".join(
        [
            "",
            layout(rows) if len(rows) > 1 else "no held-out task: give some as --evaluation.final",
            "",
            f"trials  {counts['finished']} finished, {counts['stopped']} stopped early, {counts['failed']} failed",
            f"best    trial {best['trial']}, {summary['metric']} {best['score']:.2f}; the recipe as it stands "
            + ("failed" if summary["as_it_stands"]["score"] is None else f"{summary['as_it_stands']['score']:.2f}"),
            f"recipe  {summary['recipe']}   ({command(best['pipeline'])} --recipe {shlex.quote(summary['recipe'])})",
            f"model   {summary['export']}   ({summary['model']})",
            f"run     {summary['mlflow_run_id']}   (mlflow ui --backend-store-uri {shlex.quote(summary['tracking_uri'])})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
