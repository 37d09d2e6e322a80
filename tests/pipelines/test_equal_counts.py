"""The same files through describe, pack, a stream and mine: every row is a sample, or is counted as one that is left out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from multicse.data.shards import ShardSet
from multicse.data.stream import Reader
from multicse.data.streams.text import TextStream
from multicse.pipelines import describe, mine, simcse
from multicse.trainers.recipe import Recipe
from tests.data.packing import run, samples
from tests.small import WORDS

TEXTS = [f'{word} number {i} is 5" wide; it is, so to say,\tquite "wide"' for i, word in enumerate((WORDS * 40)[:37])]
ROWS = [*TEXTS[:20], "", None, " ", *TEXTS[20:]]
"""40 rows, three of them without a text."""


def by_csv(**dialect: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, **dialect).writerows([("n", "text"), *enumerate(ROWS)])
    return text.getvalue()


def frame() -> pd.DataFrame:
    return pd.DataFrame({"text": ROWS, "n": range(40)})


def arrow(path: Path, column: pa.Array) -> None:
    table = pa.table({"n": range(40), "text": column})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=9)
        return
    with pa.ipc.new_stream(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=7)


LINES = "\n".join(text.replace("\t", " ") if text else "" for text in ROWS)
JSON = [json.dumps({"n": i, "text": float("nan") if i == 20 else text}) for i, text in enumerate(ROWS)]
FILES: dict[str, Callable[[Path], Any]] = {
    "lines.txt": lambda path: path.write_text(LINES),
    "mac.txt": lambda path: path.write_bytes(LINES.replace("\n", "\r").encode()),
    "windows.txt.gz": lambda path: path.write_bytes(gzip.compress(LINES.replace("\n", "\r\n").encode("utf-8-sig"))),
    "pandas.csv": lambda path: frame().to_csv(path, index=False),
    "index.csv": lambda path: frame().to_csv(path, sep=";", encoding="utf-8-sig", lineterminator="\r\n"),
    "unquoted.csv": lambda path: path.write_text(
        "\n".join(["text|n", *(f"{text or ''}|{i}" for i, text in enumerate(ROWS))])
    ),
    "mac.csv": lambda path: path.write_text(by_csv(lineterminator="\r"), newline=""),
    "excel.csv": lambda path: path.write_text("sep=;\r\n" + by_csv(delimiter=";"), newline=""),
    "members.csv.gz": lambda path: path.write_bytes(
        b"".join(gzip.compress(part.encode()) for part in by_csv().partition("17"))
    ),
    "pandas.tsv": lambda path: frame().to_csv(path, index=False, sep="\t"),
    "raw.tsv": lambda path: path.write_text(
        "\n".join(["text", *(f'"{text[:9]}" he said' if text in TEXTS else " " for text in ROWS)])
    ),
    "nan.jsonl": lambda path: path.write_text("\n\n".join(JSON)),
    "mac.jsonl": lambda path: path.write_text("\r".join(JSON), newline=""),
    "binary.parquet": lambda path: arrow(path, pa.array([text and text.encode() for text in ROWS], pa.binary())),
    "dictionary.parquet": lambda path: arrow(path, pa.array(ROWS).dictionary_encode()),
    "views.arrow": lambda path: arrow(path, pa.array(ROWS).cast(pa.string_view())),
    "pandas.parquet": lambda path: frame().to_parquet(path),
}


@pytest.mark.parametrize("name", FILES)
def test_four_commands_count_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, is_text = tmp_path / name, ".txt" in name
    FILES[name](path)
    rows = int(re.search(r": (\d+) samples", describe.describe_shards(str(path)))[1])  # type: ignore[index]
    assert rows == (37 if is_text else 40)

    command = ("text", path) if is_text else ("table", path, "--columns", "text")
    assert run(*command, "--no-shuffle", "--out", "packed") == 0
    said = capsys.readouterr().out
    assert "37 samples" in said and "3 left out: text, captions or class are empty" in said
    packed = [" ".join(sample.fields["txt"].decode().split()) for sample in samples(tmp_path / "packed")]

    columns = ("txt",) if is_text else ("text",)
    skip: dict[str, Any] = {
        "on_bad_sample": "skip",
        "max_skipped_share": 0.5,
        "shuffle": False,
        "segments": 1,
        "batch_size": 37,
    }
    stream = TextStream(shards=str(path), columns=columns, **skip)
    read: list[str] = []

    def tokenize(texts: list[str]) -> dict[str, torch.Tensor]:
        read.extend(texts)
        return {name: torch.ones(len(texts), 1, dtype=torch.long) for name in ("input_ids", "attention_mask")}

    reader = Reader(stream, "x", stream.open(), 0, 0, 1, tokenize, {}, 1, inline=True)
    next(reader)
    skipped = len(reader.skipped)
    reader.close()
    assert read == packed and len(read) + skipped == rows

    given = ["--text", name, *([] if is_text else ["--column", "text"])]
    recipe = Recipe.from_json((tmp_path / mine.arguments(simcse.RECIPES, given)[1]).read_text())
    assert "3 left out: text, captions or class are empty" in capsys.readouterr().out
    shards = ShardSet.open(recipe.streams["text"].shards)
    mined = (shards.sample(number) for number in range(shards.samples))
    assert sorted(" ".join(sample.fields["txt"].decode().split()) for sample in mined) == sorted(packed)  # type: ignore[union-attr]
