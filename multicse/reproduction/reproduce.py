"""Reproduce a table or figure of a paper: ``python reproduction/reproduce.py sgbert T5 [--scale mini]``."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from matplotlib.figure import Figure

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse import clone
from multicse.commands import read_options
from multicse.data.errors import cli_errors, command, did_you_mean
from multicse.evaluation.figures.basic import save
from multicse.evaluation.report import Report
from multicse.evaluation.tables import Marks, comparison
from multicse.evaluation.tables import Row as Models
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.reproduction import small_data
from multicse.reproduction.figures import bars, curves, scatter, weights
from multicse.reproduction.tables import runs
from multicse.reproduction.tables.model_figures import cells
from multicse.reproduction.tables.pool import Pool
from multicse.reproduction.tables.protocol import faults
from multicse.reproduction.tables.render import AVERAGE, Verdict, effects, judged, notes, render, verdicts
from multicse.reproduction.tables.table import Row, Table, Values, content, read_tables
from multicse.reproduction.tables.variants import in_variants
from multicse.trainers import jobs
from multicse.trainers.engine.cluster import quiet
from multicse.trainers.recipe import RecipeError

PAPERS = sorted(file.stem for file in Path(__file__).parent.glob("tables/*.toml"))
"""Files of `reproduction/tables`: five papers, and the main claim of each with a verdict."""


@dataclass(frozen=True)
class Arguments:
    """Reproduce a table or figure of a paper.

    The command trains and evaluates all rows without results, and prints published and reproduced scores with difference,
    mean ± SD and p value. Missing data is listed first, with instructions. An interrupted command resumes if it is repeated.
    Without TABLE, the tables and figures of the paper are listed; without PAPER, of all papers.

    Example: python reproduction/reproduce.py sgbert T1 --scale mini
    """

    paper: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="PAPER")] = None
    """Paper, such as sgbert or clip; or evidence, for the main claim of each paper. Default: all are listed."""
    table: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="TABLE")] = None
    """Table or figure of the paper, such as T1 or F2; or all."""
    scale: Literal["paper", "mini"] = "paper"
    """Scale of the runs. paper: models, data and steps of the paper. mini: the small encoder and small data, in minutes."""
    data: Path | None = None
    """Folder of the evaluation data. Default: SentEval/data/downstream; for mini, a folder that contains sts,
    text_unlabeled, nli, ...: MULTICSE_DATASETS, or the folder of `prepare.py small`."""
    rows: tuple[str, ...] = ()
    """Labels of the rows to run. Default: all rows."""
    seeds: tuple[int, ...] | None = None
    """Seeds of all trained rows. Default: as many as in the paper; for mini 1 2 3, for evidence 1 2 3 4 5."""
    published: bool = False
    """Train nothing: evaluate untrained encoders, and the models that authors published for their rows, on the tasks whose
    data is in the folder."""
    dry_run: bool = False
    """Only print the number of runs of each table, the rows that cannot be run, and missing data."""
    out: Path | None = None
    """Folder of runs, results and rendered tables. Default: runs/reproduce, for mini runs/reproduce-mini."""
    workers: int | None = None
    """Number of training workers of each run (run.num_workers). Default: the value of the recipe."""
    gpus: int | None = None
    """GPUs of each worker (run.gpus_per_worker). Default: the value of the recipe; for mini 0."""
    jobs: int = 1
    """Number of runs at a time, each in a separate process. Runs share a GPU: one GPU is enough for several of mini."""
    report_to: Literal["mlflow", "none"] | None = None
    """Where runs are recorded (run.report_to). Default: the value of the recipe."""
    coverage: Path | None = None
    """Write a list of all tables and figures to this Markdown file."""
    results: Path | None = None
    """Update the tables of this Markdown page, between the lines <!-- FILE.json --> and <!-- end -->, from the files
    PAPER-TABLE.json of this command or the --json files of `evaluate.py --compare`, without training."""


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if data is missing."""
    arguments = read_options(Arguments, argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    quiet()
    if arguments.coverage is not None:
        arguments.coverage.write_text(coverage(), encoding="utf-8")
        return 0
    if arguments.results is not None:
        text, drawn = rendered(arguments.results)
        arguments.results.write_text(text, encoding="utf-8")
        for image in FIGURE.finditer(text):
            if image[2] in drawn:
                save(drawn[image[2]], arguments.results.parent / image[1], image[2])
        return 0
    if arguments.paper is None or arguments.table is None:
        for paper in [arguments.paper] if arguments.paper else PAPERS:
            for key, table in tables_of(paper).items():
                print(f"{paper:<11}{key:<5}{table.title}")
        return 0
    keys = tables_of(arguments.paper) if arguments.table == "all" else (arguments.table,)
    return max(_reproduce(arguments, arguments.paper, key) for key in keys)


@cache
def tables_of(paper: str) -> dict[str, Table]:
    """Return the tables and figures of a paper by T1, F2, .... Raises RecipeError for an unknown paper."""
    if paper not in PAPERS:
        raise RecipeError(f"unknown paper {paper!r}.{did_you_mean(paper, PAPERS)} Papers: {', '.join(PAPERS)}")
    pipelines = content(paper).get("pipelines", ())
    return {
        key: replace(table, rows=in_variants(table.rows, table.reference, pipelines)) if table.variants else table
        for key, table in read_tables(paper).items()
    }


def _reproduce(arguments: Arguments, paper: str, key: str) -> int:
    """Reproduce one table. Returns the exit code: 1 if data is missing."""
    tables = tables_of(paper)
    if key not in tables:
        raise RecipeError(f"{paper} has no table {key!r}.{did_you_mean(key, tables)} Tables: {', '.join(tables)}")
    table, scale = tables[key], scale_of(arguments)
    rows = chosen(table, arguments.rows)
    if arguments.published:
        rows = runs.without_training(rows)
        if not rows:
            raise RecipeError(f"{paper} {key} has no row without training, and none with a published model")
    published = tuple(range(table.seeds)) if isinstance(table.seeds, int) else table.seeds
    if arguments.seeds and len(set(arguments.seeds)) < len(arguments.seeds):
        raise RecipeError(f"--seeds {' '.join(map(str, arguments.seeds))}: give each seed once")
    seeds = arguments.seeds or ((1, 2, 3) if scale.mini and not table.claims else published)
    if arguments.dry_run:
        trained, untrained = ([row for row in rows if getattr(row, kind)] for kind in ("recipe", "model"))
        times = sum(len(seeds or (0,)) if runs.is_seeded(row, table) else 1 for row in untrained)
        work = f"{len(trained) * len(seeds or (0,))} runs of {len(trained)} rows, {times} evaluations of untrained models"
        print(f"{paper} {key}: {'nothing to run' if runs.is_list(rows) else work}")
        print("".join(f"  not run: {note}\n" for note in notes(rows)), end="")
        print("".join(f"  missing: {lack}\n" for lack in runs.missing(table, paper, scale, rows)), end="")
        return 0
    with jobs.results_in(scale.out):
        if lacks := runs.missing(table, paper, scale, rows):
            print(f"{paper} {key} cannot be run yet:\n" + "\n".join(f"  {lack}" for lack in lacks), file=sys.stderr)
            return 1
        with Pool(arguments.jobs) as pool:
            found = runs.results(table, paper, scale, rows, seeds, partial(print, file=sys.stderr, flush=True), pool)
        kept = _kept(paper, key, table, scale, seeds, found) | ({"rows": arguments.rows} if arguments.rows else {})
        text = _table_text(kept, "text")
        print(text)
        scale.out.mkdir(parents=True, exist_ok=True)
        name = scale.out / f"{paper}-{key}{'-published' if scale.published else ''}"  # a table may be called C.1
        Path(f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        Path(f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        if "tuning" in kept:
            print(f"figure: {save(cells(kept['tuning']), scale.out, f'{name.name}-tuning')[0]}", file=sys.stderr)
        if table.draw is not None:
            values = runs.values_of(rows, runs.columns_of(table, scale), found)
            save(drawn(table, runs.columns_of(table, scale), values), scale.out, name.name)
            print(f"figure: {name}.png", file=sys.stderr)
        for file in sorted({result["provenance"]["figure"] for result in found if table.figure}):
            print(f"figure: {file}", file=sys.stderr)
    return 0


def drawn(table: Table, columns: Sequence[str], values: Values) -> Figure:
    """Draw a table that is a figure, from the columns that were run and their values."""
    heads = table.names if len(table.names) == len(columns) else columns
    if isinstance(table.draw, tuple):
        x, y = (columns[heads.index(name)] for name in table.draw)
        return scatter({label: list(zip(row[x], row[y], strict=True)) for label, row in values.items()}, *table.draw)
    means = {
        label: {head: float(np.mean(row[column])) for head, column in zip(heads, columns, strict=True)}
        for label, row in values.items()
        if all(row[column] for column in columns)
    }
    if table.draw == "bars":
        means = {label: {heads[0]: row[heads[0]], AVERAGE: float(np.mean([*row.values()]))} for label, row in means.items()}
        return bars(means)
    return curves(means, "", table.title) if table.draw == "curves" else weights(means)


SMALL = Path(SMALL_ENCODER).name
KEPT = ("label", "seed", "recipe", "identity", "rates", "best_step", "steps", "eval_steps", "data", "commit", "run")
"""Fields of a stored result, in addition to its scores."""
MARKED = re.compile(r"<!-- (\S+\.json) -->\n.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"!\[[^]]*\]\((\S*/)?(\S+)\.png\)")


def _kept(
    paper: str,
    key: str,
    table: Table,
    scale: runs.Scale,
    seeds: tuple[int, ...] | None,
    results: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Collect the results for rendering: every score with its run, commit and data, without local paths."""
    columns = runs.columns_of(table, scale)
    names = table.mini if scale.mini and table.mini is not None else columns
    scores = [{name: result["scores"][column] for name, column in zip(names, columns, strict=True)} for result in results]
    entries = [
        {field: result[field] for field in KEPT if field in result} | {"scores": of}
        for result, of in zip(results, scores, strict=True)
    ]
    seeds = seeds or tuple(sorted({result["seed"] for result in results if "seed" in result}))
    kept = {"paper": paper, "table": key, "mini": scale.mini, "seeds": seeds, "columns": names, "results": entries}
    tuning = {result["label"]: result["tuning"] for result in results if "tuning" in result}
    return kept | ({"tuning": tuning} if tuning else {}) | ({"published": True} if scale.published else {})


def _read(kept: Mapping[str, Any]) -> tuple[Table, list[Row], Values]:
    """Return the table of stored results, its rows, and their values; rows that cannot be run unless rows were chosen."""
    table, labels = tables_of(kept["paper"])[kept["table"]], {result["label"] for result in kept["results"]}
    rows = [row for row in table.rows if row.label in labels or (row.lacks and not kept.get("rows"))]
    return table, rows, runs.values_of(rows, kept["columns"], kept["results"])


def _table_text(kept: Mapping[str, Any], style: str) -> str:
    """Render stored results as "text" or "markdown", with the verdicts of the table's claims."""
    table, rows, values = _read(kept)
    text = f"{_head(table, kept)}\n\n{render(table, kept['columns'], rows, values, style, _marks(kept))}"
    return f"{text}\n\n{verdicts(_judged(kept), style)}" if table.claims else text


def _judged(kept: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts of stored results."""
    table, _, values = _read(kept)
    return judged(table, kept["columns"], values, faults(kept))


def rendered(page: Path) -> tuple[str, dict[str, Figure]]:
    """Render the tables of a Markdown page from files relative to it.

    Returns:
        The page, and figures by name: "evidence" with the effects of all claims that are not open, and "NAME-tuning" with
        the learning rates that were tried for NAME.json.
    """
    claims: dict[str, list[Verdict]] = {}
    drawn = dict[str, Figure]()

    def block(match: re.Match[str]) -> str:
        kept = json.loads((page.parent / match[1]).read_text(encoding="utf-8"))
        if "models" in kept:
            text = _compared(kept)
        else:
            text = _table_text(kept, "markdown")
            claims[kept["table"]] = _judged(kept)
            if "tuning" in kept:
                drawn[f"{Path(match[1]).stem}-tuning"] = cells(kept["tuning"])
        return f"<!-- {match[1]} -->\n{text}\n<!-- end -->"

    text = MARKED.sub(block, page.read_text(encoding="utf-8"))
    decided = any(not one.open for several in claims.values() for one in several)
    return text, drawn | ({"evidence": effects(claims)} if decided else {})


def _compared(report: Mapping[str, Any]) -> str:
    """Render a report of several models by `evaluate.py`."""
    found = report["significance"]
    p = {(one["model"], one["column"]): one["p"] for one in found["p"]}
    rows = [Models(label, [Report.of(run["results"]) for run in several]) for label, several in report["models"].items()]
    return comparison(rows, marks=Marks(p, found["reference"], found["test"]), style="markdown")


def scale_of(arguments: Arguments) -> runs.Scale:
    """Return the scale of the command line. Raises RecipeError if data of the small scale is missing."""
    mini = arguments.scale == "mini"
    at_hand = Path(os.environ.get("MULTICSE_DATASETS") or small_data.default_folder()) if mini else runs.SENTEVAL
    data = arguments.data or at_hand
    if mini and not (data / "text_unlabeled").is_dir():
        raise RecipeError(
            f"{data} does not contain the data of the small scale (sts, text_unlabeled, nli, ...). Download it: "
            f"{command('prepare', 'reproduction')} small; or pass its folder by --data or MULTICSE_DATASETS"
        )
    out = jobs.kept(arguments.out or Path("runs/reproduce-mini" if mini else "runs/reproduce"))
    given = (arguments.workers, arguments.gpus, arguments.report_to, arguments.published)
    return runs.Scale(out, data, mini, *given)


def chosen(table: Table, labels: tuple[str, ...]) -> list[Row]:
    """Return the rows with these labels; all rows if there are none.

    Raises:
        RecipeError: If a label is unknown, or its row cannot be run.
    """
    known = {row.label: row for row in table.rows}
    can = [row.label for row in table.rows if not row.lacks]
    for label in labels:
        if label not in known:
            raise RecipeError(f"--rows {label!r} not found.{did_you_mean(label, can)} Rows: {', '.join(can)}")
        if known[label].lacks:
            raise RecipeError(f"--rows {label!r} cannot be run ({known[label].lacks}). Rows: {', '.join(can)}")
    return [known[label] for label in labels] if labels else list(table.rows)


ENCODER = re.compile(r"\b(S|Ro|De)?BERTa?\b(?!')")


def _marks(kept: Mapping[str, Any]) -> dict[str, str]:
    """Return marks of labels of stored results: the encoder of the small scale, and selected untrained encoders."""
    best: dict[str, list[int | None]] = {}
    for result in kept["results"]:
        best.setdefault(result["label"], []).append(result.get("best_step"))
    marks = {}
    for label, steps in best.items():
        said = [SMALL] if kept["mini"] and ENCODER.search(label) else []
        if 0 in steps:
            said.append("best step 0" + (f": {steps.count(0)} of {len(steps)}" if any(steps) else ""))
        if said:
            marks[label] = f" [{', '.join(said)}]"
    return marks


def _explained(kept: Mapping[str, Any]) -> list[str]:
    """Return lines with the meaning of the marks of stored results, and with their commits."""
    lines, marks = [], _marks(kept)
    if any(SMALL in mark for mark in marks.values()):
        lines.append(
            f"[{SMALL}]: the shipped encoder instead of the named one, so rows that differ in the encoder only are equal."
        )
    if selected := sum("best step 0" in mark for mark in marks.values()):
        trained = {result["label"] for result in kept["results"] if "best_step" in result}
        lines.append(f"[best step 0]: the untrained encoder was selected, in {selected} of {len(trained)} trained rows.")
    commits: dict[str, list[str]] = {}
    for label, commit in {one["label"]: one["commit"][:8] for one in kept["results"] if "commit" in one}.items():
        commits.setdefault(commit, []).append(label)
    first, *others = sorted(commits, key=lambda commit: -len(commits[commit])) or [""]
    if others:
        more = "; ".join(f"{commit}: {', '.join(repr(label) for label in commits[commit])}" for commit in others)
        lines.append(f"Measured with several commits: {first}, except {more}.")
    elif first:
        lines.append(f"Measured with commit {first}.")
    return lines


def _head(table: Table, kept: Mapping[str, Any]) -> str:
    """Return the lines above a table: title, scale, seeds and open points."""
    lines = [f"{kept['paper']} {kept['table']}: {table.title}"]
    if kept["mini"]:
        lines.append(
            "Small scale: the encoder, the data and the number of steps are not the paper's "
            f"({command('reproduce', 'reproduction')} without --scale runs the paper's); the published numbers are shown "
            "for orientation only."
        )
        if runs.trains_probes(table) and table.protocol in ("test", "released"):
            lines.append("Classifiers are logistic regressions in SentEval's prototyping setting.")
    if left_out := [name for name in table.columns if name not in kept["columns"] and not (kept["mini"] and table.mini)]:
        lines.append(f"Not evaluated, data not found: {', '.join(left_out)}.")
    if kept.get("published"):
        lines.append("Nothing was trained: a trained row of the paper shows the model that its authors published.")
    if runs.is_list(table.rows):
        lines.append("Nothing to run.")
    elif any(runs.is_seeded(row, table) for row in table.rows if not row.lacks):
        lines.append(f"Seeds {', '.join(map(str, kept['seeds']))}; mean ± sample standard deviation.")
    else:
        lines.append("No row is trained.")
    if len({result.get("seed") for result in kept["results"]}) > len(kept["seeds"]):
        lines[-1] += " Rows without ± are deterministic: measured once."
    lines += _explained(kept)
    if table.open:
        lines.append(f"Not specified in the paper: {table.open}")
    return "\n".join(lines)


def coverage() -> str:
    """Return `docs/papers/coverage.md`, in a clone: every table and figure with its rows, results, cost and command."""
    docs = (clone() or Path()) / "docs"
    costs = (docs / "how-to/size-and-cost.md").read_text(encoding="utf-8")
    lines = [
        "# Tables and figures of the papers",
        "",
        "Written by `python reproduction/reproduce.py --coverage docs/papers/coverage.md`. Rows are trained, evaluated",
        "without training, or not run, for the reasons below each table. With `--scale mini` trained and evaluated rows run",
        "on a laptop, on public data that `python reproduction/prepare.py small` downloads once: about 130 MB from GitHub,",
        "checked against fixed commits and listed with its licences in `LICENCES.txt`. An interrupted command resumes;",
        "later commands find the data by themselves.",
        "",
        "No table has been run at its paper's scale; *measured* means that results at the small scale are in docs/results.",
        "*A100 hours* are computed, not measured: trained rows x seeds x the hours of one recipe of the paper in bf16 from",
        "[size and cost](../how-to/size-and-cost.md). Larger encoders cost more, tuning and evaluation are not included,",
        "and rows that tables share are trained once.",
    ]
    found = re.findall(r"^\| `(\w+)/\S+` \|[^|]*\|[^|]*\| (\S+) \|", costs, re.MULTILINE)
    hours = {family: float(one) for family, one in found}
    for paper in PAPERS:
        lines += [
            "",
            f"## {paper}",
            "",
            "| | content | rows: trained, evaluated, not run | measured | A100 hours | command |",
            "|---|---|---|---|---:|---|",
        ]
        details: dict[str, list[str]] = {}
        for key, table in tables_of(paper).items():
            counts = [sum(getattr(row, kind) is not None for row in table.rows) for kind in ("recipe", "model", "lacks")]
            reasons = dict.fromkeys(row.lacks for row in table.rows if row.lacks)
            for reason in reasons:
                details.setdefault(reason, []).append(key)
            short = ", ".join(dict.fromkeys(reason.partition(":")[0] for reason in reasons))
            had = ", ".join(map(str, counts)) + (f" ({short})" if short else "")
            command = f"`python reproduction/reproduce.py {paper} {key}`" if counts[0] + counts[1] else "-"
            files = [docs / "results" / f"{start}{paper}-{key}.json" for start in ("", "mini-")]
            kept = "small scale" if any(file.is_file() for file in files) else "never" if counts[0] + counts[1] else "-"
            families = [row.recipe.partition("/")[0] for row in table.rows if row.recipe]
            seeds = table.seeds if isinstance(table.seeds, int) else len(table.seeds or "1")
            known = {*families} <= {*hours}
            total = seeds * sum(hours[name] for name in families) if known else 0.0
            cost = (f"{total:,.0f}" if total >= 10 else f"{total:.2g}") if known else "not computed"
            lines.append(f"| {key} | {table.title} | {had} | {kept} | {cost if families else '-'} | {command} |")
        lines += ["", "Rows that are not run:", ""] if details else []
        lines += [f"- {', '.join(keys)}: {reason}" for reason, keys in details.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
