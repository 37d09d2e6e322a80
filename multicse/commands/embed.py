"""Embed a corpus with a model: ``python pipelines/embed.py MODEL DATA --out VECTORS``."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro

from multicse.commands import announce_imports, read_options
from multicse.data.errors import DataError, cli_errors, did_you_mean
from multicse.data.shard_urls import absolute, parent
from multicse.data.shard_writer import left_out_lines, locked
from multicse.data.shards import MANIFEST, WIDS_KIND, Manifest, RawSample, ShardSet, read_manifest
from multicse.trainers.engine.progress import ProgressLine, duration
from multicse.trainers.jobs import in_copy, kept, results_folder, results_in, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from multicse.evaluation.vectors import How, Part, What

BAD = "bad_rows.jsonl"
ELSEWHERE = "give another folder, or replace it (--overwrite)"
Precision = Literal["fp32", "bf16", "int8"]
READER = 0.25
"""Logical CPUs of a reading task; the first CPU of each worker is shared with one."""
TASKS = 10_000
"""Blocks that Ray Data gets at once, each a reading task, which costs it some 0.7 ms before the first vector."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Embed a corpus: compute a vector for every row, and write Parquet files, one per shard.

    The files have the columns key, text (of images and audio clips url) and vector. If the command is interrupted, the same
    command continues: finished files are checked and skipped. Rows without a text, and damaged ones, are counted and listed
    in bad_rows.jsonl.

    Example: python pipelines/embed.py runs/demo/export corpus.jsonl --column body --out vectors
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Model, as for pipelines/evaluate.py: a folder, a Hugging Face model ID or word vectors, with @POOLING or
    +whitening, which is fitted on the training text of the model's run; +whitening:PLACE: on another text."""
    data: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """What streams read: .tar, .parquet, .arrow, .jsonl, .csv, .tsv or .txt files, folders, patterns, URLs, hf://NAME,
    several joined by ::."""
    out: Path
    """Folder of the vectors."""
    column: str | None = None
    """Column with the text. Default: text, sentence or caption, or the only column of texts. CLIP and CLAP models embed
    images and audio clips if the rows have them."""
    keep: tuple[str, ...] = ()
    """Further columns to copy to the output, as texts."""
    without_text: bool = False
    """Write no texts, only keys and vectors."""
    pooling: str | None = None
    """Pooling to use instead of the model's own."""
    prompt: str | None = None
    """Text to put before every text. Default: the model's default prompt, if it has one."""
    prompt_name: str | None = None
    """Name of one of the model's own prompts, such as query or document."""
    dimensions: int | None = None
    """Leading numbers to keep of every vector, for Matryoshka models. Default: all."""
    precision: Precision = "fp32"
    """Precision of the vectors. fp32: computed and stored as float32; bf16: computed in bfloat16, stored as float16; int8:
    every vector is scaled to -127 to 127, which keeps cosine similarities."""
    device: str | None = None
    """Device of the model: cpu, cuda, ... Default: the GPU if one is available, otherwise the CPU."""
    batch_size: int = 128
    """Batch size in texts of 32 tokens, or in images or audio clips."""
    num_workers: int | None = None
    """Processes with a copy of the model, on Ray. 0: this process, without Ray. Default: on a cluster one per GPU, or per
    CPU if it has none; otherwise 0."""
    cpus_per_worker: int = 1
    """CPUs, and threads, of each of these processes."""
    overwrite: bool = False
    """Replace the vectors in the folder, also of other settings."""


def embed(model: str | Path, data: str | Path | Sequence[str | Path], out: str | Path, **options: Any) -> Manifest:
    r"""Embed a corpus: write a Parquet file with vectors for every shard. The same call continues after an interruption.

    Args:
        model: Folder, Hugging Face model ID or word-vector file, optionally followed by ``@POOLING`` and
            ``+whitening`` (fitted on the training text of its run) or ``+whitening:PLACE``.
        data: File, folder, pattern or URL of shards or tables, or several.
        out: Folder of the vectors.
        options: Further options of ``pipelines/embed.py`` by name, such as ``column="body"`` or ``precision="bf16"``.

    Returns:
        Content of ``dataset.json``: folder, files, counts.

    Raises:
        DataError: If the data cannot be read or has no rows to embed, the folder contains vectors of another model,
            prompt or precision, or an option does not exist.
        EvaluationError: If the model cannot be loaded, or does not support an option.

    Examples:
        >>> _ = Path("corpus.txt").write_text("A first sentence.\nA second one.")
        >>> found = multicse.embed(result.export, "corpus.txt", "vectors")
        >>> found.record["nsamples"], found.record["embedding"]["dimensions"]
        (2, 192)
    """
    known = [field.name for field in fields(Arguments)]
    if wrong := next((name for name in options if name not in known), None):
        raise DataError(f"embed has no option {wrong!r}.{did_you_mean(wrong, known)} Options: {', '.join(known)}")
    several = [data] if isinstance(data, (str, Path)) else data
    return run(Arguments(model=str(model), data="::".join(map(str, several)), out=Path(out), **options))


def run(arguments: Arguments) -> Manifest:
    """Embed what the arguments name; see `embed`."""
    if arguments.precision not in get_args(Precision):
        raise DataError(f"--precision {arguments.precision}: choose {', '.join(get_args(Precision))}")
    if isinstance(arguments.keep, str):
        arguments = replace(arguments, keep=(arguments.keep,))
    shards = ShardSet.open(absolute(arguments.data))
    columns = _columns(arguments, shards)
    _check_folder(arguments, shards)
    announce_imports()
    from multicse.evaluation.vectors import Embedder, How, finished, parts_of, what_of
    from multicse.trainers.engine.cluster import quiet
    from multicse.trainers.engine.text_fit import text_of_run

    quiet()
    how = How(**{field.name: getattr(arguments, field.name) for field in fields(How)})
    embedder = Embedder(how, text_of_run)
    what = what_of(columns, embedder.modalities, arguments.column, arguments.keep)
    chosen = {"modality": what.modality, "column": what.column, "keep": list(what.keep), "text": not arguments.without_text}
    about = {**embedder.about, **chosen}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with locked(arguments.out):
        parts = parts_of(shards)
        _prepare(arguments, shards, about, parts)
        missing = [part for part in parts if finished(arguments.out / part.name, part) is None]
        if missing:
            _write(arguments, embedder, how, what, parts, missing)
        return _describe(arguments, shards, about, parts)


def _columns(arguments: Arguments, shards: ShardSet) -> set[str]:
    """Return the columns of the rows. Raises DataError if one that is named does not exist."""
    found = set(shards.fields)
    if not found:  # a dataset.json of another program may not list them
        first = shards.sample(0)
        found = set(first.fields) if isinstance(first, RawSample) else set()
    known = sorted(found - {"json"})
    for name in (*([arguments.column] if arguments.column else []), *arguments.keep):
        if name not in found and "json" not in found:
            raise DataError(f"column {name!r} does not exist.{did_you_mean(name, known)} The rows have {', '.join(known)}")
    return found


def _check_folder(arguments: Arguments, shards: ShardSet) -> dict[str, Any] | None:
    """Return how the vectors in the folder were computed, or None if there are none that are kept.

    Raises:
        DataError: If the folder contains other files, or vectors of other settings of the command.
    """
    out, fix = arguments.out, "give another folder"
    if any(Path(parent(shard.url)).resolve() == out.resolve() for shard in shards.shards):
        raise DataError(f"--out {out} is the folder of the data; {fix}")
    there = next(iter(sorted(file.name for file in out.glob("*.parquet"))), None)
    found = read_manifest(str(out))
    before: dict[str, Any] | None = None if found is None else found.record.get("embedding")
    if before is None and (there or found is not None):
        raise DataError(f"--out {out} contains {there or MANIFEST}, which embed has not written; {fix}")
    if before is None or arguments.overwrite:
        return None
    _compare(arguments, before, {"precision": arguments.precision, "keep": list(arguments.keep)})
    return before


def _compare(arguments: Arguments, before: dict[str, Any], about: dict[str, Any]) -> None:
    """Raise DataError if vectors in the folder were computed with other settings than `about`."""
    for name, value in about.items():
        if before.get(name) != value:
            old, new = _shown(before.get(name)), _shown(value)
            if name == "model":  # a hash, which alone says nothing to a reader
                old, new = f"{before.get('of')} ({str(before.get(name))[:8]})", f"{arguments.model} ({str(value)[:8]})"
            raise DataError(f"--out {arguments.out} contains vectors with {name} {old}, not {new}; {ELSEWHERE}")


def _prepare(arguments: Arguments, shards: ShardSet, about: dict[str, Any], parts: Sequence[Part]) -> None:
    """Check what the folder contains, and describe it before the first vectors.

    Raises:
        DataError: If there are vectors of other settings or of other data.
    """
    out, before = arguments.out, _check_folder(arguments, shards)
    if arguments.overwrite:
        for file in (*out.glob("*.parquet"), out / BAD, out / MANIFEST):
            file.unlink(missing_ok=True)
    if before is not None:
        _compare(arguments, before, about)
    if strange := sorted({file.name for file in out.glob("*.parquet")} - {part.name for part in parts}):
        raise DataError(f"--out {out} contains {strange[0]}, the vectors of other data than {arguments.data}; {ELSEWHERE}")
    for left in out.glob("*.partial"):  # of a killed run, since this process has the lock
        left.unlink()
    if before is None:
        _save(out / MANIFEST, _record(arguments, shards, about, []))


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 60 else f"{text[:28]}...{text[-28:]}"


def _record(arguments: Arguments, shards: ShardSet, about: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of `dataset.json`."""
    left_out: dict[str, tuple[int, str]] = {}
    for key, reason in (bad for entry in entries for bad in entry["bad"]):
        count, first = left_out.get(reason, (0, key))
        left_out[reason] = count + 1, first
    return {
        "__kind__": WIDS_KIND,
        "wids_version": 1,
        "name": arguments.out.resolve().name,
        "licence": shards.licence,
        "source": arguments.data,
        "nsamples": sum(entry["nsamples"] for entry in entries),
        "filesize": sum(entry["filesize"] for entry in entries),
        "embedding": {"of": arguments.model, **about},
        "dropped": sum(len(entry["bad"]) for entry in entries),
        "left_out": left_out,
        "shardlist": [{name: value for name, value in entry.items() if name != "bad"} for entry in entries],
    }


def _save(file: Path, record: dict[str, Any]) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, file)


def _describe(arguments: Arguments, shards: ShardSet, about: dict[str, Any], parts: Sequence[Part]) -> Manifest:
    """Write the list of bad rows and `dataset.json`, and return it. Raises DataError if no row could be embedded."""
    from multicse.evaluation.vectors import finished

    out = arguments.out
    entries = [entry for part in parts if (entry := finished(out / part.name, part)) is not None]
    lines = (
        json.dumps({"key": key, "reason": reason}, ensure_ascii=False) for entry in entries for key, reason in entry["bad"]
    )
    (out / BAD).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    record = _record(arguments, shards, about, entries)
    _save(out / MANIFEST, record)
    if not record["nsamples"]:
        raise DataError(f"none of the {shards.samples:,} rows could be embedded: {left_out_lines(record['left_out'])[0]}")
    found = read_manifest(str(out))
    assert found is not None  # written above
    return found


def _write(
    arguments: Arguments, embedder: Any, how: How, what: What, parts: Sequence[Part], missing: Sequence[Part]
) -> None:
    """Write the missing files."""
    from multicse.evaluation.load import absolute as absolute_model
    from multicse.evaluation.vectors import blocks_of, read_block, write_part

    plan = [block for part in missing for block in blocks_of(part, what.modality)]
    workers = _workers(arguments)
    if workers:
        del embedder  # its memory is the workers'
        how = replace(how, model=absolute_model(how.model))
        found = through_ray(plan, how, what, workers, arguments.cpus_per_worker)
    else:
        found = (embedder(read_block(what, *block)) for block in plan)
    rows = sum(part.stop - part.start for part in missing)
    before = sum(part.stop - part.start for part in parts) - rows
    if before:
        print(f"{len(parts) - len(missing)} of {len(parts)} files with {before:,} rows are finished", flush=True)
    blocks = _counted(found, rows)
    for part in missing:
        write_part(arguments.out / part.name, part, blocks, text=not arguments.without_text)
    next(blocks, None)  # ends Ray's execution


def _counted(blocks: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield blocks, and show how many rows they have, how fast they come and how long the rest takes."""
    progress, start, done = ProgressLine(_line), time.monotonic(), 0
    for block in blocks:
        yield block
        done += len(block)
        seconds = time.monotonic() - start
        progress.show({"step": done, "steps": rows, "rate": done / seconds, "left": (rows - done) * seconds / done})


def _line(line: dict[str, Any]) -> str:
    return f"row {line['step']:,}/{line['steps']:,}  {line['rate']:,.0f} rows/s  {duration(line['left'])} left"


# -------------------------------------------------------------------------------------------------------------------- Ray


def _workers(arguments: Arguments) -> int:
    """Return the number of processes, and start or join Ray if there are some."""
    number = arguments.num_workers
    if number == 0 or (number is None and not (os.environ.get("RAY_ADDRESS") or in_copy())):
        return 0
    from multicse.trainers.engine.cluster import capacity
    from multicse.trainers.engine.ray_start import start_ray

    start_ray()
    cpus, gpus, _ = capacity()
    most = int(gpus) if gpus and arguments.device != "cpu" else int(cpus // arguments.cpus_per_worker)
    if number is not None and number > most:
        what = f"{gpus:g} GPUs" if gpus else f"{cpus:g} CPUs"
        raise DataError(
            f"--num_workers {number} with --cpus_per_worker {arguments.cpus_per_worker}: the cluster has {what}; lower them"
        )
    return max(1, most) if number is None else number


def through_ray(plan: Sequence[Any], how: How, what: What, workers: int, cpus: int) -> Iterator[pa.Table]:
    """Embed blocks with Ray Data, and yield them in order.

    Args:
        plan: Shard, first row and row after the last of each block.
        how: How vectors are computed.
        what: What is read.
        workers: Processes with a model.
        cpus: CPUs of each of them.

    Raises:
        DataError: If a shard cannot be read.
        EvaluationError: If the model cannot be loaded or fails.
    """
    import ray
    from ray.data import ActorPoolStrategy
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    from multicse.evaluation.vectors import Embedder
    from multicse.trainers.engine.cluster import quiet
    from multicse.trainers.engine.text_fit import text_of_run

    quiet()  # again, since the import of ray.data sets the level of its log

    class Blocks(Datasource):
        def __init__(self, plan: Sequence[Any]) -> None:
            about = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
            self.tasks = [ReadTask(partial(_read, what, block), about) for block in plan]

        def get_name(self) -> str:
            return "Rows"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            return self.tasks

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = context.print_on_execution_start = False
    gpus = 1 if "GPU" in ray.cluster_resources() and how.device != "cpu" else 0
    for at in range(0, len(plan), TASKS):
        part = plan[at : at + TASKS]
        rows = ray.data.read_datasource(Blocks(part), override_num_blocks=len(part), num_cpus=READER)
        vectors = rows.map_batches(
            Embedder,
            fn_constructor_args=(how, text_of_run, cpus),
            compute=ActorPoolStrategy(size=min(workers, len(part))),
            num_cpus=cpus - READER,
            num_gpus=gpus,
            batch_size=None,
            batch_format="pyarrow",
            zero_copy_batch=True,
        )
        try:
            yield from vectors.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=workers)
        except ray.exceptions.RayError as error:
            raise _cause(error) from None


def _read(what: What, block: tuple[Any, ...]) -> Iterator[pa.Table]:
    """Yield a block, in a reading task."""
    from multicse.evaluation.vectors import read_block

    yield read_block(what, *block)


def _cause(error: BaseException) -> BaseException:
    """Return the error of the data or the model that a task raised, instead of Ray's error that contains it."""
    from multicse.evaluation.task import EvaluationError

    seen: BaseException | None = error
    while seen is not None:
        for kind in (DataError, EvaluationError):
            if isinstance(seen, kind):
                return kind(str(seen))
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    return error


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    arguments = read_options(Arguments, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    arguments = replace(arguments, out=kept(arguments.out))
    start = time.monotonic()
    with results_in(results_folder()):
        record = run(arguments).record
    about = record["embedding"]
    kind = {"fp32": "float32", "bf16": "float16"}.get(about["precision"], about["precision"])
    print(
        f"{shown(arguments.out)}: {record['nsamples']:,} vectors of {about['dimensions']} numbers ({kind}) in "
        f"{len(record['shardlist'])} files, {record['filesize'] / 1e6:,.1f} MB, in {duration(time.monotonic() - start)}"
    )
    for line in left_out_lines(record["left_out"])[:10]:
        print(line)
    if record["dropped"]:
        print(f"{record['dropped']:,} rows have no vector: {shown(arguments.out / BAD)}")
    return 0
