"""Who gets a run's metrics besides MLflow: TensorBoard and Weights & Biases, both as files in the run's output.

A mirror has no memory. Whoever begins to write the journal, a restarted worker too, plays all of it again into a fresh
record, so that every step is in it once, whenever a process died.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from multicse.trainers.engine.journal import Journal, news

log = logging.getLogger(__name__)


class TensorBoard:
    """``tensorboard --logdir OUTPUT/tensorboard``: every metric by its name; the load's steps are seconds."""

    def __init__(self, output: Path, run_id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = output / "tensorboard"
        for left in folder.glob("events.out.tfevents.*"):
            left.unlink()
        self.writer: Any = SummaryWriter(str(folder))

    def add(self, line: Mapping[str, Any], step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step, walltime=line["time"] / 1000)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """``wandb sync OUTPUT/wandb/offline-run-*`` sends it; nothing here does. Settings are those of recipe.json."""

    def __init__(self, output: Path, run_id: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import
        import wandb

        for left in (output / "wandb").glob("offline-run-*"):
            shutil.rmtree(left)
        recipe: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            recipe = json.loads((output / "recipe.json").read_text())
        paper, _, row = recipe.get("name", "multicse").partition("/")
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False)
        self.run: Any = wandb.init(
            dir=output,
            mode="offline",
            id=run_id,
            project=paper,
            name=row or None,
            config=recipe,
            reinit="create_new",
            settings=quiet,
        )
        self.run.define_metric("*", step_metric="step")
        self.run.define_metric("system/*", step_metric="second")

    def add(self, line: Mapping[str, Any], step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({"second" if "second" in line else "step": step, **metrics})

    def flush(self) -> None:
        """It writes by itself."""

    def close(self) -> None:
        self.run.finish()


Mirror = TensorBoard | WeightsAndBiases
"""A record in the journal's folder, written anew from the beginning: metrics of a step of training, or of a second of the
machine's load, as the journal's line says."""
KINDS: dict[str, type[Mirror]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""By their names in ``run.also``, which are those of the packages as well."""


class Mirrors:
    """The mirrors of a journal. One that fails is left out with a warning: training does not depend on it."""

    def __init__(self, journal: Journal, kinds: Sequence[str]) -> None:
        self.journal = journal
        self._waiting, self._open = list(kinds), dict[str, Mirror]()
        self._offset, self._last = 0, dict[str, int]()

    def play(self) -> None:
        """Write what the journal has had since the last time, or since its beginning."""
        output, header = self.journal.path.absolute().parent, self.journal.header() or {}
        while self._waiting:
            kind = self._waiting.pop()
            with self._guarded(kind):
                self._open[kind] = KINDS[kind](output, str(header.get("run_id")))
        if not self._open:
            return
        for end, line in self.journal.lines(self._offset):
            step, metrics = news(line, self._last)
            self._offset = end
            for kind in [*self._open] if metrics else ():
                with self._guarded(kind):
                    self._open[kind].add(line, step, metrics)
        for kind in [*self._open]:
            with self._guarded(kind):
                self._open[kind].flush()

    def close(self) -> None:
        """End the records."""
        for kind in [*self._open]:
            with self._guarded(kind):
                self._open.pop(kind).close()

    @contextlib.contextmanager
    def _guarded(self, kind: str) -> Any:
        try:
            yield
        except Exception as error:
            self._open.pop(kind, None)
            log.warning("%s gets no more metrics of this run (%s: %s)", kind, type(error).__name__, error)


def check_mirrors(kinds: Sequence[str]) -> None:
    """Raise ValueError, which names ``run.also``, for one that is not installed."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise ValueError(f"run.also: {kind} is not installed; pip install 'multicse[trackers]', or leave it out")
