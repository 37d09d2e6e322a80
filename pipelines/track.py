"""Bring a run to MLflow once more: ``python pipelines/track.py sync runs/mine/journal.jsonl``."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors


@dataclass(frozen=True)
class Arguments:
    """Send what MLflow lacks of a run: metrics and, if the run is finished, files, the registered model and its end.

    What MLflow has already is left as it is, so this can be repeated.

    Example: python pipelines/track.py sync runs/demo/journal.jsonl
    """

    verb: tyro.conf.Positional[Literal["sync"]]
    """The word sync, as there is nothing else to do yet."""
    journal: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="JOURNAL")]
    """The file journal.jsonl in the output folder of the run."""
    uri: str | None = None
    """Where the tracking server is now; none: where it was when the run began."""
    timeout: float = 60.0
    """Seconds to keep trying."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line: 1 when something could not be sent, 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from multicse.trainers.engine.journal import Journal
    from multicse.trainers.engine.mlflow_server import TrackingError
    from multicse.trainers.engine.tracking import sync

    header = Journal(arguments.journal).header()
    if header is None:
        what = "is not a journal: its first line names no run" if arguments.journal.is_file() else "does not exist"
        raise TrackingError(f"{arguments.journal} {what}. Journals are called journal.jsonl.")
    print(f"run {header['run_id']} at {arguments.uri or header['uri']}")
    sent = sync(arguments.journal, arguments.uri, arguments.timeout)
    if sent:
        print("everything is with the server")
    return 0 if sent else 1


if __name__ == "__main__":
    sys.exit(main())
