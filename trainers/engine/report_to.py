"""Trackers besides MLflow: TensorBoard and Weights & Biases, as files in the run's folder.

Records are stateless. A process that opens the journal, also after a restart, first replays all of it into a new record, so
every step is recorded exactly once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from multicse.trainers.engine.journal import Journal

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """Functions that add a line of the journal to a record and that finish the record."""

    add: Callable[[Mapping[str, Any]], object]
    close: Callable[[], object]


def _tensorboard(output: Path, run_id: str) -> Record:
    """Open a record for ``tensorboard --logdir OUTPUT/tensorboard``, in place of an earlier one."""
    from torch.utils.tensorboard import SummaryWriter

    folder = output / "tensorboard"
    for left in folder.glob("events.out.tfevents.*"):
        left.unlink()
    writer: Any = SummaryWriter(str(folder), flush_secs=1)

    def add(line: Mapping[str, Any]) -> None:
        for name, value in line["metrics"].items():
            writer.add_scalar(name, value, line["step"], walltime=line["time"] / 1000)

    return Record(add, writer.close)


def _wandb(output: Path, run_id: str) -> Record:
    """Open a record for ``wandb sync OUTPUT/wandb/offline-run-*`` with the settings of recipe.json; nothing is sent."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import
    import wandb

    for left in (output / "wandb").glob("offline-run-*"):
        shutil.rmtree(left)
    recipe: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        recipe = json.loads((output / "recipe.json").read_text())
    paper, _, row = recipe.get("name", "multicse").partition("/")
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True, save_code=False)
    settings = {"id": run_id, "project": paper, "name": row or None, "config": recipe}
    run: Any = wandb.init(dir=output, mode="offline", reinit="create_new", settings=quiet, **settings)
    run.define_metric("*", step_metric="step")
    return Record(lambda line: run.log({"step": line["step"], **line["metrics"]}), run.finish)


KINDS = {"tensorboard": _tensorboard, "wandb": _wandb}
"""Trackers by their name in ``run.report_to``, which is also the name of the package."""


class Reports:
    """Records of a run next to its journal, whose lines so far are replayed. A record that fails is dropped."""

    def __init__(self, kinds: Sequence[str], journal: Journal) -> None:
        self._records: dict[str, Record] = {}
        for kind in kinds:
            with self._guarded(kind):
                self._records[kind] = KINDS[kind](journal.path.absolute().parent, journal.run_id)
        for _, line in journal.lines() if kinds else ():
            self.log(line)

    def log(self, line: Mapping[str, Any]) -> None:
        """Add a line of the journal to every record."""
        for kind, record in [*self._records.items()]:
            with self._guarded(kind):
                record.add(line)

    def close(self) -> None:
        """Finish the records."""
        for kind, record in [*self._records.items()]:
            with self._guarded(kind):
                record.close()

    @contextlib.contextmanager
    def _guarded(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._records.pop(kind, None)
            log.warning("%s receives no more metrics of this run (%s: %s)", kind, type(error).__name__, error)


def check_installed(kinds: Sequence[str]) -> None:
    """Raise ValueError, which names ``run.report_to``, for a tracker that is not installed."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise ValueError(f"run.report_to: {kind} is not installed; pip install 'multicse[trackers]', or remove it")
