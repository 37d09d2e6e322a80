"""Search hyperparameters with Ray Tune: ``python pipelines/sweep.py visualcse --recipe demo --trials 16``."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from multicse.commands import announce_imports, read_options, registry
from multicse.commands.api import load_recipe, write_inputs
from multicse.commands.cli import mlflow_ui, parse, refuse_unused
from multicse.data.errors import cli_errors, command, did_you_mean
from multicse.evaluation.report import averages
from multicse.evaluation.tables import layout, side_by_side
from multicse.trainers.engine import record
from multicse.trainers.engine.mlflow_server import BEST, CHAMPION
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run, sync
from multicse.trainers.jobs import kept, results_in, shown
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
"""Number of trials in the final table."""


@dataclass(frozen=True)
class Arguments:
    """Train a recipe with different settings, stop poor trials early, and export the best model.

    Trial 0 is the unchanged recipe. Trials are compared by the development task of the recipe (evaluation.select). Held-out
    tasks (evaluation.final) are evaluated only for the best trial and for trial 0. To resume an interrupted sweep, run the
    same command again.

    Options that change settings of the recipe can follow and apply to all trials, as for the pipeline itself (python
    pipelines/PIPELINE.py demo --help). Settings that trials do not use, such as --run.output_dir, are refused.

    Example: python pipelines/sweep.py visualcse --trials 16 --run.max_steps 100
    """

    pipeline: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PIPELINE")]
    """Pipeline to train: simcse, visualcse, ..., or a Python file with ``RECIPES`` and ``SPACES``."""
    recipe: str = "demo"
    """Recipe of the pipeline; its --help lists them."""
    trials: int | None = None
    """Number of trials. Default: 32, or the whole grid."""
    space: str | None = None
    """Name of the search space, from tune_spaces/ or ``SPACES``. Default: wide, or paper with --searcher grid."""
    searcher: Literal["optuna", "random", "grid"] = "optuna"
    """Search algorithm. optuna: Optuna's TPE. random: independent samples. grid: all combinations."""
    scheduler: Literal["asha", "none"] = "asha"
    """Early stopping of trials. asha: stops two thirds of the trials after 60 % of their steps. none: no early stopping."""
    seeds: tuple[int, ...] | None = None
    """Seeds of every configuration; their scores are averaged. Default: the seed of the recipe. With --trials 1 the
    unchanged recipe is trained with each seed; the table has the mean and sample standard deviation of its scores."""
    concurrent: int | None = None
    """Maximum number of trials at a time. Default: as many as fit on the machine or cluster."""
    retries: int = 1
    """Number of times that a failed trial is retried, from its last checkpoint."""
    output: Path | None = None
    """Folder of the sweep. Default: runs/sweep-RECIPE-HASH, with a hash of all settings that determine the trials."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if no trial has a score."""
    arguments, rest = read_options(Arguments, argv, return_unknown_args=True)
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
        space: Name of a search space in tune_spaces/ or in the pipeline's `SPACES`, or Ray Tune domains by dotted setting:
            ``{"optim.text.lr": tune.loguniform(1e-5, 1e-3)}``. Default: wide, or paper with the searcher grid.
        trials: Number of trials. Default: 32, or the whole grid.
        searcher: Search algorithm: Optuna's TPE, independent samples, or all combinations.
        scheduler: Early stopping of trials: ``asha`` stops two thirds of the trials after 60 % of their steps.
        seeds: Seeds of every configuration; their scores are averaged. Default: the seed of the recipe.
        concurrent: Maximum number of trials at a time. Default: as many as fit.
        retries: Number of times that a failed trial is retried, from its last checkpoint.
        output_dir: Folder of the sweep. Default: ``runs/sweep-RECIPE-HASH``.

    Returns:
        Content of ``summary.json``: ``best`` (trial, changes, score), ``held_out`` scores, ``recipe`` and ``export`` of the
        best trial (paths), ``mlflow_run_id`` and more.

    Raises:
        RecipeError: If the recipe, the space or another argument is invalid, or no trial has a score.
        KeyboardInterrupt: After Ctrl-C or SIGTERM; finished trials are kept.

    Examples:
        >>> from ray import tune
        >>> settings = {"run.num_workers": 0, "run.cpus_per_worker": 1, "optim.text.lr": 3e-4}
        >>> space = {"optim.text.lr": tune.loguniform(1e-5, 1e-3)}
        >>> recipe = multicse.load_recipe("visualcse/smoke", settings)
        >>> found = multicse.sweep(recipe, space, trials=2, output_dir="runs/sweep")
        sweep      sweep-visualcse-smoke-...: 2 trials of visualcse/smoke...
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
        raise RecipeError(f"no trial of {made.name} has a score; see the errors in {folder / 'trials.json'}")
    summary: dict[str, Any] = record.read(folder)["summary"]
    return summary


def _run(search: Sweep, folder: Path) -> int:
    """Run a sweep and return the exit code."""
    # Imported here, so that --help does not wait for Ray.
    announce_imports()
    from multicse.trainers.engine.cluster import quiet

    if not search.recipe.run.verbose:
        quiet()
    with results_in(folder):
        return _start(search, folder)


def _start(search: Sweep, folder: Path) -> int:
    from multicse.trainers.engine.checks import check_vectors
    from multicse.trainers.engine.cluster import opening
    from multicse.trainers.engine.record import locked
    from multicse.trainers.engine.run import experiment_of
    from multicse.trainers.engine.stop import former_handlers
    from multicse.trainers.tuning.folder import refuse_other
    from multicse.trainers.tuning.sweep import check_sweep, records_of

    check_sweep(search)
    refuse_other(search, folder)
    if _finished(search, folder):
        return 0
    with former_handlers() as main:
        with opening(search.recipe, experiment_of(search.recipe)):
            check_vectors(search.recipe)
        if main:  # Tune handles SIGINT only
            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        with locked(folder, "--output"):
            refuse_other(search, folder)  # another process may have used it meanwhile
            if _finished(search, folder):
                return 0
            return _train(search, folder, bool(records_of(search, folder).read(search.identity())))


def _finished(made: Sweep, folder: Path) -> bool:
    """Return whether the sweep in its folder is finished, which is printed."""
    if (summary := record.read(folder).get("summary")) is None:  # of this sweep, as `refuse_other` has found
        return False
    record.write_json(folder / record.SUMMARY, summary)  # it may have been lost
    if (journal := folder / record.JOURNAL).exists():  # if the driver died at the end, some records may be missing
        sync(journal)
    print(f"this sweep is finished; its results are in {shown(folder / record.SUMMARY)}")
    return True


def _train(made: Sweep, folder: Path, resumed: bool) -> int:
    from multicse.trainers.engine.checks import check_cluster, check_places
    from multicse.trainers.engine.cluster import capacity
    from multicse.trainers.engine.workers import with_uploaded_shards
    from multicse.trainers.tuning.search import Search, run
    from multicse.trainers.tuning.sweep import at_once, plan_of, records_of

    cpus, gpus, nodes = capacity()
    check_cluster(made.recipe, nodes=nodes)
    check_places(with_uploaded_shards(made.recipe), nodes)
    fitting = at_once(made.recipe, cpus, gpus, made.concurrent)
    parent = _open(made, folder, resumed)
    print(_describe(made, fitting, folder))
    search = Search(made, plan_of(made, folder, parent), parent, records_of(made, folder), fitting)
    status = "FAILED"
    try:
        code = _conclude(search, run(search))
        status = {0: "FINISHED", INTERRUPTED: "KILLED"}.get(code, "FAILED")
        return code
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        parent.finish(status)


def make_sweep(arguments: Arguments, rest: list[str]) -> tuple[Sweep, Path]:
    """Return the sweep of a command line and its folder, after writing the offline shards.

    Args:
        arguments: Parsed arguments.
        rest: Options that change settings of the recipe.

    Raises:
        RecipeError: If the recipe, a setting or the space does not exist. The message names the nearest name.
    """
    if rest and not rest[0].startswith("-"):
        raise RecipeError(f"unexpected argument {rest[0]!r}: a sweep trains one pipeline; start another sweep for it")
    recipes = registry.load(arguments.pipeline).RECIPES
    recipe, plain = parse(recipes, "", [arguments.recipe, *rest]), recipes[arguments.recipe]()
    refuse_unused(recipe, plain, _unused(arguments, recipe))
    how = {name: value for name, value in vars(arguments).items() if name not in ("pipeline", "recipe", "output")}
    made, folder = _made(arguments.pipeline, recipe, arguments.output, **how)
    if (every := made.recipe.evaluation.eval_steps) != recipe.evaluation.eval_steps:
        often = f"with a scheduler it is at most {every}, for early stopping; reduce it or set --scheduler none"
        refuse_unused(recipe, plain, {"evaluation.eval_steps": often})
    return made, folder


def _made(pipeline: str, recipe: Recipe, output: str | Path | None, **how: Any) -> tuple[Sweep, Path]:
    """Return the sweep with its defaults filled in, and its folder."""
    from multicse.trainers.tuning.sweep import Sweep, prepared

    grid, alone = how["searcher"] == "grid", how["trials"] == 1
    if alone:  # the unchanged recipe, which is never stopped: an evaluation more often has no purpose
        how["scheduler"] = "none"
    default: SearchSpace | str = {} if alone else "paper" if grid else "wide"
    space = default if how["space"] is None else how["space"]
    how["space"] = _space(pipeline, space) if isinstance(space, str) else space
    how["trials"] = how["trials"] if how["trials"] is not None or grid else TRIALS
    how["seeds"] = (recipe.run.seed,) if how["seeds"] is None else tuple(how["seeds"])
    seed = next(iter(how["seeds"]), recipe.run.seed)
    recipe = write_inputs(recipe.replace("run.seed", seed))
    made = Sweep(pipeline=pipeline, recipe=prepared(recipe, how["scheduler"], seed), **how)
    return made, kept(Path(output or Path("runs") / made.name), made.recipe.run.storage).resolve()


def _unused(arguments: Arguments, recipe: Recipe) -> dict[str, str]:
    """Return the settings that trials do not use, with remedies."""
    from multicse.trainers.tuning.space import SEEDS, UNUSED
    from multicse.trainers.tuning.trial import in_process

    unused = UNUSED | ({} if arguments.seeds is None else {"run.seed": SEEDS})
    if in_process(recipe):
        unused["run.max_failures"] = "set the number of retries of a failed trial with --retries"
    return unused


def _space(pipeline: str, name: str) -> SearchSpace:
    """Return a search space of tune_spaces or of the pipeline's ``SPACES``; raise RecipeError if it does not exist."""
    from multicse.tune_spaces import every

    ours = every()
    known: Mapping[str, SearchSpace] | None = ours.get(pipeline) or getattr(registry.load(pipeline), "SPACES", None)
    if known is None:
        raise _unknown(
            f"the pipeline {pipeline!r} does not define SPACES, a dict from names to search spaces", pipeline, ours
        )
    if name not in known:
        raise _unknown(f"--space {name} not found for {pipeline}", name, known)
    return known[name]


def _unknown(problem: str, name: str, known: Collection[str]) -> RecipeError:
    return RecipeError(f"{problem}.{did_you_mean(name, known)} Choices: {', '.join(known)}")


def _open(made: Sweep, folder: Path, resume: bool) -> RunHandle:
    """Open the MLflow run of the sweep; a resumed sweep continues the run with its ID, unless that was deleted."""
    from multicse.trainers.engine.checks import describe_shards_of
    from multicse.trainers.engine.run import experiment_of
    from multicse.trainers.tuning.folder import claim

    uri, experiment = made.recipe.run.tracking_uri or "", experiment_of(made.recipe)
    tags = {"sweep": made.name, "sweep.identity": made.identity(), "sweep.id": claim(made, folder)}
    known = next((run.run_id for run in find_runs(uri, experiment, tags)), None) if resume else None
    settings = {name: getattr(made, name) for name in ("trials", "searcher", "scheduler", "seeds", "metric")}
    params = {f"sweep.{name}": value for name, value in settings.items()} | made.recipe.flat()
    data = describe_shards_of(made.recipe)
    return open_run(uri, experiment, made.name, params, tags, known, folder / "journal.jsonl", data)


def _describe(made: Sweep, at_once: int, folder: Path) -> str:
    """Return the lines that are printed before the trials start."""
    from multicse.trainers.tuning.sweep import count, needs

    cpus, gpus = needs(made.recipe)
    seeds = f"seed{'s' * (len(made.seeds) > 1)} {', '.join(map(str, made.seeds))}"
    lines = [
        f"sweep      {made.name}: {count(made)} trials of {made.recipe.name}",
        f"space      {', '.join(made.space) or 'none: the unchanged recipe'}",
        f"searcher   {made.searcher}, best {made.metric}, {seeds}",
        f"scheduler  {made.scheduler}, evaluated every {made.recipe.evaluation.eval_steps} steps",
        f"resources  {cpus:g} CPUs and {gpus:g} GPUs per trial, {at_once} trials at a time",
        f"folder     {shown(folder)}",
    ]
    return "\n".join(lines)


def _conclude(search: Search, trials: Sequence[Trial]) -> int:
    """Write the results of a sweep (trials, figures, best recipe and model, held-out scores) and return the exit code."""
    from multicse.trainers.tuning.study import study, sweep_figures
    from multicse.trainers.tuning.sweep import own_values

    made, parent, folder = search.sweep, search.parent, Path(search.plan.folder)
    record.take(folder, ["trials.json", "best.json", "summary.json"])
    (folder / "trials.json").write_text(json.dumps([asdict(trial) for trial in trials], indent=2) + "\n")
    print("", final_table(trials, made.metric), sep="\n")
    if made.space:
        sweep_figures(study(trials, made.domains, own_values(made)), made.metric, parent.log_figure)
    ended, order = sum(trial.ended for trial in trials), ranked(trials)
    if ended < search.total_samples:
        print(f"interrupted after {ended} of {search.total_samples} trials; the same command resumes the sweep")
        return INTERRUPTED
    if not order:
        print("no trial has a score; see the errors above")
        return 1
    summary = _keep_best(search, trials[0], order[0], trials)
    content = json.loads(json.dumps(summary, default=str))
    record.write_json(folder / record.SUMMARY, content)
    record.update(folder, {"summary": content, "ended": time.time()})
    print(_last_words(summary))
    return 0


def final_table(trials: Sequence[Trial], metric: str) -> str:
    """Return a table of the best trials and trial 0 with their changes, followed by the failed trials.

    The number of seeds is shown if it is not 1 for all.

    Args:
        trials: Trials of a sweep.
        metric: Name of their score.
    """
    order = ranked(trials)
    shown = order[:ROWS] + [trial for trial in order[ROWS:] if not trial.changes]
    paths = list(dict.fromkeys(path for trial in shown for path in trial.changes))
    several = any(trial.seeds > 1 for trial in shown)
    rows = [["trial", "status", "step", *(["seeds"] if several else []), metric, *map(short_name, paths)]]
    for trial in shown:
        changes = [show(trial.changes[path]) if path in trial.changes else "-" for path in paths]
        step, seeds = f"{trial.step}/{trial.steps}", [str(trial.seeds)] if several else []
        rows.append([str(trial.number), trial.status, step, *seeds, f"{trial.score:.2f}", *changes])
    lines = [layout(rows)] if shown else [f"no trial has a score ({metric})"]
    lines += [f"trial {trial.number} failed: {trial.error}" for trial in trials if trial.status == "failed"]
    return "\n".join(lines)


def _keep_best(search: Search, plain: Trial, best: Trial, trials: Sequence[Trial]) -> dict[str, Any]:
    """Write the best trial's recipe, register its model, and return the summary with held-out scores of it and trial 0."""
    from multicse.trainers.tuning.best import deliver_best, held_out, mean_scores

    made, plan, parent, folder = search.sweep, search.plan, search.parent, Path(search.plan.folder)
    recipe = plan.recipe(best.changes)
    (folder / "best.json").write_text(recipe.replace("run.output_dir", f"runs/{recipe.name}-best").to_json() + "\n")
    model, scores = recipe.run.register_as or recipe.name.replace("/", "-"), held_out(plan, best)
    delivered = deliver_best(plan, best, scores[0], folder / BEST, model)
    after = {"best": mean_scores(scores)}
    if plain.score is not None:
        after["unchanged"] = after["best"] if best is plain else mean_scores(held_out(plan, plain))
    metrics = {
        f"trained/{task}/{metric}": value.mean for task, values in after["best"].items() for metric, value in values.items()
    }
    sign, name = (-1, made.metric[1:]) if made.metric.startswith("-") else (1, made.metric)
    with contextlib.suppress(Exception):  # summary.json has them if the server does not
        parent.log_metrics(metrics | {f"best/{name}": sign * (best.best or 0.0)})
    counts = {status: sum(trial.status == status for trial in trials) for status in ("finished", "stopped", "failed")}
    return {
        "sweep": made.name,
        "identity": made.identity(),
        "metric": made.metric,
        "trials": {"all": len(trials), **counts},
        "best": {"trial": best.number, "pipeline": made.pipeline, "changes": best.changes, "score": best.best},
        "unchanged": {"trial": plain.number, "score": plain.best},
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
    """Return the last lines of a sweep: held-out scores, recipe, model, MLflow run."""
    columns = ["before", *(["baseline"] if summary["baseline"] else [])]
    sides = ("unchanged", "best") if summary["best"]["trial"] else ("unchanged",)
    held = {side: summary["held_out"].get(side, {}) for side in sides}
    rows = side_by_side({name: summary[name] | averages(summary[name]) for name in columns} | held)
    best, counts, recipe = summary["best"], summary["trials"], shown(summary["recipe"])
    return "\n".join(
        [
            "",
            layout(rows) if len(rows) > 1 else "no held-out tasks; set --evaluation.final to evaluate some",
            "",
            f"trials  {counts['finished']} finished, {counts['stopped']} stopped early, {counts['failed']} failed",
            f"best    trial {best['trial']}, {summary['metric']} {best['score']:.2f}; the unchanged recipe "
            + ("failed" if summary["unchanged"]["score"] is None else f"{summary['unchanged']['score']:.2f}"),
            f"recipe  {recipe}   ({command(best['pipeline'])} --recipe {shlex.quote(recipe)})",
            f"model   {shown(summary['export'])}   ({summary['model']})",
            f"run     {summary['mlflow_run_id']}   ({mlflow_ui(summary['tracking_uri'])})",
        ]
    )
