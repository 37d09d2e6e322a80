"""Run the rows of a table of a paper at a scale: check data, train, evaluate, and store the results.

A row is trained once per recipe identity and seed, for all tables, and evaluated once per set of columns. Stored results are
reused, so an interrupted command resumes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicse.commands.api import write_inputs
from multicse.data.errors import DataError, command
from multicse.data.shard_urls import format_options
from multicse.data.shards import ShardSet
from multicse.evaluation.encoders.encoder import FolderEncoder
from multicse.evaluation.figures.basic import save
from multicse.evaluation.kind import split
from multicse.evaluation.load import load_model
from multicse.evaluation.load import parse as parse_model
from multicse.evaluation.registry import SEED, absolute, families, found, kinds, make_tasks
from multicse.evaluation.report import TRANSFER, measure
from multicse.evaluation.tasks.classification import read_labelled
from multicse.reproduction.downloads import maker
from multicse.reproduction.tables import evidence, model_figures, small
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.pool import Pool
from multicse.reproduction.tables.protocol import LENGTHS, RATIO, bracket, by_rate, expected_power, too_short, winner
from multicse.reproduction.tables.table import Row, Table, Values, filled
from multicse.reproduction.tasks.finetune import FinetuneTask, Training
from multicse.reproduction.tasks.relatedness import Regression
from multicse.trainers.engine import record
from multicse.trainers.engine.launch import resolve, run_recipe
from multicse.trainers.engine.mlflow_server import environment_tags
from multicse.trainers.engine.selection import lower_is_better
from multicse.trainers.engine.step import NonFiniteLoss
from multicse.trainers.recipe import Recipe, RecipeError

SENTEVAL = Path("SentEval/data/downstream")
SUPERVISED = Training(epochs=3, lr=1e-4)
"""Training of MoCoUTRL's supervised DeBERTa, which the paper does not specify."""
_RATE = re.compile(r"optim\.[^.]+\.lr")


@dataclass(frozen=True)
class Scale:
    """Scale of a table, the paper's or small, and its folders."""

    out: Path
    data: Path
    """Folder of evaluation data; at the small scale, of all data sets."""
    mini: bool = False
    workers: int | None = None
    """Worker processes per run. If None, as in the recipe."""
    gpus: int | None = None
    """GPUs per process of a run. If None, as in the recipe; at the small scale, none."""
    report_to: str | None = None
    """``run.report_to`` of the runs. If None, as in the recipe."""
    published: bool = False
    """Evaluate published models instead of training, on the data that is available."""
    length: int = 1
    """Factor on the steps of trained rows at the small scale."""

    @property
    def offline(self) -> Offline:
        """Return the local data and the folder of its shards."""
        return Offline(self.data, self.out / "shards")

    def probing(self, table: Table) -> dict[str, str]:
        """Return the options of classifiers: the table's, or SentEval's prototyping setting at the small scale."""
        if self.mini and table.protocol in ("test", "released"):
            return {"protocol": "fast", "hidden": "0"}
        return {"protocol": table.protocol, "hidden": str(table.hidden)}

    @property
    def evaluation(self) -> Path:
        """Return the folder that tasks read."""
        return self.data / "senteval" / "downstream" if self.mini else self.data


def recipe_of(row: Row) -> Recipe:
    """Return the paper's recipe of a trained row."""
    pipeline, _, name = (row.recipe or "").partition("/")
    recipe: Recipe = small.pipeline_of(pipeline).RECIPES[name]()
    return recipe.changed(row.changes)


def scaled(row: Row, paper: str, scale: Scale) -> Recipe:
    """Return the recipe of a trained row at a scale. The run does not evaluate final tasks: the table does."""
    recipe = recipe_of(row)
    if scale.mini:
        own = evidence.mini if paper == "evidence" else partial(small.row, paper)
        recipe = own(recipe, scale.offline)
        if scale.length > 1:  # evaluated as often: for another row of the table, the early steps may be the best
            recipe = recipe.replace("run.max_steps", scale.length * recipe.flat()["run.max_steps"])
    elif scale.data != SENTEVAL:
        recipe = recipe.replace("evaluation.data", str(scale.data))
    shared: dict[str, Any] = {"evaluation.final": (), "run.tracking_uri": f"sqlite:///{scale.out.resolve()}/mlflow.db"}
    workers = 0 if scale.mini else scale.workers
    if workers is not None:
        shared |= {"run.num_workers": workers}
    gpus = 0 if workers == 0 and scale.gpus is None else scale.gpus
    if scale.mini and not gpus:
        shared["run.threads"] = 1  # two runs at a time are faster than one with two threads
    given = {"run.gpus_per_worker": gpus, "run.report_to": scale.report_to}
    return recipe.changed(shared | {path: value for path, value in given.items() if value is not None})


def columns_of(table: Table, scale: Scale) -> tuple[str, ...]:
    """Return the columns at a scale. At the small scale, and of published models: the columns with data.

    A table may name others for the small scale.
    """
    if not (scale.mini or scale.published) or is_list(table.rows):
        return table.columns
    if scale.mini and table.mini is not None:
        columns: tuple[str, ...] = filled(table.mini, {"data": str(scale.data), "shards": str(scale.offline.shards)})
        return columns
    if table.measure is not None:
        return table.columns
    here = found(scale.evaluation) if scale.evaluation.is_dir() else []
    return tuple(name for name in table.columns if ":" in name or name.partition("/")[0].removesuffix("-geometry") in here)


def without_training(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that need no training, with published models in place of trained ones; equal models once."""
    models = ((row, row.published or row.model) for row in rows)
    found = [replace(row, recipe=None, changes={}, model=model) for row, model in models if model]
    return list({row.model: row for row in reversed(found)}.values())[::-1]


def is_list(rows: Sequence[Row]) -> bool:
    """Return whether no row is trained or evaluated, as in a table of settings."""
    return all(row.lacks for row in rows)


def missing(table: Table, paper: str, scale: Scale, rows: Sequence[Row]) -> list[str]:
    """Return a message for each missing dataset, encoder and model, with the command that provides it."""
    lacks: dict[str, None] = {}

    def attempt(place: str, check: Callable[..., Any], *arguments: Any) -> None:
        try:
            check(*arguments)
        except (DataError, ValueError) as error:
            made = maker(place)
            lacks[str(error) + (f"\n    {command('prepare', 'reproduction')} {made}" if made else "")] = None

    if not scale.mini and table.measure is None and not is_list(rows):
        for task, _ in map(_split, columns_of(table, scale)):
            attempt(task.partition(":")[2].partition("?")[0], make_tasks, [task], scale.evaluation)
    for row in rows:
        if row.model is not None:
            model = _model(row.model, paper, scale)
            attempt(model.rpartition(":")[2], _check_model, model)
        elif row.recipe is not None:
            recipe = scaled(row, paper, scale)
            attempt("", lambda recipe: recipe.method.check(recipe, recipe.encoder.read()), recipe)
            for stream in recipe.streams.values():
                attempt(stream.shards, stream.open)
    return list(lacks)


def _check_model(spec: str) -> None:
    fit = parse_model(spec).fit
    if fit is not None and not Path(fit).is_file():
        ShardSet.open(fit)


def results(
    table: Table,
    paper: str,
    scale: Scale,
    rows: Sequence[Row],
    seeds: Sequence[int] | None,
    say: Callable[[str], None],
    pool: Pool | None = None,
) -> list[dict[str, Any]]:
    """Run each row with each seed, or with its own; deterministic rows once. `say` gets a line of progress before each run.

    With a `pool`, runs and evaluations are made in its processes.

    Returns:
        One stored result per row and seed: label, scores, recipe and provenance, and the cells of the row's tuning.
    """
    pool = pool or Pool()
    scale, tuning = tuned_rows(table, paper, scale, rows, say, pool)
    for claim in table.claims:
        expected = claim.effect and expected_power(tuning, claim.row, claim.against, claim.effect, len(seeds or ()))
        if expected:
            found_with = f"{len(seeds or ())} seeds find it with probability {expected:.2f}"
            say(f"{claim.says}, by {claim.effect:g} points in the paper: {found_with}")
    asked = [(row, seeds_of(row, seeds) if is_seeded(row, table) else (None,)) for row in rows if row.recipe or row.model]
    work = [(row, seed) for row, of in asked for seed in of]
    columns, start = columns_of(table, scale), time.monotonic()
    folders = {row.label: runs_of(scaled(row, paper, scale), scale) for row, _ in work if row.recipe is not None}
    shared = not table.tuning and bool(table.grid)  # the seeds of such a row share the runs of its candidates

    def result(place: int) -> dict[str, Any]:
        (row, seed), cells = work[place], tuning.get(work[place][0].label)
        elapsed = f"{(time.monotonic() - start) / 60:.0f} min"
        say(f"{place + 1} of {len(work)}, {elapsed}: {row.label}" + ("" if seed is None else f", seed {seed}"))
        folder = folders.get(row.label, scale.out / row.label) / ("" if shared else str(seed))
        factor = None if cells is None else winner(cells)
        found = pool.call(folder, _row, row, seed, factor, table, columns, paper, scale)
        return found | ({} if cells is None else {"tuning": cells})

    return pool.map(result, range(len(work)))


def tuned_rows(
    table: Table, paper: str, scale: Scale, rows: Sequence[Row], say: Callable[[str], None], pool: Pool
) -> tuple[Scale, dict[str, list[dict[str, Any]]]]:
    """Tune the learning rates of the trained rows, and at the small scale the length of their runs.

    Returns:
        The scale with the length, and the cells by label of the row.
    """
    trained = [row for row in rows if row.recipe is not None] if table.tuning else []
    lengths = LENGTHS if scale.mini else (1,)
    for length in lengths:
        scale = replace(scale, length=length)
        recipes, short = [write_inputs(scaled(row, paper, scale)) for row in trained], list[str]()

        def cells_of(
            place: int, scale: Scale = scale, recipes: Sequence[Recipe] = recipes, short: list[str] = short
        ) -> list[dict[str, Any]]:
            row = trained[place]
            if short:  # the rows are trained for longer anyway
                return []
            say(f"tuning, {scale.length} x the steps: {row.label}")
            cells = tuned(row, recipes[place], table.tuning, scale, pool)
            if scale.length < lengths[-1] and too_short(cells):
                short.append(row.label)
            return cells

        cells = dict(zip([row.label for row in trained], pool.map(cells_of, range(len(trained))), strict=True))
        if not short:
            break
    return scale, cells


def tuned(row: Row, recipe: Recipe, seeds: Sequence[int], scale: Scale, pool: Pool) -> list[dict[str, Any]]:
    """Run the recipe of a row with the tuning seeds and a growing grid of learning rates, unless these runs are finished.

    Returns:
        A cell per factor on the learning rates and seed: factor, seed, score on the development task (None for a run that
        diverged; larger is better), best step and number of steps.
    """
    (task,) = make_tasks([recipe.evaluation.select or ""], recipe.evaluation.data)
    sign = -1 if lower_is_better(task) else 1
    tried = recipe.replace("export.whiten", False)  # which is fitted after training: rows that differ in it share the runs
    cells: list[dict[str, Any]] = []

    def cell(factor: float, seed: int) -> dict[str, Any]:
        folder = runs_of(tried, scale) / f"rates-{factor:.3g}" / f"seed-{seed}"
        found: dict[str, Any] = {"factor": factor, "seed": seed, "score": None, "best_step": None, "steps": None}
        try:
            summary = pool.call(folder, run_seed, at_rate(tried, factor).to_json(secrets=True), seed, folder)
        except NonFiniteLoss:
            return found
        return found | {"score": sign * summary["best_score"], "best_step": summary["best_step"], "steps": summary["steps"]}

    def scores(powers: Sequence[int]) -> list[float]:
        factors = [RATIO**power for power in powers]
        new = pool.map(lambda asked: cell(*asked), list(itertools.product(factors, seeds)))
        cells.extend(new)
        return [by_rate(new)[factor] for factor in factors]

    if max(bracket(scores).values()) == -math.inf:
        raise RecipeError(f"{row.label}: every learning rate diverges; lower them in the recipe {recipe.name}")
    return cells


def rates_of(recipe: Recipe) -> dict[str, float]:
    """Return the learning rates of a recipe by the path of the setting."""
    return {path: rate for path, rate in recipe.flat().items() if _RATE.fullmatch(path)}


def at_rate(recipe: Recipe, factor: float) -> Recipe:
    """Return a recipe with all learning rates multiplied by a factor."""
    return recipe.changed({path: factor * rate for path, rate in rates_of(recipe).items()})


def runs_of(recipe: Recipe, scale: Scale) -> Path:
    """Return the folder of all runs of a recipe, whatever their seed."""
    identity = resolve(recipe.replace("run.seed", 0)).identity()
    return scale.out / "runs" / f"{recipe.name.replace('/', '-')}-{identity[:8]}"


def seeds_of(row: Row, seeds: Sequence[int] | None) -> Sequence[int]:
    """Return the seeds of a row; if there are none, the seed of its recipe."""
    return seeds or (recipe_of(row).run.seed if row.recipe else 0,)


def is_seeded(row: Row, table: Table) -> bool:
    """Return whether the scores of a row depend on a seed: of training, of a flow, or of classifiers."""
    if row.recipe or row.supervised:
        return True
    return "+flow" in (row.model or "") or (isinstance(table.seeds, tuple) and trains_probes(table))


def trains_probes(table: Table) -> bool:
    """Return whether columns of a table train a classifier on embeddings, or fine-tune the encoder."""
    names = [_split(column)[0] for column in table.columns]
    own = [kinds().get(name.partition(":")[0]) for name in names if ":" in name]
    return any(kind is not None and kind.trains for kind in own) or not {*TRANSFER, *Regression.names}.isdisjoint(names)


def values_of(rows: Sequence[Row], columns: Sequence[str], results: Sequence[Mapping[str, Any]]) -> Values:
    """Collect the scores of `results` by row and column, one per seed."""
    values: Values = {row.label: {column: [] for column in columns} for row in rows}
    for result in results:
        for column, score in result["scores"].items():
            values[result["label"]].setdefault(column, []).append(score)
    return values


def _row(
    row: Row, seed: int | None, factor: float | None, table: Table, columns: Sequence[str], paper: str, scale: Scale
) -> dict[str, Any]:
    trained: dict[str, Any] = {} if seed is None else {"seed": seed}
    run = {}
    if row.recipe is not None:
        assert seed is not None
        recipe = scaled(row, paper, scale)
        folder = runs_of(recipe, scale) / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        recipe = write_inputs(recipe)
        if factor is not None:
            recipe = at_rate(recipe, factor)
            folder = folder.with_name(f"{folder.name}-{recipe.identity()[:8]}")
        elif candidates := candidates_of(recipe, table, scale):
            recipe = best_of(candidates, folder.parent)
            folder = folder.with_name(f"{folder.name}-{recipe.identity()[:8]}")
        summary = run_seed(recipe.to_json(secrets=True), seed, folder)
        data = {name: stream.open().digest for name, stream in recipe.streams.items()}
        identity = resolve(recipe.replace("run.seed", 0)).identity()
        trained |= {"recipe": recipe.name, "identity": identity, "data": data}
        trained |= {"best_step": summary["best_step"], "steps": summary["steps"]}
        trained["eval_steps"] = recipe.evaluation.eval_steps
        run = {"run": summary["mlflow_run_id"] or record.read(folder)[record.RUN], "rates": rates_of(recipe)}
        spec = summary["export"]
    else:
        assert row.model is not None
        spec = _model(row.model, paper, scale)
        if row.supervised:
            spec = _supervised(spec, columns[0].partition(":")[2].partition("#")[0], seed or 0, scale)
    probing = scale.probing(table)
    asked = {"model": spec, **trained, "columns": columns, "protocol": probing["protocol"], "hidden": int(probing["hidden"])}
    probe_seed = SEED
    if seed is not None and isinstance(table.seeds, tuple) and trains_probes(table):
        probe_seed = asked["probe_seed"] = seed  # the paper specifies its seeds; otherwise SentEval's default
    if table.measure is not None:
        asked["measure"] = table.measure.__name__
    if table.figure is not None:
        asked["figure"] = table.figure
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
    file = scale.out / "results" / f"{key}.json"
    if file.is_file():
        known = json.loads(file.read_text(encoding="utf-8"))
        if known.get("run") == run.get("run"):  # a model that was trained again is measured again
            return known | run | {"label": row.label}
    scores, source = _measured(spec, table, columns, scale, probe_seed, seed or 0)
    if table.figure is not None:
        name = re.sub(r"\W+", "-", f"{table.figure} {row.label}")
        drawn = getattr(model_figures, table.figure)(spec, replace(table, columns=tuple(columns)), scale.evaluation)
        source["figure"] = str(save(drawn, scale.out / "figures", f"{name}-{key[:6]}")[0])
    commit = environment_tags().get("mlflow.source.git.commit", "unknown") if find_spec("mlflow") else "unknown"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"label": row.label, **asked, **run, "scores": scores, "commit": commit, "provenance": source}
    half = file.with_suffix(".tmp")
    half.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    half.replace(file)
    return content


def run_seed(recipe: str, seed: int, output: Path) -> dict[str, Any]:
    """Train a recipe, given as JSON, with a seed, unless its run is finished, and return the summary of the run."""
    print(f"seed {seed}: {output}")
    changes = {"run.seed": seed, "run.output_dir": str(output)}
    return run_recipe(write_inputs(Recipe.from_json(recipe).changed(changes)))


def candidates_of(recipe: Recipe, table: Table, scale: Scale) -> dict[str, Recipe]:
    """Return the candidates for a row, with other weights of its losses, by folder name.

    The weight of a loss that the recipe does not have is not searched, and at the small scale no weight is.
    """
    given = recipe.flat()
    tried = dict[str, dict[str, float]]()
    grid = {} if scale.mini else {path: values for path, values in table.grid.items() if given.get(path)}
    for point in itertools.product(*grid.values()) if grid else ():
        tried["weights-" + "-".join(f"{value:g}" for value in point)] = dict(zip(grid, point, strict=True))
    return {name: recipe.changed(changes) for name, changes in tried.items()}


def best_of(candidates: Mapping[str, Recipe], folder: Path) -> Recipe:
    """Run each candidate with seed 0 in its folder below `folder`, and return the best one on the development task."""
    first = next(iter(candidates.values()))
    (task,) = make_tasks([first.evaluation.select or ""], first.evaluation.data)
    sign = -1 if lower_is_better(task) else 1
    texts = {name: recipe.to_json(secrets=True) for name, recipe in candidates.items()}
    scores = {name: sign * run_seed(text, 0, folder / name)["best_score"] for name, text in texts.items()}
    return candidates[max(scores, key=lambda name: scores[name])]


def _measured(
    spec: str, table: Table, columns: Sequence[str], scale: Scale, probe_seed: int, seed: int
) -> tuple[dict[str, float], dict[str, Any]]:
    if table.measure is not None:
        return table.measure(spec, tuple(columns), scale.evaluation), {}
    asked = {column: _split(column) for column in columns}
    probing = scale.probing(table)
    names = list(dict.fromkeys(absolute(_with_options(name, probing)) for name, _ in asked.values()))
    tasks = dict(zip(names, make_tasks(names, scale.evaluation, probe_seed), strict=True))
    sentences = list(dict.fromkeys(sentence for task in tasks.values() for sentence in task.sentences()))
    model = load_model(spec, fit=sentences, seed=seed)
    found = measure(spec, model, [*tasks.values()])
    scores = {}
    for column, (name, metric) in asked.items():
        task = tasks[absolute(_with_options(name, probing))]
        scores[column] = float(found.results[task.name][metric or task.primary])
    return scores, dict(found.provenance)


def _with_options(task: str, given: Mapping[str, str]) -> str:
    """Return the name of a task with those options that the task has."""
    name, place, options = split(task)
    kind = families().get(name) if place is None else kinds().get(name)
    if kind is None or (options.get("head") in (None, "linear") and "head" in kind.options()):
        return task
    options = {option: value for option, value in given.items() if option in kind.options()} | options
    written = task.partition("?")[0]
    return f"{written}?{format_options(options)}" if options else task


def _supervised(spec: str, labelled: str, seed: int, scale: Scale) -> str:
    """Return the folder of a model that is fine-tuned on the labels of a file with the classifier of MoCoUTRL's paper."""
    folder = scale.out / "runs" / f"supervised-{hashlib.sha256(f'{spec} {labelled} {seed}'.encode()).hexdigest()[:8]}"
    if not folder.is_dir():
        model = load_model(spec)
        assert isinstance(model, FolderEncoder)
        half = folder.with_suffix(".tmp")
        training = SUPERVISED.model_copy(update={"seed": seed})
        task = FinetuneTask("supervised", read_labelled(labelled), training, "three-layers")
        task.train(model)[0].model.save(str(half))
        half.rename(folder)
    return str(folder)


def _split(column: str) -> tuple[str, str]:
    """Split ``TASK/METRIC``; for ``KIND:PLACE#METRIC`` the separator is a hash, since a place contains slashes."""
    task, _, metric = column.partition("#" if ":" in column else "/")
    return task, metric


def _model(spec: str, paper: str, scale: Scale) -> str:
    """Return the model of an untrained row at a scale."""
    return small.model(paper, spec, scale.offline) if scale.mini else spec
