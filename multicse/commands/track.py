"""Send missing records of a run to MLflow: ``python pipelines/track.py sync runs/mine/journal.jsonl``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from multicse.commands import read_options
from multicse.data.errors import cli_errors


@dataclass(frozen=True)
class Arguments:
    """Send missing records of a run to MLflow: its metrics and, if it is finished, its files, registered model and status.

    Existing records are not changed, so this can be repeated.

    Example: python pipelines/track.py sync runs/demo/journal.jsonl
    """

    verb: tyro.conf.Positional[Literal["sync"]]
    """The word sync, which is the only action."""
    journal: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="JOURNAL")]
    """File journal.jsonl in the output folder of the run."""
    uri: str | None = None
    """URI of the tracking server. Default: the server that the run was started with."""
    timeout: float = 60.0
    """Seconds after which an attempt to reach the server is given up."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if something could not be sent."""
    arguments = read_options(Arguments, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from multicse.trainers.engine.journal import Journal
    from multicse.trainers.engine.mlflow_server import TrackingError
    from multicse.trainers.engine.tracking import sync

    header = Journal(arguments.journal).header()
    if header is None:
        problem = "is not a journal: its first line names no run" if arguments.journal.is_file() else "does not exist"
        raise TrackingError(f"{arguments.journal} {problem}; give the file journal.jsonl of a run's output folder")
    print(f"run {header['run_id']} at {arguments.uri or header['uri']}")
    sent = sync(arguments.journal, arguments.uri, arguments.timeout)
    if sent:
        print("all records have been sent")
    return 0 if sent else 1
