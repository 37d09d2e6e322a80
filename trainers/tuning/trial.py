"""One trial of a sweep: a recipe with other settings, trained in this process or by Ray Train, that reports to Ray Tune.

A trial with several seeds trains them one after the other. Its budget is all their steps together, so that a scheduler
compares two trials after the same steps of the same seeds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from safetensors.torch import load_file, save_file
from torch import Tensor

from multicse.trainers import registry
from multicse.trainers.engine.checkpoint import BEST, METHOD, Store, WriteFiles, read_state, weights_of
from multicse.trainers.engine.checks import check, describe_shards_of
from multicse.trainers.engine.cluster import quiet, to_foreground
from multicse.trainers.engine.launch import train
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.output import store_of
from multicse.trainers.engine.text_fit import prepare
from multicse.trainers.engine.tracking import Journal, RunHandle, Tracker, find_runs, open_run
from multicse.trainers.recipe import Recipe

log = logging.getLogger(__name__)

PERCENT = "percent"
"""What schedulers count: how much of a trial is done, below 100. Methods with more steps are not ahead by them.

It is 0 where a scheduler has nothing to decide: at the end, and in all of the recipe as it stands, which all others are
compared with, so that it is neither stopped nor changed.
"""
PATIENCE = 900.0
"""Seconds that a trial waits for a tracking server before it fails."""
THREAD_ENDS = 600
"""Seconds that a stopped trial has for its end; sending what a slow tracking server lacks takes 30 of them at most."""
SEEDS, STATE = "seeds", "trial.json"
"""In a trial's checkpoint: the weights of the seeds that are done, and which these are."""

Config = Mapping[str, Any]
"""What Tune gives a trial: ``{"trial": {"pipeline": NAME, "changes": {NAME: {"optim.text.lr": 1e-5}}}}``."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all trials of a sweep share, and take along to their nodes."""

    recipes: Mapping[str, str]
    """The recipes as they stand, by pipeline, as JSON; paths absolute."""
    folder: str
    """The sweep's folder; trials write below it, on their own nodes."""
    experiment: str
    """Of MLflow."""
    parent: str
    """The MLflow run of the sweep."""
    metric: str
    """See `Sweep.metric`."""
    seeds: tuple[int, ...]
    """At least one."""
    source: Mapping[str, str] = field(default_factory=dict)
    """What `source_tags` says on the driver; a trial's process is a script of Ray's."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """What `registry.loaded` says on the driver: methods in files of the user's own."""

    def base(self, config: Config) -> Recipe:
        """The recipe as it stands that a trial changes."""
        for name in self.methods.keys() - registry.loaded().keys():
            registry.load_source(name, self.methods[name])
        return Recipe.from_json(self.recipes[config["trial"]["pipeline"]])

    def recipe(self, config: Config) -> Recipe:
        """The recipe of a trial, with the sweep's first seed."""
        changes = config["trial"]["changes"][config["trial"]["pipeline"]]
        return self.base(config).changed(changes).replace("run.seed", self.seeds[0])

    def trial_folder(self, trial_id: str) -> Path:
        """Where a trial writes on its node: journals, vectors."""
        return Path(self.folder) / "trials" / trial_id


def run_folder(plan: Plan, trial_id: str, seed: int | str) -> Path:
    """The output folder of one seed of a trial, on its node."""
    return plan.trial_folder(trial_id) / f"seed-{seed}"


def in_process(recipe: Recipe) -> bool:
    """Whether a trial is the loop in one process, and not Tune over Train."""
    return recipe.run.workers <= 1


def steps_of(recipe: Recipe) -> int:
    """Steps of one run of a recipe, from its shards."""
    return recipe.steps(recipe.streams[recipe.lead].open().samples)


def changes(base: Recipe, recipe: Recipe) -> dict[str, Any]:
    """What a trial's recipe has differently, by dotted path; the seed apart, which a sweep sets."""
    before = base.flat()
    return {path: value for path, value in recipe.flat().items() if before.get(path, ...) != value and path != "run.seed"}


def trial(config: Config, plan: Plan) -> dict[str, Any]:
    """The function that Tune runs. Returns the last report, marked as finished."""
    to_foreground()
    trial_id = tune.get_context().get_trial_id()
    base, recipe = plan.base(config), plan.recipe(config)
    # An actor is used again by the next trial once this one's thread has ended, which sends its metrics first. Tune gives
    # up the next trial, without trying again, when that takes longer.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(THREAD_ENDS)
    if not recipe.run.verbose:
        quiet()
    check(recipe)
    scratch = plan.trial_folder(trial_id)
    scratch.mkdir(parents=True, exist_ok=True)
    changed = changes(base, recipe)
    budget = Budget(scratch, plan.seeds, steps_of(recipe), judged=bool(changed))
    budget.restore()
    if budget.last and (ended := _ended_as(plan, recipe, trial_id)) and ended["step"] == str(budget.last["step"]):
        # The driver was killed after this trial's end and before Tune wrote it down.
        return {**budget.last, "finished": int(ended["status"] == "finished")}
    for seed in plan.seeds:
        if seed in budget.done:
            continue
        seeded = placed(recipe, seed, run_folder(plan, trial_id, seed))
        share_vectors(seeded, Path(plan.folder))
        handle = _open(plan, seeded, trial_id, changed)
        host = TrialHost(budget, seeded, handle.run_id)
        if in_process(recipe):
            with Tracker(Path(seeded.run.output) / "journal.jsonl", handle.uri, handle.run_id) as tracker:
                engine = Engine(seeded, host, tracker)
                engine.run()
            budget.finish(seed, engine.kept_score, weights_of(engine.chosen), seeded)
        else:
            store = store_of(seeded, handle.run_id)
            _, checkpoint = train(seeded, handle, Path(seeded.run.output), store, [host.forward(store)])
            score = budget.report_end(seeded, checkpoint, handle.run_id)
            best = load_file(checkpoint / (BEST if (checkpoint / BEST).exists() else METHOD))
            budget.finish(seed, score, best, seeded)
        handle.drain(Path(seeded.run.output) / "journal.jsonl")
        # By which `track.py sync` knows that the run has ended.
        (Path(seeded.run.output) / "summary.json").write_text(json.dumps({"mlflow_run_id": handle.run_id}))
        handle.finish()
    return {**budget.last, "finished": 1}


def placed(recipe: Recipe, seed: int, folder: Path) -> Recipe:
    """The recipe of one seed as the trial runs it: in its own folder. Held-out sets are left to the best trial."""
    run = recipe.run
    threads = run.threads or (None if run.gpus_per_worker else max(1, int(run.cpus_per_worker)))
    settings: dict[str, Any] = {
        "run.seed": seed,
        "run.output": str(folder),
        "run.checkpoint_every": None,
        "run.threads": threads,
        "run.register_as": None,
        "evaluation.final": (),
    }
    return recipe.changed(settings)


def _open(plan: Plan, recipe: Recipe, trial_id: str, changed: Mapping[str, Any]) -> RunHandle:
    """The MLflow run of a trial's seed: nested in the sweep's, its changes as tags; the same one after a restart.

    A server that is away is waited for, up to `PATIENCE`: a sweep does not use up its trials meanwhile.
    """
    uri, journal = recipe.run.tracking_uri or "", Path(recipe.run.output) / "journal.jsonl"
    own = {"mlflow.parentRunId": plan.parent, "sweep.trial": trial_id, "sweep.seed": str(recipe.run.seed)}
    tags = {f"changed.{path}": str(value) for path, value in changed.items()}
    data, end, pause = describe_shards_of(recipe), time.monotonic() + PATIENCE, 1.0
    while True:
        try:
            found = (Journal(journal).header() or {}).get("run_id")
            if found is None:
                runs = find_runs(uri, plan.experiment, own)
                found = runs[0].run_id if runs else None
            everything = {**own, "identity": recipe.identity(), **tags, **plan.source}
            name = f"trial {trial_id}"
            return open_run(uri, plan.experiment, name, recipe.flat(), everything, found, journal, data)
        except Exception as error:
            if time.monotonic() > end:
                raise
            log.warning("the tracking server %s does not answer (%s); trial %s waits for it", uri, error, trial_id)
            time.sleep(pause)
            pause = min(30.0, 2 * pause)


def _ended_as(plan: Plan, recipe: Recipe, trial_id: str) -> dict[str, str] | None:
    """Status and step with which the driver ended this trial's runs, if it did."""
    tags = {"mlflow.parentRunId": plan.parent, "sweep.trial": trial_id}
    for run in find_runs(recipe.run.tracking_uri or "", plan.experiment, tags):
        if run.tags.get("sweep.status") in ("finished", "stopped"):
            return {"status": run.tags["sweep.status"], "step": run.tags["sweep.step"]}
    return None


def curve_of(report: Mapping[str, Any]) -> dict[int, float]:
    """Return a trial's scores by step from its last report."""
    return dict(json.loads(report.get("curve", "[]")))


def percent_of(step: int, steps: int, judged: bool) -> float:
    """Return `PERCENT` of a report."""
    return 100 * step / steps if judged and step < steps else 0.0


def share_vectors(recipe: Recipe, folder: Path) -> None:
    """Word vectors that a recipe trains by itself are trained once for all trials that would get the same ones."""
    made_of = recipe.encoder.prepare_cache_key()
    if made_of is None:
        return
    texts = {name: [stream.shards, getattr(stream, "columns", None)] for name, stream in recipe.streams.items()}
    parts = json.dumps([made_of, texts, recipe.run.seed])
    place, own = folder / "vectors" / hashlib.sha256(parts.encode()).hexdigest()[:12], Path(recipe.run.output) / "vectors"
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not (place / "done").exists():
            prepare(recipe.replace("run.output", str(place)))
            (place / "done").touch()
    own.parent.mkdir(parents=True, exist_ok=True)
    if not own.exists():
        own.symlink_to(place / "vectors", target_is_directory=True)


class Budget:
    """Where a trial stands over its seeds, and what it keeps of those that are done.

    steps: of one seed. judged: whether a scheduler may stop or change the trial.
    """

    def __init__(self, scratch: Path, seeds: tuple[int, ...], steps: int, judged: bool) -> None:
        self.scratch, self.seeds, self.steps, self.judged = scratch, seeds, steps, judged
        self.kept, self._curve = scratch / SEEDS, scratch / "curve.json"
        self.done: dict[int, float] = {}
        """Seed -> the score of its weights that are kept."""
        self.last: dict[str, Any] = {}
        """The last report."""
        self.curve: dict[int, float] = {}
        """Step -> score. It travels in every report: Tune's own table of reports is copied to the storage while it is
        written, so a driver that is killed may leave half of it."""

    def restore(self) -> None:
        """Go on where Tune's checkpoint stands, if there is one."""
        found = tune.get_checkpoint()
        if found is None:
            if self._curve.exists():  # several workers, whose checkpoints are not Tune's
                self.curve = dict(json.loads(self._curve.read_text()))
            return
        with found.as_directory() as place:
            state = json.loads((Path(place) / STATE).read_text())
            self.done = {int(seed): best for seed, best in state["done"].items()}
            self.last = state["last"]
            self.curve = curve_of(self.last)
            if (Path(place) / SEEDS).exists():
                shutil.copytree(Path(place) / SEEDS, self.kept, dirs_exist_ok=True)

    def report(self, seed: int, metrics: Mapping[str, float], run_id: str) -> dict[str, Any]:
        """Metrics of one seed's run as the trial's: step and budget over all seeds, scores as means over those begun."""
        scores = {
            name: sum([*self.done.values(), metrics[name]]) / (len(self.done) + 1)
            for name in ("score", "best")
            if name in metrics
        }
        step, steps = len(self.done) * self.steps + int(metrics["step"]), len(self.seeds) * self.steps
        percent = percent_of(step, steps, self.judged)
        place = {"step": step, "steps": steps, PERCENT: percent, "seeds": len(self.done) + 1, "seed": seed}
        if "score" in scores:
            self.curve[step] = scores["score"]
        curve = json.dumps(list(self.curve.items()))
        partial = self._curve.with_suffix(".partial")
        partial.write_text(curve)
        partial.replace(self._curve)
        self.last = {**scores, **place, "curve": curve, "judged": self.judged, "mlflow_run_id": run_id}
        return self.last

    def write(self, folder: Path, seed: int) -> None:
        """Make a run's checkpoint the trial's."""
        state = {"seed": seed, "done": self.done, "last": self.last}
        (folder / STATE).write_text(json.dumps(state))
        if self.kept.exists():
            shutil.copytree(self.kept, folder / SEEDS, dirs_exist_ok=True)

    def finish(self, seed: int, score: float, weights: Mapping[str, Tensor], recipe: Recipe) -> None:
        """A seed is done. Its chosen weights are kept for the checkpoints of the next ones."""
        self.done[seed] = score
        if seed == self.seeds[-1]:
            return
        place = self.kept / str(seed)
        place.mkdir(parents=True, exist_ok=True)
        save_file(dict(weights), place / METHOD)
        (place / "recipe.json").write_text(recipe.to_json())

    @contextlib.contextmanager
    def staged(self) -> Iterator[Path]:
        """A fresh folder for a checkpoint on its way; what a killed process left of one is removed."""
        place = self.scratch / "staged"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def report_end(self, recipe: Recipe, checkpoint: Path, run_id: str) -> float:
        """The end of a seed that Ray Train ran, reported with a checkpoint of Tune's own. Returns the score of the weights
        that are kept."""
        seed, state = recipe.run.seed, read_state(checkpoint)
        best, _, _, last = state["best"]
        kept = last if recipe.evaluation.keep == "last" else best
        report = self.report(seed, {"step": state["step"], "score": last, "best": kept}, run_id)
        with self.staged() as place:
            shutil.copytree(checkpoint, place, dirs_exist_ok=True)
            self.write(place, seed)
            tune.report(report, checkpoint=tune.Checkpoint.from_directory(place))
        return float(kept)


class TrialHost:
    """Where the loop of a trial runs: in this process, with checkpoints that are Tune's."""

    rank, world_size, local_size, inline = 0, 1, 1, True

    def __init__(self, budget: Budget, recipe: Recipe, run_id: str) -> None:
        self.budget, self.seed, self.run_id = budget, recipe.run.seed, run_id
        self.device = torch.device("cuda" if recipe.run.gpus_per_worker and torch.cuda.is_available() else "cpu")

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path | None]:
        """Tune's checkpoint when it is of this seed: this trial's own after a restart, or with PBT another trial's."""
        found = tune.get_checkpoint()
        if found is None:
            yield None
            return
        with found.as_directory() as place, tempfile.TemporaryDirectory() as fresh:
            state = json.loads((Path(place) / STATE).read_text())
            if state["seed"] != self.seed:
                yield None
            elif state["last"]["mlflow_run_id"] == self.run_id:
                yield Path(place)
            else:
                self.budget.curve.clear()
                yield _adopted(Path(place), Path(fresh))

    def save(self, write_files: WriteFiles | None, metrics: dict[str, float], last: bool) -> None:
        assert write_files is not None  # there is one rank
        report = self.budget.report(self.seed, metrics, self.run_id)
        with self.budget.staged() as place:
            write_files(place)
            self.budget.write(place, self.seed)
            tune.report(report, checkpoint=tune.Checkpoint.from_directory(place))

    def stopping(self) -> bool:
        """Tune stops trials itself."""
        return False

    def forward(self, store: Store) -> TuneReportCallback:
        """For a run of Ray Train: its workers' reports, passed on as the trial's, and where their checkpoints are."""
        budget, seed, run_id = self.budget, self.seed, self.run_id

        class Forward(TuneReportCallback):
            def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
                report = budget.report(seed, metrics[0], run_id) | {"checkpoint_path": store.place}
                super().after_report(run_context, [report], checkpoint)

        return Forward()


def _adopted(checkpoint: Path, folder: Path) -> Path:
    """Another trial's checkpoint as a start: its weights, optimizers and step, but not its best score nor its journal."""
    shutil.copy(checkpoint / METHOD, folder)
    state = read_state(checkpoint)
    _, _, _, score = state["best"]
    state["best"], state["done"] = [-math.inf, state["step"], 0, score], False
    torch.save(state, folder / "state.pt")
    return folder
