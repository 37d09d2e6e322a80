"""What tracking left behind: ``python pipelines/track.py sync runs/mine/journal.jsonl``."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors


@dataclass(frozen=True)
class Show:
    """Say which run a journal belongs to, and how many of its lines were not sent yet."""

    journal: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="JOURNAL")]
    """The file journal.jsonl in the output folder of the run."""


@dataclass(frozen=True)
class Sync(Show):
    """Send what a run's journal still holds: metrics, files, the registered model, the run's end.

    A journal that was sent already is left as it is, so this can be repeated.

    Example: python pipelines/track.py sync runs/demo/journal.jsonl
    """

    uri: str | None = None
    """Where the tracking server is now; none: where it was when the run began."""
    timeout: float = 60.0
    """Seconds to keep trying."""


Verb = Annotated[Sync, tyro.conf.subcommand("sync")] | Annotated[Show, tyro.conf.subcommand("show")]


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line: 1 when something could not be sent, 2 when the input was bad."""
    verb = tyro.cli(Verb, args=argv, description="What tracking left behind.")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    from multicse.trainers.engine.journal import Journal
    from multicse.trainers.engine.tracking import drain
    from multicse.trainers.engine.tracking_server import TrackingError

    book = Journal(verb.journal)
    if not book.path.is_file():
        raise TrackingError(f"{verb.journal}: there is no such file. Journals are called journal.jsonl.")
    header = book.header()
    if header is None:
        raise TrackingError(f"{verb.journal} is no journal: its first line names no run.")
    waiting = book.waiting()
    print(f"run {header['run_id']} at {getattr(verb, 'uri', None) or header['uri']}: {waiting} lines wait")
    if not isinstance(verb, Sync):
        return 0
    sent = drain(book.path, verb.uri, timeout=verb.timeout)
    if sent:
        print("everything is with the server")
    return 0 if sent else 1


if __name__ == "__main__":
    sys.exit(main())
