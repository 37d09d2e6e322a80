"""A table or figure of a paper, run and rendered: ``python reproduction/reproduce.py sgbert T5 [--scale mini]``."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors, command, did_you_mean
from multicse.evaluation.figures.basic import save
from multicse.evaluation.tables import Marks, comparison
from multicse.evaluation.tables import Row as Models
from multicse.reproduction.downloads import maker
from multicse.reproduction.tables import runs
from multicse.reproduction.tables.render import Verdict, effects, judged, render, verdicts
from multicse.reproduction.tables.table import Row, Table, Values
from multicse.trainers import jobs
from multicse.trainers.engine.cluster import quiet
from multicse.trainers.recipe import RecipeError

PAPERS = {
    **{"nonlingcse": "nonling", "sgbert": "sgbert", "clip": "clip", "gclsr": "gclsr", "mocoutrl": "mocoutrl"},
    "evidence": "evidence",
}
"""Papers and the modules of `reproduction/tables` that hold their tables, and the main claim of each, with a verdict."""
ALSO = {"visualcse": "nonlingcse", "audiocse": "nonlingcse", "cyclip": "clip", "clap": "clip"}
"""Other names of the same papers: those of their scripts."""


@dataclass(frozen=True)
class Arguments:
    """Run what a table or figure of a paper needs and was not run yet, and print it: paper, ours, difference, mean ± sd, p.

    Without a table every row of the paper's is listed, without a paper those of all. What is missing is said first, with the
    way to get it. A command that was stopped goes on where it was.
    """

    paper: tyro.conf.Positional[str | None] = None
    """One of nonlingcse, sgbert, clip, gclsr, mocoutrl, or by their scripts' names visualcse, audiocse, cyclip, clap; or
    evidence: the main claim of each."""
    table: tyro.conf.Positional[str | None] = None
    """Table or figure as the paper counts them: T1, F2 and so on; all: one after the other."""
    scale: Literal["paper", "mini"] = "paper"
    """With mini: the small encoder, the data at hand and minutes in place of the paper's."""
    data: Path | None = None
    """The folder of evaluation data. Default: SentEval/data/downstream; mini: the folder of data sets that holds sts,
    text_unlabeled, nli, ..., by default MULTICSE_DATASETS or ../shared/datasets."""
    rows: tuple[str, ...] = ()
    """Labels of the rows to run. Default: all."""
    seeds: tuple[int, ...] | None = None
    """One run of every trained row each. Default: as many as the paper's; mini: 1 2 3, of evidence 1 2 3 4 5."""
    encoder: str | None = None
    """With mini: the transformer that rows start from, a folder, in the small one's place."""
    out: Path | None = None
    """Runs, results and rendered tables. Default: runs/reproduce, mini: runs/reproduce-mini."""
    workers: int | None = None
    """Worker processes of every run (run.workers). Default: the recipes' own."""
    style: Literal["text", "markdown"] = "text"
    """How the table is written."""
    dry_run: bool = False
    """Check only what needs neither weights nor data: settings and steps. With mini: also pack its data."""
    coverage: Path | None = None
    """Write the list of all tables and figures, as Markdown, to this file."""
    results: Path | None = None
    """Render the tables of this Markdown page anew, between its lines <!-- FILE.json --> and <!-- end -->, from what this
    command wrote to PAPER-TABLE.json in its output, or `evaluate.py --compare` to its --json. Nothing is trained."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 1 when something is missing, 2 when the input was bad."""
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    quiet()
    if arguments.coverage is not None:
        arguments.coverage.write_text(coverage(), encoding="utf-8")
        return 0
    if arguments.results is not None:
        arguments.results.write_text(rendered(arguments.results), encoding="utf-8")
        if claims := claims_of(arguments.results):
            save(effects(claims), arguments.results.parent / "figures", "evidence")
        return 0
    if arguments.paper is None or arguments.table is None:
        checked = scale_of(arguments) if arguments.dry_run else None
        for paper in [name_of(arguments.paper)] if arguments.paper else PAPERS:
            for key, table in tables_of(paper).items():
                print("\n".join(row_line(paper, key, row, checked) for row in table.rows))
        return 0
    tables = tables_of(name_of(arguments.paper)) if arguments.table == "all" else (arguments.table,)
    return max(reproduce(replace(arguments, table=table)) for table in tables)


def name_of(paper: str) -> str:
    """The paper of a name. Raises RecipeError where there is none."""
    name = ALSO.get(paper, paper)
    if name not in PAPERS:
        raise RecipeError(
            f"there is no paper {paper!r}.{did_you_mean(paper, [*PAPERS, *ALSO])} There are: {', '.join(PAPERS)}"
        )
    return name


def module_of(paper: str) -> ModuleType:
    """What holds a paper's tables."""
    return importlib.import_module(f"{runs.__package__}.{PAPERS[paper]}")


def tables_of(paper: str) -> dict[str, Table]:
    """The tables and figures of a paper, by T1, F2, ..."""
    tables: dict[str, Table] = module_of(paper).TABLES
    return tables


def reproduce(arguments: Arguments) -> int:
    """One table, from what is missing to the rendered file."""
    assert arguments.paper is not None and arguments.table is not None
    paper = name_of(arguments.paper)
    tables = tables_of(paper)
    if arguments.table not in tables:
        near = did_you_mean(arguments.table, tables)
        raise RecipeError(f"{paper} has no table {arguments.table!r}.{near} It has: {', '.join(tables)}")
    table = tables[arguments.table]
    rows = chosen(table, arguments.rows)
    scale = scale_of(arguments)
    if arguments.dry_run:
        print("\n".join(row_line(paper, arguments.table, row, scale) for row in rows))
        return 0
    with jobs.results_in(scale.out):
        return _reproduce(arguments, table, scale, rows)


def _reproduce(arguments: Arguments, table: Table, scale: runs.Scale, rows: Sequence[Row]) -> int:
    assert arguments.paper is not None and arguments.table is not None
    paper = name_of(arguments.paper)
    module = module_of(paper)
    if lacks := runs.missing(table, module, scale, rows, maker):
        print(f"{paper} {arguments.table} cannot be run yet:\n" + "\n".join(f"  {lack}" for lack in lacks), file=sys.stderr)
        return 1
    published = tuple(range(table.seeds)) if isinstance(table.seeds, int) else table.seeds
    seeds = arguments.seeds or ((1, 2, 3) if scale.mini and not table.claims else published)
    found = runs.results(table, module, scale, rows, seeds, lambda line: print(line, file=sys.stderr, flush=True))
    kept = kept_of(paper, arguments.table, table, scale, seeds, found)
    text = table_text(kept, arguments.style)
    print(text)
    scale.out.mkdir(parents=True, exist_ok=True)
    name = scale.out / f"{paper}-{arguments.table}"  # a table may be called C.1
    Path(f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    Path(f"{name}.{'md' if arguments.style == 'markdown' else 'txt'}").write_text(text + "\n", encoding="utf-8")
    values = runs.values_of(rows, runs.columns_of(table, scale), found)
    if table.draw is not None:
        save(table.draw(table, values), scale.out, name.name)
        print(f"drawn as {name}.png", file=sys.stderr)
    return 0


KEPT = ("label", "seed", "recipe", "identity", "rates", "best_step", "steps", "data", "commit", "run")
"""What a result is kept with, beside its scores."""
MARKED = re.compile(r"<!-- (\S+\.json) -->\n.*?<!-- end -->", re.DOTALL)


def kept_of(
    paper: str, key: str, table: Table, scale: runs.Scale, seeds: tuple[int, ...], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """All that the table is rendered from: every score with its run, commit and data. No path of this machine is in it."""
    columns = runs.columns_of(table, scale)
    names = table.mini if scale.mini and table.mini is not None else columns
    scores = [{name: result["scores"][column] for name, column in zip(names, columns, strict=True)} for result in results]
    entries = [
        {field: result[field] for field in KEPT if field in result} | {"scores": of}
        for result, of in zip(results, scores, strict=True)
    ]
    return {"paper": paper, "table": key, "mini": scale.mini, "seeds": seeds, "columns": names, "results": entries}


def read(kept: Mapping[str, Any]) -> tuple[Table, list[Row], Values]:
    """The table of what was kept, the rows that are in it, and their values."""
    table, labels = tables_of(kept["paper"])[kept["table"]], {result["label"] for result in kept["results"]}
    rows = [row for row in table.rows if row.label in labels or row.lacks]
    return table, rows, runs.values_of(rows, kept["columns"], kept["results"])


def table_text(kept: Mapping[str, Any], style: str) -> str:
    """The table of what was kept, and what follows for its claims."""
    table, rows, values = read(kept)
    text = f"{head(table, kept)}\n\n{render(table, kept['columns'], rows, values, style)}"
    return f"{text}\n\n{verdicts(judged(table, kept['columns'], values), style)}" if table.claims else text


def rendered(page: Path) -> str:
    """A Markdown page with its tables rendered anew, from files named relative to it."""

    def block(match: re.Match[str]) -> str:
        kept = json.loads((page.parent / match[1]).read_text(encoding="utf-8"))
        table = compared(kept) if "models" in kept else table_text(kept, "markdown")
        return f"<!-- {match[1]} -->\n{table}\n<!-- end -->"

    return MARKED.sub(block, page.read_text(encoding="utf-8"))


def claims_of(page: Path) -> dict[str, list[Verdict]]:
    """The verdicts of all tables of a page that have claims, by the tables' names."""
    found = {}
    for name in MARKED.findall(page.read_text(encoding="utf-8")):
        kept = json.loads((page.parent / name).read_text(encoding="utf-8"))
        if "models" not in kept:
            table, _, values = read(kept)
            found[kept["table"]] = judged(table, kept["columns"], values)
    return found


def compared(report: Mapping[str, Any]) -> str:
    """The table of a report of several models."""
    found = report["significance"]
    p = {(one["model"], one["column"]): one["p"] for one in found["p"]}
    rows = [Models(label, [run["results"] for run in several]) for label, several in report["models"].items()]
    return comparison(rows, marks=Marks(p, found["reference"], found["test"]), style="markdown")


def scale_of(arguments: Arguments) -> runs.Scale:
    """Where tables are run, by the command line. Raises RecipeError where the small scale has no data."""
    mini = arguments.scale == "mini"
    data = arguments.data or (runs.datasets() if mini else runs.SENTEVAL)
    if mini and not data.is_dir():
        raise RecipeError(f"{data} is no folder: --scale mini takes one that holds sts, text_unlabeled, nli, ... by --data")
    out = jobs.kept(arguments.out or Path("runs/reproduce-mini" if mini else "runs/reproduce"))
    return runs.Scale(out, data, mini, arguments.workers, arguments.encoder)


def chosen(table: Table, labels: tuple[str, ...]) -> list[Row]:
    """The rows of these labels, all without any. Raises RecipeError for a label that is none."""
    known = [row.label for row in table.rows]
    for label in labels:
        if label not in known:
            raise RecipeError(f"--rows {label!r}.{did_you_mean(label, known)} There are: {', '.join(known)}")
    return [row for row in table.rows if not labels or row.label in labels]


def head(table: Table, kept: Mapping[str, Any]) -> str:
    """What the table is, and at what scale."""
    lines = [f"{kept['paper']} {kept['table']}: {table.title}"]
    if kept["mini"]:
        lines.append(
            "Small scale: the encoder, the data and the number of steps are not the paper's "
            f"({command('reproduce', 'reproduction')} without --scale runs the paper's); the paper's numbers stand beside "
            "ours for orientation only."
        )
        if left_out := [name for name in table.columns if table.mini is None and name not in kept["columns"]]:
            lines.append(f"Left out, for want of data: {', '.join(left_out)}.")
    trained = any(row.recipe for row in table.rows)
    lines.append(f"Seeds {', '.join(map(str, kept['seeds']))}; mean ± sample sd." if trained else "Nothing is trained.")
    if table.open:
        lines.append(f"Open in the paper: {table.open}")
    return "\n".join(lines)


def row_line(paper: str, key: str, row: Row, checked: runs.Scale | None) -> str:
    """``sgbert  T5  L_opt2  sgbert/bert-base --method.loss opt2: 1,079 steps``."""
    return f"{paper:<11}{f'{key} ':<5}{row.label:<36}{status(paper, row, checked)}"


def status(paper: str, row: Row, checked: runs.Scale | None) -> str:
    """How a row is had; after a dry run at a scale with its steps."""
    if row.lacks is not None:
        return f"not to be had: {row.lacks}"
    if row.model is not None:
        return f"measured: {row.model}"
    changes = " ".join(f"--{path} {value}" for path, value in row.changes.items())
    line = f"trained: {row.recipe} {changes}".rstrip()
    if checked is None:
        return line
    steps = runs.steps(runs.scaled(row, module_of(paper), checked))
    return f"{line}: settings checked" if steps is None else f"{line}: {steps:,} steps"


def coverage() -> str:
    """`docs/papers/coverage.md`: every table and figure with its command and what can be had of it."""
    lines = [
        "# Tables and figures of the papers",
        "",
        "Written by `python reproduction/reproduce.py --coverage docs/papers/coverage.md`. Rows are trained, measured as",
        "they are, or cannot be had outside the authors' machines; with `--scale mini` the first two run on a laptop.",
    ]
    for paper in PAPERS:
        lines += [
            "",
            f"## {paper}",
            "",
            "| | what it shows | rows: trained, measured, not to be had | command |",
            "|---|---|---|---|",
        ]
        for key, table in tables_of(paper).items():
            counts = [sum(getattr(row, kind) is not None for row in table.rows) for kind in ("recipe", "model", "lacks")]
            reasons = "; ".join(dict.fromkeys(row.lacks for row in table.rows if row.lacks))
            had = ", ".join(map(str, counts)) + (f" ({reasons})" if reasons else "")
            command = f"`python reproduction/reproduce.py {paper} {key}`" if counts[0] + counts[1] else "-"
            lines.append(f"| {key} | {table.title} | {had} | {command} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
