"""Search loss weights, temperatures, learning rates: ``python pipelines/sweep.py visualcse --recipe demo --trials 16``."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors, command, did_you_mean
from multicse.evaluation.tables import before_after, layout
from multicse.pipelines import registry
from multicse.pipelines.cli import is_shown, parse, prepare
from multicse.trainers.engine.mlflow_server import BEST, CHAMPION
from multicse.trainers.engine.tracking import RunHandle, find_runs, open_run, sync
from multicse.trainers.jobs import kept, results_in
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.trials import Trial, best_trial

if TYPE_CHECKING:
    from ray.tune import ExperimentAnalysis

    from multicse.trainers.tuning.room import Room
    from multicse.trainers.tuning.space import SearchSpace
    from multicse.trainers.tuning.sweep import Sweep
    from multicse.trainers.tuning.trial import Plan
    from multicse.trainers.tuning.watch import Watch

TRIALS = 32
WIDTH = 200
"""Characters of a line in a file or a pipe, which has no width of its own."""


@dataclass(frozen=True)
class Arguments:
    """Train a recipe with many settings, stop the poor ones early, keep the best. Trial 0 is the recipe as it stands.

    What varies is in tune_spaces/. Any setting of the recipe can follow and holds for all trials, as for the
    pipeline itself (python pipelines/PIPELINE.py demo --help). Trials are compared by the recipe's development task;
    held-out tasks are measured for the best one and for trial 0 only.
    """

    pipelines: tyro.conf.Positional[tuple[str, ...]]
    """What is trained; of several, each trial draws one. A Python file of your own serves if it has ``SPACES`` as well."""
    recipe: str = "demo"
    """A recipe that these pipelines have."""
    trials: int | None = None
    """How many trials there are. Default: 32, or the whole grid."""
    space: str | None = None
    """Name of what varies, in tune_spaces/. Default: wide, with a grid paper."""
    searcher: Literal["optuna", "random", "grid"] | None = None
    """Optuna's TPE, independent draws, or every combination. Default: optuna, with PBT random."""
    scheduler: Literal["asha", "pbt", "none"] = "asha"
    """ASHA stops two thirds of the trials after 60 % of their steps; PBT has poor trials go on from good ones with changed
    settings."""
    seeds: tuple[int, ...] | None = None
    """Seeds of every configuration, whose scores are averaged. Default: the recipe's."""
    concurrent: int | None = None
    """Trials at a time. Default: as many as fit."""
    retries: int = 1
    """Times that a failed trial is tried again, from its last checkpoint."""
    output: Path | None = None
    """Folder of the sweep. Default: runs/sweep-RECIPE-HASH, where the hash stands for all that decides the trials."""
    resume: bool = False
    """Make it an error when there is no sweep to go on with. One that was interrupted goes on in any case, and trials that
    ended are not run again."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad, 3 when no trial came to a score, 130 when it was interrupted."""
    arguments, rest = tyro.cli(Arguments, args=argv, return_unknown_args=True)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    return sweep(arguments, rest)


def sweep(arguments: Arguments, rest: list[str]) -> int:
    """Check, run, report; the exit code."""
    # Imported here: Ray takes seconds, and --help should not.
    from multicse.trainers.engine.cluster import quiet

    search = make_sweep(arguments, rest)
    folder = kept(arguments.output or Path("runs") / search.name, search.first.run.storage).resolve()
    if not search.first.run.verbose:
        quiet()
    with results_in(folder):
        return _run(search, folder, arguments.resume)


def _run(search: Sweep, folder: Path, resume: bool) -> int:
    from multicse.trainers.engine.cluster import opening, start_ray
    from multicse.trainers.engine.output import locked
    from multicse.trainers.tuning import sweep as engine

    engine.check_sweep(search)
    goes_on = engine.exists(search, folder)
    if resume and not goes_on:
        place = engine.storage_of(search, folder)
        raise RecipeError(f"--resume: there is no sweep of these settings in {place}; leave --resume out to begin it")
    ended = folder / "summary.json"
    if goes_on and ended.exists() and json.loads(ended.read_text())["identity"] == search.identity():
        if (folder / "journal.jsonl").exists():  # a driver that died at its end may not have sent everything
            sync(folder / "journal.jsonl")
        print(f"this sweep has ended; what it came to is in {ended}")
        return 0
    with opening(search.first, search.experiment):
        start_ray(search.first)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # which Tune answers, and Ray's does not
    with locked(folder, "--output"):
        ended.unlink(missing_ok=True)  # another sweep's
        return _carry_out(search, folder, goes_on)


def _carry_out(search: Sweep, folder: Path, goes_on: bool) -> int:
    from multicse.pipelines.sweep_table import SweepTable
    from multicse.trainers.tuning import sweep as engine
    from multicse.trainers.tuning.room import room_on_cluster
    from multicse.trainers.tuning.watch import Watch

    room = room_on_cluster(search.recipes.values(), search.concurrent)
    parent = _open(search, folder, goes_on)
    print(describe(search, room, folder))
    plan = engine.plan_of(search, folder, parent)
    table = SweepTable(search.metric, engine.count(search))
    watch = Watch(plan, parent, table.update)
    status = "FAILED"
    try:
        analysis = engine.run(search, plan, room.at_once, watch, goes_on)
        table.close()
        code = conclude(search, plan, analysis, parent, watch)
        status = {0: "FINISHED", 130: "KILLED"}.get(code, "FAILED")
        return code
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        table.close()
        parent.finish(status)


def make_sweep(arguments: Arguments, rest: list[str]) -> Sweep:
    """The sweep that the command line asks for, its offline shards made and its recipes resolved.

    Raises RecipeError for a recipe, setting or space that is not there, with the nearest ones.
    """
    from multicse.trainers.tuning.sweep import Sweep, prepared

    names = tuple(dict.fromkeys(arguments.pipelines))
    if not names:
        raise RecipeError(f"name at least one pipeline: {command('sweep')} visualcse --recipe demo --trials 16")
    searcher = arguments.searcher or ("random" if arguments.scheduler == "pbt" else "optuna")
    space = arguments.space or ("paper" if searcher == "grid" else "wide")
    recipes: dict[str, Recipe] = {}
    for name in names:
        module = registry.load(name)
        recipe = parse(module.RECIPES, "", [arguments.recipe, *rest])
        prepare(recipe)
        recipe = registry.started(module, recipe)
        seed = recipe.run.seed if arguments.seeds is None or not arguments.seeds else arguments.seeds[0]
        recipes[name] = prepared(recipe, arguments.scheduler, seed)
    first = next(iter(recipes.values()))
    return Sweep(
        recipes=recipes,
        spaces={name: _space(name, space, arguments.scheduler) for name in names},
        space=space,
        trials=arguments.trials if arguments.trials is not None or searcher == "grid" else TRIALS,
        searcher=searcher,
        scheduler=arguments.scheduler,
        seeds=(first.run.seed,) if arguments.seeds is None else arguments.seeds,
        retries=arguments.retries,
        concurrent=arguments.concurrent,
    )


def _space(pipeline: str, name: str, scheduler: str) -> SearchSpace:
    """A space by its name, of tune_spaces or else of the pipeline's own ``SPACES``; for PBT what may change within a run.

    Raises RecipeError for a pipeline without spaces, and for a name that none has, with the nearest one.
    """
    from multicse.trainers.tuning.space import within_a_run
    from multicse.tune_spaces import every

    ours = every()
    known = ours.get(pipeline) or getattr(registry.load(pipeline), "SPACES", None)
    if known is None:
        raise _unknown(
            f"the pipeline {pipeline!r} has no search space (SPACES, a dict from a name to a space)", pipeline, ours
        )
    if name not in known:
        raise _unknown(f"--space {name}: {pipeline} has none of that name", name, known)
    found: SearchSpace = known[name]
    if scheduler != "pbt":
        return found
    moving = {path: domain for path, domain in found.items() if within_a_run(path, domain)}
    if not moving:
        raise RecipeError(
            f"--scheduler pbt: nothing of the space {name!r} can change within a run; it takes ranges of numbers below "
            "method. and optim., as rates, weights and temperatures are"
        )
    return moving


def _unknown(problem: str, name: str, known: Collection[str]) -> RecipeError:
    return RecipeError(f"{problem}.{did_you_mean(name, known)} There are: {', '.join(known)}")


def _open(search: Sweep, folder: Path, resume: bool) -> RunHandle:
    """The sweep's own MLflow run, the same one when it is resumed."""
    from multicse.trainers.engine.checks import describe_shards_of

    folder.mkdir(parents=True, exist_ok=True)
    uri = search.first.run.tracking_uri or ""
    data = [row for recipe in search.recipes.values() for row in describe_shards_of(recipe)]
    tags = {"sweep": search.name, "sweep.identity": search.identity()}
    note = folder / "sweep.json"
    known = json.loads(note.read_text())["mlflow_run_id"] if resume and note.exists() else None
    if resume and known is None:  # another head than the one that began it
        known = next((run.run_id for run in find_runs(uri, search.experiment, tags)), None)
    settings = {
        "trials": search.trials,
        "searcher": search.searcher,
        "scheduler": search.scheduler,
        "space": search.space,
        "seeds": list(search.seeds),
        "metric": search.metric,
    }
    params = {f"sweep.{name}": value for name, value in settings.items()} | search.first.flat()
    journal = folder / "journal.jsonl"
    handle = open_run(uri, search.experiment, search.name, params, tags, known, journal, data)
    note.write_text(json.dumps({"sweep": search.name, "mlflow_run_id": handle.run_id}) + "\n")
    return handle


def describe(search: Sweep, room: Room, folder: Path) -> str:
    """What is about to be done, in a few lines."""
    from multicse.trainers.tuning.sweep import GRACE, KEPT, count, interval
    from multicse.trainers.tuning.trial import steps_of

    (first, *_), steps = search.recipes.values(), steps_of(search.first) * len(search.seeds)
    how = {
        "asha": f"asha, which goes on with the best one of {KEPT} after {GRACE / 100 * steps:.0f} of {steps} steps",
        "pbt": f"pbt, every {interval(search) / 100 * steps:.0f} of {steps} steps",
        "none": f"none: every trial makes its {steps} steps",
    }[search.scheduler]
    varied = dict.fromkeys(path for space in search.spaces.values() for path in space)
    names = ", ".join(recipe.name for recipe in search.recipes.values())
    lines = [
        f"sweep      {search.name}: {count(search)} trials of {names}",
        f"space      {search.space}: {', '.join(varied)}",
        f"searcher   {search.searcher}, best {search.metric}"
        + (f", mean of seeds {', '.join(map(str, search.seeds))}" if len(search.seeds) > 1 else ""),
        f"scheduler  {how}",
        f"room       {room}",
        f"folder     {folder}",
    ]
    if search.scheduler != "none":
        lines.insert(4, f"evaluated  every {first.evaluation.every} steps")
    return "\n".join(lines)


def conclude(search: Sweep, plan: Plan, analysis: ExperimentAnalysis, parent: RunHandle, watch: Watch) -> int:
    """Records, figures, the best trial's recipe and model, held-out scores; the exit code."""
    from multicse.pipelines.sweep_table import final_table
    from multicse.trainers.tuning.best import records
    from multicse.trainers.tuning.figures import sweep_figures
    from multicse.trainers.tuning.sweep import count, own_values

    folder = Path(plan.folder)
    trials = records(analysis, watch)
    (folder / "trials.json").write_text(json.dumps([asdict(trial) for trial in trials], indent=2, default=str) + "\n")
    watch.conclude(trials)
    best = best_trial(trials)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(final_table(trials, search.metric))
    defaults = {name: own_values(search, name) for name in search.recipes}
    with sweep_figures(trials, search.metric, defaults) as (figures, left_out):
        for name, figure in figures:
            parent.log_figure(name, figure)
    for reason in left_out:
        print(f"figure left out: {reason}")
    ended = sum(trial.ended for trial in trials)
    if ended < count(search) or best is None:  # otherwise `finish` brings them, after the summary
        with contextlib.suppress(Exception):  # the server is away
            for place in ("trials.json", "figures"):
                parent.log_artifact(folder / place, "figures" if place == "figures" else "")
    if ended < count(search):
        print(f"interrupted after {ended} of {count(search)} trials; the same command goes on")
        return 130
    if best is None:
        print("no trial came to a score; see the errors above")
        return 3
    summary = _keep_best(search, plan, {trial.trial_id: trial for trial in analysis.trials}, parent, trials, best)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2, default=str) + "\n")
    print(_last_words(summary))
    return 0


def _keep_best(
    search: Sweep, plan: Plan, ended: Mapping[str, Any], parent: RunHandle, trials: Sequence[Trial], best: Trial
) -> dict[str, Any]:
    """The best trial as a recipe file, a registered model and held-out scores, beside those of the recipe as it stands."""
    from multicse.trainers.tuning.best import checkpoints, deliver_best, held_out, mean_scores
    from multicse.trainers.tuning.trial import run_folder

    folder = Path(plan.folder)
    recipe = plan.recipe(ended[best.trial_id].config)
    again = recipe.replace("run.output", f"runs/{recipe.name}-best")
    (folder / "best.json").write_text(again.to_json() + "\n")
    model = recipe.run.register_as or recipe.name.replace("/", "-")
    plain = next(trial for trial in trials if trial.as_it_stands and trial.pipeline == best.pipeline)
    delivered, scores = deliver_best(plan, best, ended[best.trial_id], parent, folder / BEST, model)
    after = {"best": mean_scores(scores)}
    if plain.scored:
        base = plan.recipe(ended[plain.trial_id].config)
        base = base.replace("run.output", str(run_folder(plan, plain.trial_id, base.run.seed)))
        with checkpoints(ended[plain.trial_id]) as folders:
            after["as it stands"] = mean_scores(held_out(base, folders))
    names = {"best": "trained", "as it stands": "trained_as_it_stands"}
    metrics = {
        f"{names[name]}/{task}/{metric}": value.mean
        for name, of in after.items()
        for task, values in of.items()
        for metric, value in values.items()
    }
    with contextlib.suppress(Exception):  # they are in summary.json, whatever the server does
        parent.log_metrics(metrics)
    counts = {status: sum(trial.status == status for trial in trials) for status in ("finished", "stopped", "failed")}
    return {
        "sweep": search.name,
        "identity": search.identity(),
        "metric": search.metric,
        "trials": {"all": len(trials), **counts},
        "best": {"trial": best.number, "pipeline": best.pipeline, "changes": best.changes, "score": best.best},
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
            f"recipe  {summary['recipe']}   ({command(best['pipeline'])} --recipe {summary['recipe']})",
            f"model   {summary['export']}   ({summary['model']})",
            f"run     {summary['mlflow_run_id']}   (mlflow ui --backend-store-uri {summary['tracking_uri']})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
