"""The runs of a table as JSON lines, so that a table that was stopped goes on with what is missing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One run: its ``row``, its ``seed``, what runs of one table have in common, and its results."""


def chosen_rows(only: Sequence[str], rows: Iterable[str]) -> tuple[str, ...]:
    """The rows that ``--only`` names, in the table's order; all when it names none. Raises ValueError for an unknown one."""
    rows = tuple(rows)
    if unknown := [name for name in only if name not in rows]:
        raise ValueError(f"--only {unknown[0]}; it is some of {', '.join(rows)}")
    return tuple(name for name in rows if not only or name in only)


def read_runs(file: Path, key: Mapping[str, Any]) -> list[Record]:
    """The runs of one table that a file holds; a line that a killed process left unfinished is passed over.

    key: what its runs have in common.
    """
    records = []
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else [], 1):
        try:
            record = json.loads(line)
        except ValueError:
            log.warning("%s, line %d is unfinished and is passed over", file, number)
            continue
        if all(record[name] == value for name, value in key.items()):
            records.append(record)
    return records


def append_run(file: Path, record: Record) -> None:
    """Add a run to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = not file.exists() or file.read_bytes()[-1:] in (b"", b"\n")
    with file.open("a") as out:
        out.write(("" if whole else "\n") + json.dumps(record) + "\n")


def complete(
    file: Path,
    key: Mapping[str, Any],
    rows: Sequence[str],
    seeds: Sequence[int],
    run: Callable[[str, int], Record],
    seedless: str = "",
) -> list[Record]:
    """Do the runs of rows and seeds that a file lacks, and return those of all.

    seedless: a row that is the same for every seed, done with the first.
    """
    for seed in seeds:
        for row in rows:
            done = {(record["row"], record["seed"]) for record in read_runs(file, key)}
            there = row in {name for name, _ in done} if row == seedless else (row, seed) in done
            if not there:
                append_run(file, run(row, seed))
    found = [record for record in read_runs(file, key) if record["row"] in rows]
    return [record for record in found if record["row"] == seedless or record["seed"] in seeds]


def grouped(records: Sequence[Record], rows: Iterable[str]) -> dict[str, list[Record]]:
    """Runs by row, in the table's order."""
    found = {name: [record for record in records if record["row"] == name] for name in rows}
    return {name: runs for name, runs in found.items() if runs}
