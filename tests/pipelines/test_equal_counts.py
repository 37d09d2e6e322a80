"""Test that describe, pack, a stream and mine count equal samples: each row is a sample or is counted as left out."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

from multicse.commands import describe, mine
from multicse.data.shards import ShardSet
from multicse.data.stream import Reader
from multicse.data.streams.text import TextStream
from multicse.pipelines import simcse
from tests.data.packing import run, samples
from tests.worlds import WORDS

TEXTS = [f'{word} number {i} is 5" wide; it is, so to say,\tquite "wide"' for i, word in enumerate((WORDS * 40)[:37])]
ROWS = [*TEXTS[:20], "", None, " ", *TEXTS[20:]]
"""40 rows, three of them without a text."""


def excel(path: Path) -> None:
    """The rows with line ends in the cells, and Excel's line with the separator."""
    with path.open("w", newline="") as file:
        file.write("sep=;\r\n")
        rows = ((i, text and text.replace(" is ", "\nis ")) for i, text in enumerate(ROWS))
        csv.writer(file, delimiter=";").writerows([("n", "text"), *rows])


def arrow(path: Path) -> None:
    table = pa.table({"n": range(40), "text": pa.array(ROWS).cast(pa.string_view())})
    with pa.ipc.new_stream(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=7)


LINES = "\r\n".join(text.replace("\t", " ") if text else "" for text in ROWS)
JSON = [json.dumps({"n": i, "text": float("nan") if i == 20 else text}) for i, text in enumerate(ROWS)]
FILES: dict[str, Callable[[Path], Any]] = {
    "windows.txt.gz": lambda path: path.write_bytes(gzip.compress(LINES.encode("utf-8-sig"))),
    "excel.csv": excel,
    "raw.tsv": lambda path: path.write_text(
        "\n".join(["text", *(f'"{text[:9]}" he said' if text in TEXTS else " " for text in ROWS)])
    ),
    "nan.jsonl": lambda path: path.write_text("\n".join(["", " ", *JSON])),
    "views.arrow": arrow,
    "pandas.parquet": lambda path: pd.DataFrame({"text": ROWS, "n": range(40)}).to_parquet(path),
}
"""A file of each kind; tests/data has their forms."""


def trained(shards: str, column: str) -> tuple[list[str], int]:
    """Return the texts of an epoch of a stream of 37 texts, and the number of skipped samples."""
    skip: dict[str, Any] = {"on_bad_sample": "skip", "max_skipped_share": 0.5, "shuffle": False, "segments": 1}
    stream = TextStream(shards=shards, columns=(column,), batch_size=37, **skip)
    read: list[str] = []

    def tokenize(texts: list[str]) -> dict[str, torch.Tensor]:
        read.extend(texts)
        return {name: torch.ones(len(texts), 1, dtype=torch.long) for name in ("input_ids", "attention_mask")}

    with Reader(stream, "x", stream.open(), 0, 0, 1, tokenize, 1, inline=True) as reader:
        next(reader)
        return read, len(reader.skipped)


@pytest.mark.parametrize("name", FILES)
def test_four_commands_count_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, is_text = tmp_path / name, ".txt" in name
    FILES[name](path)
    described = describe.describe_shards(str(path))
    rows = int(re.search(r": (\d+) samples", described)[1])  # type: ignore[index]
    assert rows == (37 if is_text else 40)
    blank = 3 if is_text else 2 * (name == "nan.jsonl")
    left_out = [f"{blank} left out: blank line; the first: {path}, line "] * bool(blank)
    assert ("left out" in described) == bool(blank) and all(line in described for line in left_out)
    left_out += [f"3 left out: text, captions or class are empty; the first: {path}, row "] * (not is_text)

    command = ("text", path) if is_text else ("table", path, "--columns", "text")
    assert run(*command, "--no-shuffle", "--out", "packed") == 0
    said = capsys.readouterr().out
    assert "37 samples" in said and said.count("left out") == len(left_out) and all(line in said for line in left_out)
    packed = [" ".join(sample.fields["txt"].split()) for sample in samples(tmp_path / "packed")]

    read, skipped = trained(str(path), "txt" if is_text else "text")
    assert read == packed and len(read) + skipped == rows

    given = ["--text", str(path), *([] if is_text else ["--column", "text"])]
    recipe = mine.choose(simcse.RECIPES, given)
    said = capsys.readouterr().out
    assert said.count("left out") == len(left_out) and all(line in said for line in left_out)
    shards = ShardSet.open(recipe.streams["text"].shards)
    mined = (shards.sample(number) for number in range(shards.samples))
    assert sorted(" ".join(sample.fields["txt"].split()) for sample in mined) == sorted(packed)  # type: ignore[union-attr]


def test_a_tar_counts_the_same_in_describe_and_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Empty texts are bad samples; hidden files and files without extension belong to no sample, and are counted."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, text in [("._0.txt", "x"), ("README", "x"), *((f"{i:02}.txt", text or "") for i, text in enumerate(ROWS))]:
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    assert ": 40 samples" in describe.describe_shards(str(path))
    assert "2 files belong to no sample, being hidden or without extension; the first: ._0.txt" in caplog.text
    assert trained(str(path), "txt") == ([" ".join(text.split()) for text in TEXTS], 3)
