"""Evaluate sentence encoders: ``python pipelines/evaluate.py --model DIR --data DIR --tasks sts transfer --json OUT``."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from multicse import plugins
from multicse.commands import announce_imports, read_options
from multicse.data.errors import cli_errors
from multicse.evaluation import registry, report, tables
from multicse.evaluation.load import Model, load_for, parse
from multicse.evaluation.report import Outcome, Report
from multicse.evaluation.task import EvaluationError, Task, encode_once
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.jobs import kept, results_folder, results_in, shown

if TYPE_CHECKING:
    from multicse.trainers.engine.tracking import RunHandle


@dataclass(frozen=True)
class Arguments:
    """Evaluate one or several models on sentence similarity, retrieval, zero-shot and transfer tasks.

    MODEL is PLACE[@POOLING][+POST][:FIT]. PLACE is a local folder or a Hugging Face model ID (transformers,
    sentence-transformers, CLIP or CLAP), or a file of word vectors. POST is whitening, centring, standardise,
    all-but-the-top or flow, and FIT the text for fitting it (see --fit). Examples:
    google-bert/bert-base-uncased@first-last, bert@layer6-max, bert@ditto, bert@wk, bert+whitening256, glove.txt.
    Correlations and accuracies are reported in points (100 = perfect).

    Example: python pipelines/evaluate.py --model runs/demo/export --data SentEval/data/downstream --json scores.json
    """

    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """Model to evaluate, written as described above."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[LABEL=]MODEL")] = ()
    """Models to compare. Marks show which models differ significantly from the first one. Models with the same LABEL are
    runs (seeds) of one model. A report written by --json (.json) can be given in place of a model."""
    data: Path | None = None
    """SentEval downstream folder, or a folder of raw TSVs (STS12.raw.tsv, STSB.dev.raw.tsv, SICK.test.raw.tsv, ...).
    Default: the Lee corpus, which gensim contains."""
    tasks: tuple[str, ...] = ()
    """Tasks to evaluate. Groups: sts and transfer (seven tasks each). Single tasks: sts12 ... sts16, stsb-dev, stsb-test,
    sickr-dev, sickr, stsb-regression, sickr-regression, lee, lee-dev, lee-all, mr, cr, subj, mpqa, sst2, trec, mrpc. With
    -geometry after the name of an STS task: alignment and uniformity. Some have options, as in transfer?protocol=released
    or mr?hidden=50 (docs/how-to/evaluation.md). Your own data: pairs:FILE, hub:DATASET, classify:FILE,
    finetune:FILE, retrieval:SHARDS, zero-shot:SHARDS, geometry:PLACE. Default: all STS tasks found in --data."""
    pooling: str | None = None
    """Pooling to use instead of the model's own: cls, mean, max, last2, first-last, layer3-mean, ditto, wk, ... Default:
    the pooling that the model's files specify, or mean."""
    fit: Path | None = None
    """Text for fitting +whitening, +flow and other post-processing: the folder of a run, for its training text; a file with
    one sentence per line; shards; or the word target, for the evaluated sentences. For a single model, write +flow:PLACE.
    Default: the training text of the run that contains the model."""
    worst: int = 0
    """Number of pairs to show below the table, for each task with ratings: those whose rank by cosine differs most from
    their rank by rating. For a single model."""
    style: str = "text"
    """Format of the printed table: text, or markdown or latex, of the papers' kit."""
    metric: str | None = None
    """Metric in the tables of --compare and --style, such as f1 or pearson. Default: the main metric of each task."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="OUT")] = None
    """Write the results to this file, with versions, settings and checksums of the data."""
    figures: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write figures (PNG and SVG) to this folder."""
    experiment: str | None = None
    """Log metrics, report and figures to this MLflow experiment, on MLFLOW_TRACKING_URI or in ./mlflow.db (in a Ray job:
    ~/multicse/mlflow.db)."""
    device: str | None = None
    """Device of the models: cpu, cuda, cuda:1, ... Default: the GPU if one is available, otherwise the CPU."""
    batch_size: int = 128
    """Batch size in texts of 32 tokens; a batch contains up to 32 times as many tokens."""
    seed: int = 1111
    """Random seed for folds, classifiers, flow and t-SNE."""


def run(arguments: Arguments) -> Outcome:
    """Evaluate the models of the arguments.

    Raises:
        ValueError: If a folder, file, task or pooling does not exist, or data or embeddings are invalid.
    """
    if (arguments.model is None) == (not arguments.compare):
        raise EvaluationError("give either one model (--model MODEL) or models to compare (--compare MODEL MODEL ...)")
    announce_imports()
    _check_used(arguments)
    from multicse.trainers.engine.cluster import quiet

    quiet()
    tasks = registry.choose(arguments.tasks, arguments.data, arguments.seed)
    if arguments.worst and not any(isinstance(task, PairTask) for task in tasks):
        raise EvaluationError("--worst: none of the tasks has rated pairs; add one, or leave --worst out")
    plugins.get("style", arguments.style)
    return _compare(arguments, tasks) if arguments.compare else _single(arguments, tasks)


def _check_used(arguments: Arguments) -> None:
    """Raise EvaluationError for settings that this evaluation does not use."""
    if arguments.metric is not None and arguments.style == "text" and not arguments.compare:
        raise EvaluationError(
            "--metric: the table of one model shows all metrics; leave it out, or give --compare or --style"
        )
    if arguments.worst and arguments.compare:
        raise EvaluationError("--worst shows pairs of one model; give it as --model, or leave --worst out")
    if arguments.worst < 0:
        raise EvaluationError(f"--worst {arguments.worst}: give the number of pairs to show")
    specs = [arguments.model] if arguments.model else [spec for _, spec in _entries(arguments.compare)]
    models = [parse(spec) for spec in specs if not spec.endswith(".json")]
    if arguments.fit is not None and not any(model.post and model.fit is None for model in models):
        raise EvaluationError("--fit: no model has post-processing to fit; leave it out, or add +whitening to a model")
    if arguments.pooling is not None and not models:
        raise EvaluationError("--pooling: the pooling of --json reports cannot be changed; leave it out")


def _single(arguments: Arguments, tasks: list[Task]) -> Outcome:
    assert arguments.model is not None
    model = _load(arguments, arguments.model, tasks)
    encoded = encode_once(tasks, model)
    found = report.measure(arguments.model, model, tasks, encoded)
    if arguments.style == "text":
        table = tables.task_table(found)
    else:
        table = tables.comparison([tables.Row(arguments.model, [found])], arguments.metric, style=arguments.style)
    drawn = arguments.figures is not None or arguments.experiment is not None
    figures = dict(report.figures(encoded, tasks, arguments.seed)) if drawn else {}
    table = "\n".join([table, *([f"{arguments.model}: {found.fitted}"] if found.fitted else [])])
    for task in tasks if arguments.worst else ():
        if isinstance(task, PairTask):
            table += f"\n\n{tables.worst_table(task, found.examples[task.name], arguments.worst)}"
    return Outcome(table, found.content, found.flat, figures, found)


def _compare(arguments: Arguments, tasks: list[Task]) -> Outcome:
    runs: dict[str, list[Report]] = {}
    for label, spec in _entries(arguments.compare):
        saved = spec.endswith(".json")
        found = Report.read(Path(spec), tasks) if saved else report.measure(spec, _load(arguments, spec, tasks), tasks)
        runs.setdefault(label, []).append(found)
    report.check_comparable(runs, tasks)
    rows = [tables.Row(label, several) for label, several in runs.items()]
    marks = tables.significance(rows, report.gold_of(tasks), arguments.metric) if len(rows) > 1 else None
    content: dict[str, Any] = {"models": {label: [one.content for one in several] for label, several in runs.items()}}
    if marks is not None:
        p = [{"model": label, "column": column, "p": value} for (label, column), value in marks.p.items()]
        content["significance"] = {"reference": marks.reference, "test": marks.test, "p": p}
    table = tables.comparison(rows, arguments.metric, marks, arguments.style)
    fitted = dict.fromkeys(f"{label}: {one.fitted}" for label, several in runs.items() for one in several if one.fitted)
    if arguments.style == "text":
        table = "\n".join([table, *fitted])
    metrics: dict[str, float] = {}
    for label, several in runs.items():
        values = [one.flat for one in several]
        metrics |= {
            f"{_file_name(label)}/{key}": statistics.mean(v[key] for v in values)
            for key in values[0]
            if all(key in v for v in values)
        }
    figures = report.scatter(runs, tasks) if arguments.figures is not None or arguments.experiment is not None else ()
    return Outcome(table, content, metrics, {f"scatter_{name}": figure for name, figure in figures})


def _load(arguments: Arguments, spec: str, tasks: list[Task]) -> Model:
    from multicse.trainers.engine.text_fit import text_of_run

    settings = {name: getattr(arguments, name) for name in ("fit", "pooling", "device", "batch_size", "seed")}
    return load_for(tasks, spec, text_of=text_of_run, **settings)


def _entries(entries: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield label and model of every entry; the default label is the model. Raise ValueError if an entry is repeated."""
    for entry in entries:
        if entries.count(entry) > 1:
            raise ValueError(f"--compare contains {entry!r} twice; give other runs of the model with the same LABEL=")
        label, equals, spec = entry.partition("=")
        ends = [len(entry), *(found.start() for found in re.finditer("[@+]", entry))]
        is_path = any("=" in entry[:end] and Path(entry[:end]).exists() for end in ends)
        yield (label, spec) if equals and label and spec and not is_path else (entry, entry)


def _file_name(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in label).strip("_.")


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    given = sys.argv[1:] if argv is None else argv
    try:
        arguments = read_options(Arguments, given)
    except ValueError as error:
        if not given or given[0].startswith("-"):
            raise
        wanted = f"{given[0]}: give one model as --model MODEL, several as --compare MODEL MODEL ..."
        raise EvaluationError(wanted) from error  # in embed, the model comes first
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(registry.__package__).setLevel(logging.INFO)
    arguments = with_outputs(arguments)
    writes = any((arguments.json, arguments.figures, arguments.experiment))
    with results_in(results_folder()) if writes else contextlib.nullcontext():
        handle = _open_run(arguments)
        try:
            outcome = run(arguments)
            print(outcome.table)
            write(arguments, outcome, handle)
        except BaseException:
            if handle is not None:
                handle.finish("FAILED")
            raise
    return 0


def with_outputs(arguments: Arguments) -> Arguments:
    """Return the arguments with outputs outside Ray's copy of a job's folder.

    Raises:
        ValueError: If an output cannot be written.
    """
    file, figures = (place and kept(place) for place in (arguments.json, arguments.figures))
    if file is not None:
        if file.is_dir():
            raise ValueError(f"--json {file} is a folder; give a file")
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
    if figures is not None:
        if figures.exists() and not figures.is_dir():
            raise ValueError(f"--figures {figures} is a file; give a folder")
        figures.mkdir(parents=True, exist_ok=True)
    return replace(arguments, json=file, figures=figures)


def _open_run(arguments: Arguments) -> RunHandle | None:
    """Open the MLflow run before the evaluation, so that an unreachable server is noticed first."""
    if arguments.experiment is None:
        return None
    from multicse.trainers.engine.mlflow_server import TrackingError
    from multicse.trainers.engine.tracking import open_run

    models = [arguments.model] if arguments.model else list(arguments.compare)
    params = {"models": " ".join(models), "data": str(arguments.data), "tasks": " ".join(arguments.tasks)}
    try:
        return open_run(None, arguments.experiment, f"evaluate {' '.join(models)}"[:250], params)
    except TrackingError as error:
        raise ValueError(f"--experiment: {str(error).replace('run.tracking_uri', 'MLFLOW_TRACKING_URI')}") from error


def write(arguments: Arguments, outcome: Outcome, handle: RunHandle | None = None) -> None:
    """Write the outputs that the arguments ask for, and tell where they are."""
    from multicse.commands.cli import mlflow_ui
    from multicse.evaluation.figures.basic import save

    if arguments.json is not None:
        arguments.json.write_text(json.dumps(outcome.content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if outcome.report is not None:
            outcome.report.write_examples(arguments.json)  # for paired tests of --compare
        print(f"written to {shown(arguments.json)}")
    if arguments.figures is not None:
        for name, figure in outcome.figures.items():
            save(figure, arguments.figures, _file_name(name))
        print(f"{len(outcome.figures)} figures written to {shown(arguments.figures)}")
    if handle is not None:
        handle.log_metrics(outcome.metrics)
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "report.json").write_text(json.dumps(outcome.content, indent=2), encoding="utf-8")
            for name, figure in outcome.figures.items():
                save(figure, Path(place) / "figures", _file_name(name))
            handle.log_artifact(place)
        handle.finish()
        print(f"run {handle.run_id} ({mlflow_ui(handle.uri)})")
