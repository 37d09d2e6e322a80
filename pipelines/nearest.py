"""The nearest sentences of a database: ``python pipelines/nearest.py --model DIR --queries FILE --database FILE``."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.evaluation.load import load_model
from multicse.evaluation.tasks.retrieval import nearest_captions, neighbour_table, read_captions
from multicse.trainers.engine.cluster import quiet


@dataclass(frozen=True)
class Arguments:
    """What NonLing-CSE shows in its Table D.1: the nearest of 150,000 captions for each query, exact.

    Files hold one sentence a line (.txt, .txt.gz), or are a TSV with a header.
    """

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Encoder, named as pipelines/evaluate.py names it: a folder, or a hub name."""
    queries: Path
    """Sentences to look for."""
    database: Path
    """Sentences to look in."""
    columns: tuple[str, ...] = ()
    """Columns of the database that hold sentences, if it is a TSV: c1 c2 c3 c4 c5."""
    k: int = 3
    """How many sentences are shown for each query."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write them to this file too."""
    device: str | None = None
    """Where it runs: cpu, cuda, ... Default: the GPU if there is one."""
    batch_size: int = 128
    """Texts of 32 tokens that are encoded at a time."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    quiet()
    queries = read_captions(arguments.queries)
    database = read_captions(arguments.database, arguments.columns)
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise ValueError(f"--json {arguments.json}: no folder {arguments.json.absolute().parent}")
    model = load_model(
        arguments.model,
        device=arguments.device,
        batch_size=arguments.batch_size,
        fit=list(dict.fromkeys(database)),
        fit_source="the database",
    )
    found = nearest_captions(model, queries, database, arguments.k)
    print(neighbour_table(queries, found))
    if arguments.json is not None:
        rows = [{"query": query, "nearest": [n._asdict() for n in near]} for query, near in zip(queries, found, strict=True)]
        arguments.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
