"""Who gets a run's metrics besides MLflow: TensorBoard and Weights & Biases, both as files in the run's folder.

A record has no memory. Whoever starts to write the journal, a restarted worker too, writes all of it into a fresh record, so
that every step is in it once, whenever a process died.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class TensorBoard:
    """``tensorboard --logdir OUTPUT/tensorboard``: every metric by its name; the load's steps are seconds."""

    def __init__(self, output: Path, run_id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = output / "tensorboard"
        for left in folder.glob("events.out.tfevents.*"):
            left.unlink()
        self.writer: Any = SummaryWriter(str(folder), flush_secs=1)

    def log(self, line: Mapping[str, Any]) -> None:
        for name, value in line["metrics"].items():
            self.writer.add_scalar(name, value, line.get("step", line.get("second")), walltime=line["time"] / 1000)

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
        run = {"id": run_id, "project": paper, "name": row or None, "config": recipe}
        self.run: Any = wandb.init(dir=output, mode="offline", reinit="create_new", settings=quiet, **run)
        self.run.define_metric("*", step_metric="step")
        self.run.define_metric("system/*", step_metric="second")

    def log(self, line: Mapping[str, Any]) -> None:
        when = {name: line[name] for name in ("step", "second") if name in line}
        self.run.log({**when, **line["metrics"]})

    def close(self) -> None:
        self.run.finish()


KINDS: dict[str, type[TensorBoard | WeightsAndBiases]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""By their names in ``run.also``, which are those of the packages as well."""


class Reports:
    """The records of a run. One that fails is left out with a warning: training does not depend on it.

    Args:
        kinds: Keys of `KINDS`.
        output: Folder of the run.
        run_id: MLflow run.
        lines: Lines of metrics that the run's journal has already.
    """

    def __init__(self, kinds: Sequence[str], output: Path, run_id: str, lines: Iterable[Mapping[str, Any]]) -> None:
        self._open = dict[str, TensorBoard | WeightsAndBiases]()
        for kind in kinds:
            with self._guarded(kind):
                self._open[kind] = KINDS[kind](output, run_id)
        for line in lines if kinds else ():
            self.log(line)

    def log(self, line: Mapping[str, Any]) -> None:
        """Add a line of the journal to every record."""
        for kind in [*self._open]:
            with self._guarded(kind):
                self._open[kind].log(line)

    def close(self) -> None:
        """Finish the records."""
        for kind in [*self._open]:
            with self._guarded(kind):
                self._open[kind].close()

    @contextlib.contextmanager
    def _guarded(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._open.pop(kind, None)
            log.warning("%s gets no more metrics of this run (%s: %s)", kind, type(error).__name__, error)


def check_installed(kinds: Sequence[str]) -> None:
    """Raise ValueError, which names ``run.also``, for one that is not installed."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise ValueError(f"run.also: {kind} is not installed; pip install 'multicse[trackers]', or leave it out")
