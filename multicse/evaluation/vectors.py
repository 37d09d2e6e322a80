"""Vectors of a corpus: rows of shards become blocks, blocks get vectors, and blocks are written as Parquet files.

The three steps know neither Ray nor a command line; `multicse.commands.embed` runs them in one process or in many.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from multicse.data.errors import DataError, DecodeError
from multicse.data.shards import BadSample, RawSample, Shard, ShardSet, read
from multicse.data.streams import decode
from multicse.data.text_files import text_of
from multicse.evaluation.load import Model, TextOf, load_for
from multicse.evaluation.task import EvaluationError, Sound

Precision = Literal["fp32", "bf16", "int8"]
STORED: dict[str, Any] = {"fp32": np.float32, "bf16": np.float16, "int8": np.int8}
"""Type of the numbers of a vector, by precision."""
AT_ONCE = {"text": 8192, "image": 64, "audio": 64}
"""Rows of a block, which are sorted by length together, by modality."""
PART = 100_000
"""Most rows of a shard in one file of vectors; a larger shard has several."""
ABOUT = b"multicse"
"""Metadata of a file of vectors: JSON of its source and of its bad rows."""


@dataclass(frozen=True)
class How:
    """How vectors are computed."""

    model: str
    """Model name, `PLACE[@POOLING][+POST][:FIT]`."""
    pooling: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    """Name of one of the model's own prompts."""
    dimensions: int | None = None
    """Leading numbers of each vector that are kept."""
    precision: Precision = "fp32"
    device: str | None = None
    batch_size: int = 128


@dataclass(frozen=True)
class What:
    """The fields of a row that are read."""

    modality: str
    column: str = "txt"
    """Field or column with the text."""
    keep: tuple[str, ...] = ()
    """Further fields that are copied as texts."""


class Part(NamedTuple):
    """Rows of a shard that become one file."""

    name: str
    shard: Shard
    start: int
    stop: int

    @property
    def source(self) -> list[Any]:
        """Return what the rows are: name, size and hash of the shard, and the numbers of the rows."""
        return [self.shard.name, self.shard.bytes, self.shard.sha256, self.start, self.stop]


def parts_of(shards: ShardSet) -> list[Part]:
    """Return the files to write, in order, with distinct names."""
    parts: list[Part] = []
    names: dict[str, int] = {}
    for shard in shards.shards:
        number = names[shard.name] = names.get(shard.name, 0) + 1
        name = shard.name if number == 1 else f"{shard.name}-again{number}"
        starts = range(0, shard.samples, PART)
        for start in starts:
            own = name if len(starts) == 1 else f"{name}-{start // PART:05d}"
            parts.append(Part(f"{own}.parquet", shard, start, min(start + PART, shard.samples)))
    return parts


def blocks_of(part: Part, modality: str) -> list[tuple[Shard, int, int]]:
    """Return the blocks of a part: shard, first row and the row after the last."""
    size = AT_ONCE[modality]
    return [(part.shard, start, min(start + size, part.stop)) for start in range(part.start, part.stop, size)]


def what_of(columns: Set[str], modalities: Sequence[str], column: str | None, keep: tuple[str, ...]) -> What:
    """Decide what is embedded: the texts of `column`, otherwise images or audio clips if the model encodes them, or texts.

    Args:
        columns: Columns that the rows have.
        modalities: Modalities that the model encodes.
        column: Column of the texts that is asked for.
        keep: Columns that are copied.

    Raises:
        DataError: If the rows have nothing that the model encodes.
    """
    if column is not None:
        return What("text", column, keep)
    for modality, kinds in (("image", decode.IMAGES), ("audio", decode.SOUNDS)):
        if modality in modalities and columns & set(kinds):
            return What(modality, keep=keep)
    if "txt" in columns:
        return What("text", keep=keep)
    known = ", ".join(sorted(columns - {"json"})) or "no fields"
    raise DataError(
        f"the rows have {known}: no text column is named text, sentence or caption, and the model "
        f"encodes {' and '.join(modalities)}; name the column to embed (--column NAME)"
    )


def read_block(what: What, shard: Shard, start: int, stop: int) -> pa.Table:
    """Read rows of a shard.

    Args:
        what: What is read.
        shard: The shard.
        start: First row.
        stop: Row after the last.

    Returns:
        Table of ``stop - start`` rows with the columns ``key`` (SHARD/KEY), ``bad`` (why the row cannot be used, or null),
        ``text``, or for images and audio ``url``, ``content`` and ``shape``, and the columns that are kept.
    """
    rows = [_row(what, shard, sample) for sample in read(shard, range(start, stop))]
    text = pa.string()
    media = {"url": text, "content": pa.large_binary(), "shape": pa.list_(pa.int64())}
    columns = {"text": text} if what.modality == "text" else media
    schema = pa.schema({"key": text, "bad": text, **columns, **dict.fromkeys(what.keep, text)})
    return pa.Table.from_pylist(rows, schema)


def _row(what: What, shard: Shard, sample: RawSample | BadSample) -> dict[str, Any]:
    row: dict[str, Any] = {"key": f"{sample.shard}/{sample.key}"}
    if isinstance(sample, BadSample):
        return {**row, "bad": sample.reason}
    fields, key = sample.fields, sample.key
    try:
        if what.modality == "text":
            row["text"] = decode.text(fields, (what.column,), key)[0]
        elif what.modality == "image":
            image = np.asarray(decode.image(decode.member(fields, decode.IMAGES, key), key))
            row |= {"url": _url(fields, shard), "content": image.tobytes(), "shape": image.shape}
        else:
            extension, data = decode.member_with_extension(fields, decode.SOUNDS, key)
            rate = decode.own_rate(data)
            row |= {
                "url": _url(fields, shard),
                "content": decode.audio(data, extension, rate, key).tobytes(),
                "shape": [rate],
            }
        return {**row, **{name: _kept(fields, name, key) for name in what.keep}}
    except DecodeError as error:
        return {"key": row["key"], "bad": str(error).removeprefix(f"sample {key!r}: ")}


def _url(fields: dict[str, Any], shard: Shard) -> str:
    """Return where an image or audio clip is from: its own field `url`, otherwise its shard."""
    with contextlib.suppress(DecodeError):
        return decode.text(fields, ("url",), "")[0]
    return shard.url


def _kept(fields: dict[str, Any], name: str, key: str) -> str | None:
    value = decode.field_of(fields, name, key)
    if value is None or isinstance(value, (str, bytes)):
        return None if value is None else text_of(value, f"sample {key!r}: {name!r}")
    return json.dumps(value, ensure_ascii=False, default=str)


class Embedder:
    """Model that adds vectors to blocks.

    Args:
        how: How vectors are computed.
        text_of: Returns the training text of the run in a folder, for post-processing.
        threads: Threads of torch; None for torch's default.

    Raises:
        EvaluationError: If the model cannot be loaded, or does not support the prompt or the dimensions.
    """

    def __init__(self, how: How, text_of: TextOf = lambda folder: None, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.how = how
        settings: dict[str, Any] = {"pooling": how.pooling, "device": how.device, "batch_size": how.batch_size}
        self.model: Model = load_for((), how.model, text_of=text_of, **settings)
        self.modalities: tuple[str, ...] = getattr(self.model, "modalities", ("text",))
        self.prompt = self._prompt()
        self.width = self.model.encode(["a"]).shape[1]
        if how.dimensions is not None:
            if not 1 <= how.dimensions <= self.width:
                raise EvaluationError(f"--dimensions {how.dimensions}: the vectors of {how.model} have {self.width} numbers")
            self.width = how.dimensions

    def _prompt(self) -> str | None:
        """Let the model put the prompt before texts, and return it, or the model's default."""
        from multicse.evaluation.encoders.encoder import FolderEncoder

        how, model = self.how, self.model
        if how.prompt is None and how.prompt_name is None:
            return getattr(model, "prompt", None)
        if how.prompt is not None and how.prompt_name is not None:
            raise EvaluationError("--prompt and --prompt_name are given; remove one")
        if type(model) is not FolderEncoder:
            raise EvaluationError(f"--prompt: {how.model} takes no prompt; only text encoders without +post-processing do")
        own = model.model.prompts if any(model.model.prompts.values()) else {}  # the library adds empty ones
        if how.prompt_name is not None and how.prompt_name not in own:
            raise EvaluationError(
                f"--prompt_name {how.prompt_name!r}: the prompts of {how.model} are {', '.join(own) or 'none'}; "
                "write one yourself (--prompt TEXT)"
            )
        prompt = own[how.prompt_name] if how.prompt is None else how.prompt
        model.use_prompt(prompt)
        return str(prompt)

    @property
    def about(self) -> dict[str, Any]:
        """Return what determines the vectors, for `dataset.json`: equal values give equal vectors."""
        protocol = self.model.protocol
        same = {name: protocol.get(name) for name in ("pooling", "post_processing", "fitted_on", "max_tokens")}
        numbers = {"dimensions": self.width, "precision": self.how.precision}
        return {"model": self.model.hash, **same, "prompt": self.prompt, **numbers}

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return a block of `read_block` with a column ``vector`` in place of ``content`` and ``shape``."""
        reasons = block.column("bad").to_pylist()
        good = [row for row, reason in enumerate(reasons) if reason is None]
        vectors = np.zeros((len(block), self.width), STORED[self.how.precision])
        if good:
            modality, items = _items(block.take(good))
            with self._mixed():
                found = np.asarray(self.model.encode(items, modality), np.float32)[:, : self.width]
            vectors[good] = stored = _stored(found, self.how.precision)
            for row in np.flatnonzero(~(np.isfinite(found) & np.isfinite(stored)).all(1)).tolist():
                reasons[good[row]] = "its vector contains NaN or infinity"
        flat = pa.array(vectors.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, self.width)
        kept = block.drop_columns([name for name in ("content", "shape") if name in block.column_names])
        kept = kept.set_column(kept.column_names.index("bad"), "bad", pa.array(reasons, pa.string()))
        return kept.append_column("vector", column)

    def _mixed(self) -> contextlib.AbstractContextManager[Any]:
        device = getattr(self.model, "device", None)  # None for word vectors
        if self.how.precision != "bf16" or device is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16)


def _items(block: pa.Table) -> tuple[str, list[Any]]:
    """Return modality and items of the rows of a block."""
    if "text" in block.column_names:
        return "text", block.column("text").to_pylist()
    contents, shapes = block.column("content").to_pylist(), block.column("shape").to_pylist()
    if len(shapes[0]) == 1:
        pairs = zip(contents, shapes, strict=True)
        return "audio", [Sound(np.frombuffer(data, np.float32), rate) for data, (rate,) in pairs]
    return "image", [np.frombuffer(data, np.uint8).reshape(shape) for data, shape in zip(contents, shapes, strict=True)]


def _stored(vectors: np.ndarray, precision: Precision) -> np.ndarray:
    """Return vectors (N, d) as they are stored. An int8 vector is scaled so that its largest number is 127.

    The scale of a vector does not change its cosine similarities.
    """
    if precision != "int8":
        with np.errstate(over="ignore"):
            return vectors.astype(STORED[precision])
    finite = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(finite).max(axis=1, keepdims=True)
    return np.rint(finite * (127 / np.maximum(largest, np.finfo(np.float32).tiny))).astype(np.int8)


def write_part(file: Path, part: Part, blocks: Iterator[pa.Table], text: bool = True) -> dict[str, Any]:
    """Write a file of vectors, which appears under its name when it is complete.

    Args:
        file: The file.
        part: Its rows.
        blocks: Blocks with vectors, from which the rows of the part are taken.
        text: Write the texts, too.

    Returns:
        The entry of `finished`.
    """
    partial, bad, left = file.with_suffix(".partial"), list[list[str]](), part.stop - part.start
    writer: pq.ParquetWriter | None = None
    try:
        while left:
            block = next(blocks)
            left -= len(block)
            wrong = block.filter(pc.is_valid(block.column("bad")))
            bad += [[row["key"], row["bad"]] for row in wrong.select(["key", "bad"]).to_pylist()]
            kept = block.filter(pc.is_null(block.column("bad"))).drop_columns(["bad"])
            kept = kept if text or "text" not in kept.column_names else kept.drop_columns(["text"])
            if writer is None:
                plain = {"use_dictionary": False, "write_statistics": ["key"]}
                writer = pq.ParquetWriter(partial, kept.schema, compression="zstd", **plain)
            writer.write_table(kept)
        assert writer is not None  # a part has rows
        writer.add_key_value_metadata({ABOUT: json.dumps({"source": part.source, "bad": bad})})
        writer.close()
        os.replace(partial, file)
    finally:
        if writer is not None:
            writer.close()
        partial.unlink(missing_ok=True)
    found = finished(file, part)
    assert found is not None
    return found


def finished(file: Path, part: Part) -> dict[str, Any] | None:
    """Return the entry of a file in `dataset.json` and its bad rows, or None if it does not have the rows of the part."""
    try:
        footer = pq.read_metadata(file)
        about = json.loads(footer.metadata[ABOUT])
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError):
        return None
    if about["source"] != part.source or footer.num_rows + len(about["bad"]) != part.stop - part.start:
        return None
    columns = footer.schema.to_arrow_schema().names
    fields = sorted([*columns, *(["txt"] if "text" in columns else [])])  # as streams read it
    size = file.stat().st_size
    return {"url": file.name, "nsamples": footer.num_rows, "filesize": size, "fields": fields, "bad": about["bad"]}
