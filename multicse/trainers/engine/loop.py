"""Training loop of all methods: steps, evaluation, early stopping, checkpoints and resume."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from multicse.evaluation.encoders.encoder import ShardedEncoder
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.report import Report, evaluate
from multicse.evaluation.task import Task, encode_once
from multicse.trainers.engine import checkpoint
from multicse.trainers.engine.callbacks import Callbacks
from multicse.trainers.engine.cluster import keep_freed_memory, return_freed_memory
from multicse.trainers.engine.guests import guest
from multicse.trainers.engine.hosts import Host, Stopped, from_all_ranks, mean_over_ranks
from multicse.trainers.engine.inputs import difference, inputs, start_over
from multicse.trainers.engine.selection import Selection
from multicse.trainers.engine.sharding import full_tensors, gathered, shard
from multicse.trainers.engine.step import PRECISIONS, Meter, Stepper, set_matmul_precision
from multicse.trainers.engine.stop import Watchdog
from multicse.trainers.engine.store import CheckpointError, rescue
from multicse.trainers.engine.streams import Streams
from multicse.trainers.engine.text_fit import whitened
from multicse.trainers.engine.tracking import Tracker
from multicse.trainers.gather import synchronised
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe

PROGRESS = ("step", "done", "seconds", "evaluation_seconds")
"""Attributes of an engine that are its own part of a checkpoint, besides the reports of the untrained encoder."""


class Engine:
    """Training loop of one rank; rank 0 has a tracker `log`."""

    def __init__(self, recipe: Recipe, host: Host, log: Tracker | None) -> None:
        run = recipe.run
        self.recipe, self.host, self.log = recipe, host, log
        if host.device.type == "cpu":
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            torch.set_num_threads(run.threads or max(1, cores // host.local_size))
            keep_freed_memory()
        else:
            set_matmul_precision(run)
        method = checkpoint.build_method(recipe)
        self.inputs = checkpoint.weights_left_out(method) if host.rank == 0 else {}
        """Digests of everything that the run reads, see `inputs` (rank 0 only)."""
        if run.sharded:  # moves one layer at a time to the device
            shard(method, host.device, PRECISIONS.get(run.precision))
        method = method.to(host.device)
        if host.world_size > 1 and host.device.type == "cuda":
            synchronised(method)
        self.method: Method = method
        self.streams = Streams(recipe, host, self.method.sentence_encoder.tokenize)
        self.steps = self.streams.steps
        self.average: AveragedModel | None = None
        if run.ema is not None:
            self.average = AveragedModel(self.method, multi_avg_fn=get_ema_multi_avg_fn(run.ema))
        self.stepper = Stepper(recipe, self.method, host, self.steps)
        encoder = checkpoint.module_encoder(self.chosen, host.device, self.stepper.autocast)
        self.encoder = ShardedEncoder(encoder, partial(gathered, self.method))
        self.callbacks = Callbacks(run.callbacks if host.rank == 0 else ())
        evaluation = recipe.evaluation
        development = [*([evaluation.select] if evaluation.select else []), *evaluation.watch]
        self.development: list[Task] = make_tasks(development, evaluation.data)
        self.final: list[Task] = make_tasks(evaluation.final, evaluation.data)
        if host.rank == 0:
            self.inputs = inputs(recipe) | self.inputs
        self.selection = Selection(evaluation, self.development[0] if evaluation.select else None)
        self.meter = Meter(self.streams.readers, host)
        self.parts: dict[str, Any] = {
            "progress": self,
            "selection": self.selection,
            "streams": self.streams,
            "callbacks": self.callbacks,
            "meter": self.meter,
            **{f"optimizer of {update}": optimizer for update, optimizer in self.stepper.optimizers.items()},
        }
        """Parts of a checkpoint besides the weights; `state_dict` and `load_state_dict` are called on all ranks."""
        self.step, self.done = 0, False
        self.rescued: Path | None = None
        """Folder of the last checkpoint if its store did not take it."""
        self.shown: dict[str, float] = {}
        """Latest score of the first development task, for the progress line."""
        self.before, self.baseline = Report(), Report()
        """Scores of the final tasks before training, without and with whitening."""
        self.seconds, self.evaluation_seconds = 0.0, 0.0

    @property
    def chosen(self) -> Method:
        """Method with the weights that are evaluated and exported: the current ones or their moving average."""
        return self.method if self.average is None else cast(Method, self.average.module)

    def train(self) -> dict[str, Any]:
        """Train from the latest checkpoint to the last step, which early stopping may bring forward.

        Returns:
            Scores before and after training, best step, times, skipped samples.

        Raises:
            Stopped: If a stop was requested, after the checkpoint.
            NonFiniteLoss: If a loss or gradient is not finite.
        """
        with self.host.checkpoint() as folder:
            if folder is not None:
                self._load(folder)
                if self.log:
                    self.log.resume(folder)
        run, meter = self.recipe.run, self.meter
        with (
            self.streams as readers,  # until here only: a sweep uses the process for further trials
            Watchdog(readers, self.host.rank, run.step_timeout) as watchdog,
        ):
            start = time.perf_counter() - self.seconds
            if not meter.steps:
                meter.restart()
            untrained = checkpoint.weights_of(self.chosen) if self.step == 0 else None
            while not self.done:
                with watchdog.step(self.step):
                    self.method.progress = self.step / self.steps
                    with guest(f"method {self.recipe.method.name!r}", self.method):
                        self.stepper(self.step, readers, meter)
                        self.step += 1
                        self.method.after_step(self.step)
                    if self.average is not None:
                        self.average.update_parameters(self.method)
                    self.seconds = time.perf_counter() - start
                    last = self.step == self.steps
                    if self.step % run.logging_steps == 0 or last:
                        self._report()
                    self.done, stopping = last, self.host.stopping()
                if untrained is not None:
                    before = time.perf_counter()
                    self._evaluate_untrained(untrained)
                    untrained, took = None, time.perf_counter() - before
                    start, meter.start = start + took, meter.start + took
                evaluated = self.step % self.recipe.evaluation.eval_steps == 0 or last
                if evaluated:
                    before = time.perf_counter()
                    self._evaluate()
                    took = time.perf_counter() - before
                    self.evaluation_seconds, meter.start = self.evaluation_seconds + took, meter.start + took
                    self.done = self.done or self.selection.exhausted
                    if self.done and meter.steps:  # stopped early
                        self._report()
                every, permanent, stopping = run.save_steps, run.keep_every, stopping and not self.done
                due = evaluated if every is None else self.step % every == 0
                if self.done or stopping or due or (permanent is not None and self.step % permanent == 0):
                    self._save(last=self.done or stopping)
                    return_freed_memory()
                if stopping:
                    raise Stopped(f"stopped after step {self.step} of {self.steps}")
            self.seconds = time.perf_counter() - start  # including the last evaluation and checkpoint
        return self._finish()

    def _evaluate_untrained(self, weights: dict[str, Tensor]) -> None:
        """Evaluate the initial weights as step 0, then restore the current weights and step.

        It runs after the first step, so that training starts early. Random numbers of later steps do not depend on it.
        """
        step, trained = self.step, checkpoint.weights_of(self.chosen)
        checkpoint.set_weights(self.chosen, weights)
        self.step = 0
        start = encode_once(self.final, self.encoder)
        self.before = evaluate(self.final, start)
        self._log_scores("untrained", self.before.flat)
        self.baseline = whitened(self.recipe, self.final, start)
        self._log_scores("untrained_whitened", self.baseline.flat)
        self._evaluate()
        if not self.recipe.evaluation.choose_untrained:
            self.selection.forget()
        checkpoint.set_weights(self.chosen, trained)
        self.step = step

    def _evaluate(self) -> None:
        """Score the development tasks and keep the best weights."""
        self.stepper.finite.check()
        scores = evaluate(self.development, self.encoder)
        self._log_scores("eval", scores.flat)
        for task in self.development[:1]:
            self.shown = {f"eval/{task.name}/{task.primary}": scores[task.name][task.primary], "evaluated": self.step}
        selection = self.selection
        selection.add(self.step, scores, partial(checkpoint.weights_of, self.chosen))
        step, kept = selection.kept(self.step)
        if self.log and selection.task and kept is not None:  # trackers show the last value of a metric, not the best
            self.log.log(self.step, {f"best/{selection.task.name}/{selection.task.primary}": kept, "best/step": step})

    def _log_scores(self, prefix: str, scores: Mapping[str, float]) -> None:
        if self.log and scores:
            named = {f"{prefix}/{name}": value for name, value in scores.items()}
            self.log.log(self.step, named)
            self.callbacks(self.step, named, self)

    def _finish(self) -> dict[str, Any]:
        """Evaluate the weights that are kept and return the result of the run."""
        if self.selection.weights is not None:
            checkpoint.set_weights(self.chosen, self.selection.weights)
        after = evaluate(self.final, self.encoder)
        self._log_scores("trained", after.flat)
        changes = self.before.changes(after, self.final) if self.before and self.host.rank == 0 else {}
        numbers = [(f"{task}/{name}", value) for task, one in changes.items() for name, value in one.items()]
        self._log_scores("trained_change", {name: float(value) for name, value in numbers if not isinstance(value, str)})
        streams, fingerprints = self.streams.state_dict(), from_all_ranks(fingerprint(self.chosen), self.host)
        if len(set(fingerprints)) > 1:
            raise RuntimeError(f"the parameters of the workers differ after training: {fingerprints}")
        step, score = self.selection.kept(self.step)
        return {
            "before": dict(self.before),
            "baseline": dict(self.baseline),
            "after": dict(after),
            "changes": changes,
            "steps": self.step,
            "best_step": step,
            "best_score": score,
            "train_seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "skipped": streams["skipped"],
            "skips": streams["skips"],
            "fingerprints": fingerprints,
            **({"rescued": str(self.rescued)} if self.rescued else {}),
        }

    def _report(self) -> None:
        """Log the metrics since the last report."""
        self.stepper.finite.check()
        self.streams.count_skipped()
        meter, recipe = self.meter, self.recipe
        # The mean over the ranks is the total.
        counts = {f"data/{name}/skipped": float(self.streams.skips[name] * self.host.world_size) for name in meter.readers}
        values = mean_over_ranks(meter.means() | counts, self.host)
        batches = sum(recipe.streams[name].batch_size for streams in recipe.method.updates().values() for name in streams)
        speed = meter.steps * recipe.run.gradient_accumulation_steps * batches / meter.elapsed()
        values |= meter.wait_shares() | {
            "time/samples_per_second": speed,
            "time/seconds": self.seconds,
            "time/evaluation_share": self.evaluation_seconds / max(1e-9, self.seconds),
        }
        if self.log:
            self.log.log(self.step, values)
            self.callbacks(self.step, values, self)
            left = (self.steps - self.step) * meter.elapsed() / max(1, meter.steps)
            line = {"step": self.step, "steps": self.steps, "left": left, "trouble": self.host.store.trouble}
            self.log.progress(line | values | self.shown)
        meter.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return step, times and scores."""
        examples = {task: array.tolist() for task, array in self.before.examples.items()}
        scores = {"before": dict(self.before), "baseline": dict(self.baseline), "examples": examples}
        return {name: getattr(self, name) for name in PROGRESS} | scores

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore step, times and scores."""
        examples = {task: np.array(values) for task, values in state.get("examples", {}).items()}  # older ones have none
        self.before, self.baseline = Report.of(state["before"], examples), Report.of(state["baseline"])
        vars(self).update({name: state[name] for name in PROGRESS})
        self.done = self.done or self.step >= self.steps

    def _save(self, last: bool) -> None:
        self.stepper.finite.check()
        state = {name: part.state_dict() for name, part in self.parts.items()}
        metrics = {"step": float(self.step), **self.selection.metrics()}
        if self.host.rank != 0 and not self.recipe.run.sharded:  # otherwise all ranks gather the weights
            self.host.save(None, metrics, last)
            return
        weights = {checkpoint.METHOD: checkpoint.weights_of(self.method), checkpoint.BEST: self.selection.weights}
        if self.average is not None:
            weights[checkpoint.AVERAGE] = checkpoint.weights_of(self.chosen)
        state = checkpoint.copied({**state, "inputs": self.inputs})

        def write_files(folder: Path) -> None:
            checkpoint.write(folder, self.recipe, weights, state)
            if self.log:
                self.log.store(folder)

        try:
            self.host.save(write_files if self.host.rank == 0 else None, metrics, last)
        except CheckpointError:
            if not (self.done and self.host.rescues):
                raise
            output = Path(self.recipe.run.output_dir)
            self.rescued = rescue(self.step, write_files, output, self.host.store.run)

    def _load(self, folder: Path) -> None:
        checkpoint.load_weights(self.method, folder / checkpoint.METHOD)
        best, state = folder / checkpoint.BEST, checkpoint.read_state(folder)
        before = state["inputs"]
        if text := difference(before, self.inputs, f"the run of the checkpoint {folder}", start_over("--run.resume never")):
            raise CheckpointError(text)
        self.inputs |= before
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.selection.weights = load_file(best) if best.exists() else None
        if self.average is not None:
            checkpoint.load_weights(self.chosen, folder / checkpoint.AVERAGE)
            self.average.n_averaged.fill_(self.step)


def fingerprint(module: nn.Module) -> str:
    """Return a hash of all parameters, to compare the models of several ranks."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(full_tensors(parameter.detach()).cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
